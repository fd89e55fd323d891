"""The tables. Rows are written and read with SQLAlchemy core; these classes name the columns.

Invariant: every table lives in ``metadata`` of this module and every constraint
has a name, so that migrations can find it on any database.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, MetaData, Table, Text
from sqlalchemy import Index as SqlIndex
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel, UniqueConstraint

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Row(SQLModel, registry=registry(metadata=metadata)):
    """Base of the tables."""


class EngineRow(Row, table=True):
    __tablename__ = "engine"
    id: str = Field(primary_key=True)
    host: str
    pid: int
    pid_start: int = Field(sa_type=BigInteger)
    boot_id: str
    heartbeat: float


class RolloutRow(Row, table=True):
    __tablename__ = "rollout"
    id: str = Field(primary_key=True)
    job: str = Field(index=True)
    name: str = Field(unique=True)
    task: str
    task_digest: str
    agent: str
    model: str | None = None
    sandbox: str
    user: str
    state: str
    phase: str
    owner: str | None = Field(default=None, index=True)
    term: int
    attempt: int
    lease_until: float
    head_seq: int
    steps: int
    waiting: int
    reward: float | None = None
    error: str | None = Field(default=None, sa_type=Text)
    error_category: str | None = None
    assisted: bool
    folder: str
    sealed: str | None = None
    config: str = Field(sa_type=Text)
    revision: int = Field(sa_type=BigInteger, index=True)
    created_at: float = Field(index=True)
    started_at: float | None = None
    ended_at: float | None = None


class EventRow(Row, table=True):
    __tablename__ = "event"
    __table_args__ = (UniqueConstraint("rollout", "line", "attempt", "line_seq"),)
    rollout: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    term: int
    attempt: int
    line: int
    line_seq: int
    kind: str
    version: int
    at: float
    payload: str = Field(sa_type=Text)
    blobs: int
    """How many values of the payload were moved into blobs."""


class CommandRow(Row, table=True):
    __tablename__ = "command"
    __table_args__ = (SqlIndex(None, "rollout", "state"),)
    n: int | None = Field(default=None, primary_key=True)
    """Order of arrival."""
    id: str = Field(unique=True)
    rollout: str
    verb: str
    args: str = Field(sa_type=Text)
    actor: str
    role: str
    idem_key: str = Field(unique=True)
    state: str
    term: int | None = None
    result: str | None = Field(default=None, sa_type=Text)
    error: str | None = Field(default=None, sa_type=Text)
    sent_at: float
    ended_at: float | None = None


class RequestRow(Row, table=True):
    __tablename__ = "request"
    __table_args__ = (
        UniqueConstraint("rollout", "line", "attempt", "ask_index", "digest"),
        SqlIndex(None, "state", "revision"),
    )
    id: str = Field(primary_key=True)
    rollout: str
    line: int
    node: str
    ask_index: int
    kind: str
    digest: str
    """Hash of kind and question: tells a re-raised ask from a different one."""
    question: str = Field(sa_type=Text)
    fallback: str = Field(sa_type=Text)
    """The default answer."""
    state: str
    answer: str | None = Field(default=None, sa_type=Text)
    actor: str | None = None
    via: str | None = None
    idem_key: str | None = None
    deadline_at: float | None = None
    opened_at: float
    answered_at: float | None = None
    delivered_at: float | None = None
    draft: str = Field(sa_type=Text)
    term: int
    attempt: int
    """Ownership that raised it last."""
    revision: int = Field(sa_type=BigInteger)


class JobRow(Row, table=True):
    __tablename__ = "job"
    id: str = Field(primary_key=True)
    folder: str
    config: str = Field(sa_type=Text)
    revision: int = Field(sa_type=BigInteger)
    created_at: float = Field(index=True)
    ended_at: float | None = None


class SlotRow(Row, table=True):
    __tablename__ = "slot"
    n: int | None = Field(default=None, primary_key=True)
    """Place in the queue."""
    engine: str
    rollout: str = Field(unique=True)
    held: bool


class CounterRow(Row, table=True):
    __tablename__ = "counter"
    name: str = Field(primary_key=True)
    value: int = Field(sa_type=BigInteger)


def table(name: str) -> Table:
    return metadata.tables[name]


ENGINE = table("engine")
ROLLOUT = table("rollout")
EVENT = table("event")
COMMAND = table("command")
REQUEST = table("request")
JOB = table("job")
SLOT = table("slot")
COUNTER = table("counter")
