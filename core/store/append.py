"""What every writing transaction is made of: the fence, the numbers, the revision.

Invariant: ``seq`` is gapless because it is taken by the same statement that
proves ownership, inside the transaction that inserts the events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection, and_, func, insert, select, update

from core.contracts.errors import Fenced, NotFound
from core.contracts.store import Event, Ownership
from core.contracts.values import JsonObject
from core.store.tables import COUNTER, EVENT, REQUEST, ROLLOUT

REVISION = "revision"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event draft ready to be written. ``text`` is its payload as JSON."""

    kind: str
    version: int
    line: int
    at: float
    payload: JsonObject
    text: str
    blobs: int


Numbers: TypeAlias = list[tuple[int, int]]
"""(seq, line_seq) of each entry, in order."""


def check_owner(conn: Connection, own: Ownership) -> None:
    """Raise Fenced unless ``own`` still holds; on PostgreSQL the row stays locked."""
    append(conn, own, ())


def append(
    conn: Connection,
    own: Ownership,
    entries: Sequence[Entry],
    extra: Callable[[Connection], None] | None = None,
) -> Numbers:
    """Number and insert events of an owned rollout, with ``extra`` statements behind the
    same fence. Raises Fenced and changes nothing."""
    head = conn.execute(
        update(ROLLOUT)
        .where(
            and_(
                ROLLOUT.c.id == own.rollout,
                ROLLOUT.c.owner == own.engine,
                ROLLOUT.c.term == own.term,
            )
        )
        .values(head_seq=ROLLOUT.c.head_seq + len(entries))
        .returning(ROLLOUT.c.head_seq)
    ).scalar_one_or_none()
    if head is None:
        raise _fenced(conn, own)
    if extra is not None:
        extra(conn)
    if not entries:
        return []
    numbers = _number(conn, own, entries, int(head) - len(entries))
    _insert(conn, own, entries, numbers)
    return numbers


def _number(conn: Connection, own: Ownership, entries: Sequence[Entry], head: int) -> Numbers:
    heads = {line: _line_head(conn, own, line) for line in {entry.line for entry in entries}}
    numbers = []
    for seq, entry in enumerate(entries, head + 1):
        line_seq = heads[entry.line] = heads[entry.line] + 1
        numbers.append((seq, line_seq))
    return numbers


def _insert(conn: Connection, own: Ownership, entries: Sequence[Entry], numbers: Numbers) -> None:
    # Through the driver: the expression layer would cost as much as the database.
    rows = [
        (
            own.rollout,
            seq,
            own.term,
            own.attempt,
            entry.line,
            line_seq,
            entry.kind,
            entry.version,
            entry.at,
            entry.text,
            entry.blobs,
        )
        for (seq, line_seq), entry in zip(numbers, entries, strict=True)
    ]
    compiled = insert(EVENT).compile(dialect=conn.dialect)
    if compiled.positional:
        conn.exec_driver_sql(str(compiled), rows)
    else:
        names = EVENT.c.keys()
        conn.exec_driver_sql(str(compiled), [dict(zip(names, row, strict=True)) for row in rows])


def to_events(own: Ownership, entries: Sequence[Entry], numbers: Numbers) -> tuple[Event, ...]:
    """The events that ``append`` made of the entries."""
    return tuple(
        Event(
            rollout=own.rollout,
            seq=seq,
            term=own.term,
            attempt=own.attempt,
            line=entry.line,
            line_seq=line_seq,
            kind=entry.kind,
            version=entry.version,
            at=entry.at,
            payload=entry.payload,
        )
        for (seq, line_seq), entry in zip(numbers, entries, strict=True)
    )


def _line_head(conn: Connection, own: Ownership, line: int) -> int:
    found = conn.execute(
        select(func.max(EVENT.c.line_seq)).where(
            EVENT.c.rollout == own.rollout, EVENT.c.line == line, EVENT.c.attempt == own.attempt
        )
    ).scalar_one_or_none()
    return int(found or 0)


def _fenced(conn: Connection, own: Ownership) -> Fenced | NotFound:
    row = conn.execute(
        select(ROLLOUT.c.owner, ROLLOUT.c.term).where(ROLLOUT.c.id == own.rollout)
    ).one_or_none()
    if row is None:
        return NotFound(
            f"there is no rollout {own.rollout}", remedy="List the rollouts with `bench ls`"
        )
    return Fenced(
        f"rollout {own.rollout} is at term {row.term} (owner {row.owner or 'none'}), "
        f"this writer holds term {own.term}",
        where=f"engine {own.engine}",
        remedy="Stop writing: another engine took the rollout over",
    )


def bump(conn: Connection) -> int:
    """The next revision, taken inside the transaction whose change it marks."""
    value = conn.execute(
        update(COUNTER)
        .where(COUNTER.c.name == REVISION)
        .values(value=COUNTER.c.value + 1)
        .returning(COUNTER.c.value)
    ).scalar_one()
    return int(value)


def touch_rollout(conn: Connection, rollout: str) -> int:
    """Count a rollout's open requests anew and move it up the list; returns the revision."""
    revision = bump(conn)
    waiting = (
        select(func.count())
        .select_from(REQUEST)
        .where(REQUEST.c.rollout == rollout, REQUEST.c.state == "open")
        .scalar_subquery()
    )
    conn.execute(
        update(ROLLOUT).where(ROLLOUT.c.id == rollout).values(waiting=waiting, revision=revision)
    )
    return revision
