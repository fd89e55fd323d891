"""The list of rollouts, and who owns each.

Invariant: at most one ownership of a rollout is valid: the one whose engine and
term are in its row. Every change of a row takes the next revision.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy import Connection, RowMapping, insert, select, update

from core.contracts.errors import Conflict, NotFound, StoreError, UsageError
from core.contracts.store import NewRollout, Ownership, RolloutRecord, RolloutState
from core.contracts.values import JsonValue
from core.store import payload
from core.store.append import bump, check_owner
from core.store.database import Database
from core.store.engines import LEASE_SECONDS, find_engine, live_owner
from core.store.tables import ROLLOUT

_FIELDS: Mapping[str, tuple[type, ...]] = {
    "state": (str,),
    "phase": (str,),
    "steps": (int,),
    "waiting": (int,),
    "reward": (int, float, type(None)),
    "error": (str, type(None)),
    "error_category": (str, type(None)),
    "assisted": (bool,),
    "folder": (str,),
    "model": (str, type(None)),
    "agent": (str,),
    "sandbox": (str,),
    "user": (str,),
    "task": (str,),
    "task_digest": (str,),
    "config": (dict,),
    "started_at": (int, float, type(None)),
    "ended_at": (int, float, type(None)),
}
"""What ``update`` may change."""


class SqlRollouts:
    """Implements ``Rollouts``."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        flush: Callable[[Ownership], Awaitable[None]],
    ) -> None:
        self._database = database
        self._clock = clock
        self._flush = flush

    async def create(self, engine: str, new: NewRollout) -> Ownership:
        now = self._clock()
        await self._database.write(
            "create", lambda conn: _create(conn, engine, new, now), durable=True, topics=("",)
        )
        return Ownership(new.id, engine, term=1, attempt=1)

    async def claim(self, engine: str, rollout: str, *, new_attempt: bool = False) -> Ownership:
        now = self._clock()
        return await self._database.write(
            "claim",
            lambda conn: _claim(conn, engine, rollout, new_attempt, now),
            durable=True,
            topics=("", rollout),
        )

    async def release(self, own: Ownership) -> None:
        await self._flush(own)

        def work(conn: Connection) -> None:
            check_owner(conn, own)
            _change(conn, own.rollout, {"owner": None, "lease_until": 0.0})

        await self._database.write("release", work, durable=False, topics=("", own.rollout))

    async def update(self, own: Ownership, **fields: JsonValue) -> None:
        """Final states are durable at once, and so is all that was recorded before."""
        values = _checked(fields)
        final = "state" in values and RolloutState(str(values["state"])).final
        if final:
            await self._flush(own)
        now = self._clock()

        def work(conn: Connection) -> None:
            check_owner(conn, own)
            _change(conn, own.rollout, {**_times(conn, own.rollout, values, now), **values})

        await self._database.write("update", work, durable=final, topics=("", own.rollout))

    async def get(self, ref: str) -> RolloutRecord:
        return await self._database.read(lambda conn: to_rollout(find_rollout(conn, ref)))

    async def select(
        self,
        *,
        job: str | None = None,
        states: Sequence[RolloutState] = (),
        after_revision: int = 0,
        limit: int = 200,
    ) -> list[RolloutRecord]:
        query = select(ROLLOUT).limit(limit)
        if job is not None:
            query = query.where(ROLLOUT.c.job == job)
        if states:
            query = query.where(ROLLOUT.c.state.in_([state.value for state in states]))
        if after_revision:
            query = query.where(ROLLOUT.c.revision > after_revision).order_by(ROLLOUT.c.revision)
        else:
            query = query.order_by(ROLLOUT.c.created_at.desc(), ROLLOUT.c.id.desc())
        return await self._database.read(
            lambda conn: [to_rollout(row) for row in conn.execute(query).mappings()]
        )

    async def orphans(self) -> list[RolloutRecord]:
        now = self._clock()
        open_states = [state.value for state in RolloutState if not state.final]

        def work(conn: Connection) -> list[RolloutRecord]:
            # A final one that is still owned died between its last row and its seal.
            unfinished = ROLLOUT.c.state.in_(open_states) | ROLLOUT.c.owner.is_not(None)
            query = select(ROLLOUT).where(unfinished).order_by(ROLLOUT.c.id)
            return [
                to_rollout(row)
                for row in conn.execute(query).mappings().all()
                if live_owner(conn, row["owner"], row["lease_until"], now) is None
            ]

        return await self._database.read(work)


