"""The first schema.

A migration never changes once a release carries it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_command()
    _create_counter()
    _create_engine()
    _create_event()
    _create_job()
    _create_request()
    _create_rollout()
    _create_slot()
    op.execute("INSERT INTO counter (name, value) VALUES ('revision', 0)")


def _create_command() -> None:
    op.create_table(
        "command",
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("rollout", sa.String(), nullable=False),
        sa.Column("verb", sa.String(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("idem_key", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("sent_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_command")),
        sa.UniqueConstraint("id", name=op.f("uq_command_id")),
        sa.UniqueConstraint("idem_key", name=op.f("uq_command_idem_key")),
    )
    op.create_index(op.f("ix_command_rollout_state"), "command", ["rollout", "state"], unique=False)


def _create_counter() -> None:
    op.create_table(
        "counter",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counter")),
    )


def _create_engine() -> None:
    op.create_table(
        "engine",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_start", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("heartbeat", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine")),
    )


def _create_event() -> None:
    op.create_table(
        "event",
        sa.Column("rollout", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("line_seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("blobs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("rollout", "seq", name=op.f("pk_event")),
        sa.UniqueConstraint(
            "rollout",
            "line",
            "attempt",
            "line_seq",
            name=op.f("uq_event_rollout_line_attempt_line_seq"),
        ),
    )


def _create_job() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index(op.f("ix_job_created_at"), "job", ["created_at"], unique=False)


def _create_request() -> None:
    op.create_table(
        "request",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("rollout", sa.String(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("ask_index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("fallback", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("via", sa.String(), nullable=True),
        sa.Column("idem_key", sa.String(), nullable=True),
        sa.Column("deadline_at", sa.Float(), nullable=True),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("answered_at", sa.Float(), nullable=True),
        sa.Column("delivered_at", sa.Float(), nullable=True),
        sa.Column("draft", sa.Text(), nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request")),
        sa.UniqueConstraint(
            "rollout",
            "line",
            "attempt",
            "ask_index",
            "digest",
            name=op.f("uq_request_rollout_line_attempt_ask_index_digest"),
        ),
    )
    op.create_index(
        op.f("ix_request_state_revision"), "request", ["state", "revision"], unique=False
    )


def _create_rollout() -> None:
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("task_digest", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("sandbox", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("head_seq", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_category", sa.String(), nullable=True),
        sa.Column("assisted", sa.Boolean(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("sealed", sa.String(), nullable=True),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
        sa.UniqueConstraint("name", name=op.f("uq_rollout_name")),
    )
    op.create_index(op.f("ix_rollout_created_at"), "rollout", ["created_at"], unique=False)
    op.create_index(op.f("ix_rollout_job"), "rollout", ["job"], unique=False)
    op.create_index(op.f("ix_rollout_owner"), "rollout", ["owner"], unique=False)
    op.create_index(op.f("ix_rollout_revision"), "rollout", ["revision"], unique=False)


def _create_slot() -> None:
    op.create_table(
        "slot",
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("rollout", sa.String(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_slot")),
        sa.UniqueConstraint("rollout", name=op.f("uq_slot_rollout")),
    )


def downgrade() -> None:
    for name in ("counter", "slot", "job", "request", "command", "event", "rollout", "engine"):
        op.drop_table(name)
