"""Requests: the one inbox, and the rule that the first valid answer wins.

Invariant: a request leaves the state ``open`` exactly once, by one statement that
also looks at the deadline, in whatever process; everybody else gets a Conflict
that says who did what and when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from sqlalchemy import Connection, RowMapping, case, insert, literal, null, select, update

from core.contracts.errors import Conflict, NotFound, UsageError
from core.contracts.store import (
    Event,
    EventDraft,
    NewRequest,
    Ownership,
    RequestRecord,
    RequestState,
)
from core.contracts.values import JsonObject
from core.store import payload
from core.store.append import bump, check_owner, touch_rollout
from core.store.database import Database
from core.store.doorbell import Doorbell
from core.store.ids import new_id
from core.store.tables import REQUEST

OPEN, WITHDRAWN = RequestState.OPEN.value, RequestState.WITHDRAWN.value
DEADLINE_ACTOR = "deadline"
"""Who is named as the actor when nobody answered in time."""


class Act(Protocol):
    """Events and other rows in one durable, fenced transaction (``SqlLog.act``)."""

    def __call__(
        self,
        own: Ownership,
        drafts: tuple[EventDraft, ...],
        name: str,
        extra: Callable[[Connection], None],
    ) -> Awaitable[tuple[Event, ...]]: ...


class SqlRequests:
    """Implements ``Requests``."""

    def __init__(
        self, database: Database, doorbell: Doorbell, clock: Callable[[], float], act: Act
    ) -> None:
        self._database = database
        self._doorbell = doorbell
        self._clock = clock
        self._act = act

    async def open(self, own: Ownership, new: NewRequest) -> RequestRecord:
        now = self._clock()

        def work(conn: Connection) -> RequestRecord:
            check_owner(conn, own)
            return _open(conn, own, new, now)

        return await self._database.write(
            "open_request", work, durable=True, topics=("", own.rollout)
        )

    async def get(self, ref: str) -> RequestRecord:
        """By id, unique prefix of an id, or ``last`` (the newest that is open)."""
        return await self._database.read(lambda conn: to_request(_find(conn, ref)))

    async def select(
        self, *, rollout: str | None = None, open_only: bool = True, limit: int = 200
    ) -> list[RequestRecord]:
        """Oldest first: who has waited longest comes first."""
        query = select(REQUEST).order_by(REQUEST.c.opened_at, REQUEST.c.id).limit(limit)
        if rollout is not None:
            query = query.where(REQUEST.c.rollout == rollout)
        if open_only:
            query = query.where(REQUEST.c.state == OPEN)
        return await self._database.read(
            lambda conn: [to_request(row) for row in conn.execute(query).mappings()]
        )

    async def answer(
        self, request: str, answer: JsonObject, *, actor: str, via: str, idem_key: str
    ) -> RequestRecord:
        now = self._clock()
        values = {
            "answer": payload.dump(answer),
            "actor": payload.clean(actor),
            "via": payload.clean(via),
            "idem_key": idem_key,
        }

        # The outcome is returned, not raised: a late answer still commits the default.
        def work(conn: Connection) -> tuple[RequestRecord, bool]:
            settled = _settle(conn, request, now, values)
            row = settled or _get(conn, request)
            return to_request(row), row["idem_key"] == idem_key

        record, mine = await self._database.write("answer", work, durable=True, topics=("",))
        if not mine or record.state is RequestState.WITHDRAWN:
            raise _too_late(record)
        return record

    async def save_draft(self, request: str, text: str) -> RequestRecord:
        clean = str(payload.clean(text))

        def work(conn: Connection) -> RequestRecord:
            changed = conn.execute(
                update(REQUEST)
                .where(REQUEST.c.id == request, REQUEST.c.state == OPEN)
                .values(draft=clean, revision=bump(conn))
            )
            record = to_request(_get(conn, request))
            if changed.rowcount == 0:
                raise _too_late(record)
            return record

        return await self._database.write("draft", work, durable=False, topics=("",))

    async def wait(self, request: str) -> RequestRecord:
        while True:
            mark = self._doorbell.mark("")
            record = await self.get(request)
            if record.state is not RequestState.OPEN:
                return record
            left = self._doorbell.poll
            if record.deadline_at is not None:
                left = record.deadline_at - self._clock()
            if left <= 0:
                record = await self._expire(request)
                if record.state is not RequestState.OPEN:
                    return record
            await self._doorbell.wait("", mark, left)

    async def _expire(self, request: str) -> RequestRecord:
        now = self._clock()

        def work(conn: Connection) -> RequestRecord:
            return to_request(_settle(conn, request, now, None) or _get(conn, request))

        return await self._database.write("expire", work, durable=True, topics=("",))

    async def deliver(self, own: Ownership, request: str, *drafts: EventDraft) -> tuple[Event, ...]:
        return await self._act(
            own, drafts, "deliver", partial(_deliver, own=own, request=request, now=self._clock())
        )

    async def withdraw(self, own: Ownership, *, line: int | None = None) -> int:
        def work(conn: Connection) -> int:
            check_owner(conn, own)
            which = [REQUEST.c.rollout == own.rollout, REQUEST.c.state == OPEN]
            if line is not None:
                which.append(REQUEST.c.line == line)
            values = {"state": WITHDRAWN, "revision": bump(conn)}
            closed = conn.execute(update(REQUEST).where(*which).values(values)).rowcount
            touch_rollout(conn, own.rollout)
            return closed

        return await self._database.write("withdraw", work, durable=True, topics=("", own.rollout))


def _settle(
    conn: Connection, request: str, now: float, answer: Mapping[str, object] | None
) -> RowMapping | None:
    """Close an open request in one statement: by its deadline when that has passed,
    else by ``answer``. None when it was not open, or not yet due and no answer given."""
    late = (REQUEST.c.deadline_at.is_not(None)) & (REQUEST.c.deadline_at <= now)
    given = answer or {"answer": None, "actor": None, "via": None, "idem_key": None}
    values = {
        "state": case((late, RequestState.EXPIRED.value), else_=RequestState.ANSWERED.value),
        "answer": case((late, REQUEST.c.fallback), else_=literal(given["answer"])),
        "actor": case((late, DEADLINE_ACTOR), else_=literal(given["actor"])),
        "via": case((late, DEADLINE_ACTOR), else_=literal(given["via"])),
        "idem_key": case((late, null()), else_=literal(given["idem_key"])),
        "answered_at": now,
        "revision": bump(conn),
    }
    which = (REQUEST.c.id == request) & (REQUEST.c.state == OPEN)
    if answer is None:
        which &= late
    row = (
        conn.execute(update(REQUEST).where(which).values(values).returning(REQUEST))
        .mappings()
        .one_or_none()
    )
    if row is not None:
        touch_rollout(conn, row["rollout"])
    return row


def _open(conn: Connection, own: Ownership, new: NewRequest, now: float) -> RequestRecord:
    digest = payload.digest({"kind": new.kind, "question": new.question})
    row = _raised_before(conn, own, new, digest)
    if row is not None:
        return _raise_again(conn, own, new, row, now)
    values = {
        "id": new_id(),
        "rollout": own.rollout,
        "line": new.line,
        "node": new.node,
        "ask_index": new.ask_index,
        "kind": new.kind,
        "digest": digest,
        "question": payload.dump(new.question),
        "fallback": payload.dump(new.default),
        "state": OPEN,
        "deadline_at": _deadline(new, now),
        "opened_at": now,
        "draft": "",
        "term": own.term,
        "attempt": own.attempt,
        "revision": bump(conn),
    }
    made = conn.execute(insert(REQUEST).values(values).returning(REQUEST)).mappings().one()
    touch_rollout(conn, own.rollout)
    return to_request(made)


def _deadline(new: NewRequest, now: float) -> float | None:
    return None if new.deadline_seconds is None else now + new.deadline_seconds


def _raised_before(
    conn: Connection, own: Ownership, new: NewRequest, digest: str
) -> RowMapping | None:
    """The same ask of this line, or else of an earlier, dead attempt (whose line differs)."""
    rows = (
        conn.execute(
            select(REQUEST)
            .where(
                REQUEST.c.rollout == own.rollout,
                REQUEST.c.ask_index == new.ask_index,
                REQUEST.c.digest == digest,
            )
            .order_by(REQUEST.c.attempt.desc(), REQUEST.c.line)
        )
        .mappings()
        .all()
    )
    for row in rows:
        if row["line"] == new.line and row["attempt"] == own.attempt:
            return row
    earlier = [row for row in rows if row["attempt"] < own.attempt and row["state"] != WITHDRAWN]
    return earlier[0] if earlier else None


def _raise_again(
    conn: Connection, own: Ownership, new: NewRequest, row: RowMapping, now: float
) -> RequestRecord:
    """Give an earlier request to the owner that asks it now. Its answer, draft and
    deadline stay; what was delivered to a dead owner is delivered again, and what
    was withdrawn is open again with a new deadline."""
    if row["term"] == own.term and row["state"] != WITHDRAWN:
        return to_request(row)
    values: dict[str, object] = {
        "line": new.line,
        "node": new.node,
        "term": own.term,
        "attempt": own.attempt,
        "delivered_at": None,
        "revision": bump(conn),
    }
    if row["state"] == RequestState.DELIVERED.value:
        values["state"] = RequestState.ANSWERED.value
    if row["state"] == WITHDRAWN:
        values |= {"state": OPEN, "opened_at": now, "deadline_at": _deadline(new, now)}
    moved = (
        conn.execute(
            update(REQUEST).where(REQUEST.c.id == row["id"]).values(values).returning(REQUEST)
        )
        .mappings()
        .one()
    )
    touch_rollout(conn, own.rollout)
    return to_request(moved)


def _deliver(conn: Connection, own: Ownership, request: str, now: float) -> None:
    """Once per owner: an expired request keeps its state, so that it shows why."""
    answered, delivered = RequestState.ANSWERED.value, RequestState.DELIVERED.value
    changed = conn.execute(
        update(REQUEST)
        .where(
            REQUEST.c.id == request,
            REQUEST.c.rollout == own.rollout,
            REQUEST.c.state.in_([answered, RequestState.EXPIRED.value]),
            REQUEST.c.delivered_at.is_(None),
        )
        .values(
            state=case((REQUEST.c.state == answered, delivered), else_=REQUEST.c.state),
            delivered_at=now,
            term=own.term,
            revision=bump(conn),
        )
    )
    if changed.rowcount == 0:
        row = _get(conn, request)
        raise Conflict(
            f"request {request} of rollout {row['rollout']} cannot be delivered: it is "
            + ("delivered already" if row["delivered_at"] else str(row["state"])),
            remedy="Wait for its answer, and deliver it once",
        )


def _get(conn: Connection, request: str) -> RowMapping:
    row = conn.execute(select(REQUEST).where(REQUEST.c.id == request)).mappings().one_or_none()
    if row is None:
        raise _no_request(request)
    return row


def _find(conn: Connection, ref: str) -> RowMapping:
    query = select(REQUEST).order_by(REQUEST.c.opened_at.desc(), REQUEST.c.id.desc())
    if ref == "last":
        found = conn.execute(query.where(REQUEST.c.state == OPEN).limit(1)).mappings().all()
    else:
        found = conn.execute(query.where(REQUEST.c.id == ref)).mappings().all()
        if not found and ref:
            prefix = REQUEST.c.id.startswith(ref, autoescape=True)
            found = conn.execute(query.where(prefix).limit(5)).mappings().all()
    if not found:
        raise _no_request(ref)
    if len(found) > 1:
        names = ", ".join(row["id"] for row in found)
        raise UsageError(f"{ref!r} fits more than one request: {names}", remedy="Type more of it")
    return found[0]


def _no_request(ref: str) -> NotFound:
    return NotFound(f"there is no request {ref!r}", remedy="List what is open with `bench answer`")


def _too_late(record: RequestRecord) -> Conflict:
    moment = _clock_time(record.answered_at)
    if record.state is RequestState.WITHDRAWN:
        what = "was withdrawn: nobody waits for it any more"
    elif record.state is RequestState.EXPIRED:
        what = f"ran out at {moment} and its default was taken: {payload.dump(record.answer)}"
    else:
        what = (
            f"was answered by {record.actor} ({record.via}) at {moment}: "
            f"{payload.dump(record.answer)}"
        )
    return Conflict(
        f"request {record.id} {what}",
        where=f"rollout {record.rollout}, node {record.node}",
        remedy="To try another answer, branch from that node",
    )


def _clock_time(at: float | None) -> str:
    return datetime.fromtimestamp(at or 0.0, UTC).strftime("%H:%M:%S UTC")


def to_request(row: RowMapping) -> RequestRecord:
    return RequestRecord(
        id=row["id"],
        rollout=row["rollout"],
        line=row["line"],
        node=row["node"],
        ask_index=row["ask_index"],
        kind=row["kind"],
        question=payload.load(row["question"]),
        default=payload.load(row["fallback"]),
        state=RequestState(row["state"]),
        answer=None if row["answer"] is None else payload.load(row["answer"]),
        actor=row["actor"],
        via=row["via"],
        deadline_at=row["deadline_at"],
        opened_at=row["opened_at"],
        answered_at=row["answered_at"],
        draft=row["draft"],
        revision=row["revision"],
    )