def _create(conn: Connection, engine: str, new: NewRollout, now: float) -> None:
    taken = conn.execute(
        select(ROLLOUT.c.id).where((ROLLOUT.c.id == new.id) | (ROLLOUT.c.name == new.name))
    ).first()
    if taken is not None:
        raise Conflict(f"there is a rollout {new.name} ({taken.id}) already")
    if find_engine(conn, engine) is None:
        raise NotFound(f"engine {engine} is not registered")
    conn.execute(
        insert(ROLLOUT).values(
            id=new.id,
            job=new.job,
            name=new.name,
            task=new.task,
            task_digest=new.task_digest,
            agent=new.agent,
            model=new.model,
            sandbox=new.sandbox,
            user=new.user,
            folder=new.folder,
            config=payload.dump(new.config),
            state=RolloutState.QUEUED.value,
            phase="",
            owner=engine,
            term=1,
            attempt=1,
            lease_until=now + LEASE_SECONDS,
            head_seq=0,
            steps=0,
            waiting=0,
            assisted=False,
            revision=bump(conn),
            created_at=now,
        )
    )


def _claim(conn: Connection, engine: str, rollout: str, new_attempt: bool, now: float) -> Ownership:
    row = (
        conn.execute(select(ROLLOUT).where(ROLLOUT.c.id == rollout).with_for_update())
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise no_rollout(rollout)
    if find_engine(conn, engine) is None:
        raise NotFound(f"engine {engine} is not registered")
    owner = live_owner(conn, row["owner"], row["lease_until"], now)
    # An engine that retries its own rollout fences its own earlier attempt.
    retries = owner is not None and owner.id == engine and new_attempt
    if owner is not None and not retries:
        raise Conflict(
            f"rollout {rollout} is owned by process {owner.pid} on {owner.host}",
            where=f"engine {owner.id}, term {row['term']}",
            remedy="Send it a command, or wait until it has ended",
        )
    own = Ownership(rollout, engine, row["term"] + 1, row["attempt"] + int(new_attempt))
    lease = now + LEASE_SECONDS
    fields = {"owner": engine, "term": own.term, "attempt": own.attempt, "lease_until": lease}
    _change(conn, rollout, fields)
    return own


def _change(conn: Connection, rollout: str, fields: Mapping[str, object]) -> None:
    conn.execute(
        update(ROLLOUT).where(ROLLOUT.c.id == rollout).values({**fields, "revision": bump(conn)})
    )


def _times(
    conn: Connection, rollout: str, values: Mapping[str, object], now: float
) -> dict[str, float]:
    """When it first ran and when it ended, unless the caller says so itself."""
    if "state" not in values:
        return {}
    state = RolloutState(str(values["state"]))
    if state.final:
        return {"ended_at": now}
    started = conn.execute(select(ROLLOUT.c.started_at).where(ROLLOUT.c.id == rollout)).scalar()
    return {"started_at": now} if state is RolloutState.RUNNING and started is None else {}


def _checked(fields: Mapping[str, JsonValue]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in fields.items():
        if not _fits(value, _FIELDS.get(name, ())):
            raise StoreError(
                f"a rollout has no field {name!r} that can be set to {value!r}",
                remedy=f"Fields: {', '.join(_FIELDS)}",
            )
        values[name] = payload.dump(value) if isinstance(value, dict) else payload.clean(value)
    if "state" in values:
        values["state"] = RolloutState(str(values["state"])).value
    return values


def _fits(value: JsonValue, allowed: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, allowed)


def no_rollout(ref: str) -> NotFound:
    return NotFound(f"there is no rollout {ref!r}", remedy="List the rollouts with `bench ls`")


def find_rollout(conn: Connection, ref: str) -> RowMapping:
    """By id, name, ``last``, or unique prefix of an id."""
    query = select(ROLLOUT).order_by(ROLLOUT.c.created_at.desc(), ROLLOUT.c.id.desc())
    if ref == "last":
        found = conn.execute(query.limit(1)).mappings().all()
    else:
        found = (
            conn.execute(query.where((ROLLOUT.c.id == ref) | (ROLLOUT.c.name == ref)))
            .mappings()
            .all()
        )
        if not found and ref:
            prefix = ROLLOUT.c.id.startswith(ref, autoescape=True)
            found = conn.execute(query.where(prefix).limit(5)).mappings().all()
    if not found:
        raise no_rollout(ref)
    if len(found) > 1:
        names = ", ".join(row["id"] for row in found)
        raise UsageError(f"{ref!r} fits more than one rollout: {names}", remedy="Type more of it")
    return found[0]


def to_rollout(row: RowMapping) -> RolloutRecord:
    fields = dict(row)
    fields["state"] = RolloutState(fields["state"])
    fields["config"] = payload.load(fields["config"])
    return RolloutRecord(**fields)
