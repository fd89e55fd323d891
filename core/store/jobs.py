"""Jobs, and the slots that say how much may run at once over every engine of a store.

Invariant: slots are given out in the order they were asked for; a dead engine
holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from core.contracts.errors import Conflict, NotFound, UsageError
from core.contracts.store import JobRecord
from core.contracts.values import JsonObject
from core.store import payload
from core.store.append import bump
from core.store.database import Database
from core.store.doorbell import Doorbell
from core.store.engines import find_engine, lives
from core.store.tables import JOB, SLOT


class SqlJobs:
    """Implements ``Jobs``."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def create(self, id: str, folder: str, config: JsonObject) -> JobRecord:
        now = self._clock()

        def work(conn: Connection) -> JobRecord:
            if conn.execute(select(JOB.c.id).where(JOB.c.id == id)).first() is not None:
                raise Conflict(f"there is a job {id} already")
            conn.execute(
                insert(JOB).values(
                    id=id,
                    folder=folder,
                    config=payload.dump(config),
                    revision=bump(conn),
                    created_at=now,
                )
            )
            return _find_job(conn, id)

        return await self._database.write("job", work, durable=True, topics=("",))

    async def get(self, ref: str) -> JobRecord:
        """By id, unique prefix of an id, or ``last``."""
        return await self._database.read(lambda conn: _find_job(conn, ref))

    async def end(self, id: str) -> None:
        now = self._clock()

        def work(conn: Connection) -> None:
            job = _find_job(conn, id)
            conn.execute(
                update(JOB).where(JOB.c.id == job.id).values(ended_at=now, revision=bump(conn))
            )

        await self._database.write("job_end", work, durable=True, topics=("",))

    async def select(self, *, limit: int = 100) -> list[JobRecord]:
        query = select(JOB).order_by(JOB.c.created_at.desc(), JOB.c.id.desc()).limit(limit)
        return await self._database.read(
            lambda conn: [_to_job(row) for row in conn.execute(query).mappings()]
        )


def _find_job(conn: Connection, ref: str) -> JobRecord:
    query = select(JOB).order_by(JOB.c.created_at.desc(), JOB.c.id.desc())
    if ref == "last":
        found = conn.execute(query.limit(1)).mappings().all()
    else:
        found = conn.execute(query.where(JOB.c.id == ref)).mappings().all()
        if not found and ref:
            prefix = JOB.c.id.startswith(ref, autoescape=True)
            found = conn.execute(query.where(prefix).limit(5)).mappings().all()
    if not found:
        raise NotFound(f"there is no job {ref!r}", remedy="List the jobs with `bench ls`")
    if len(found) > 1:
        names = ", ".join(row["id"] for row in found)
        raise UsageError(f"{ref!r} fits more than one job: {names}", remedy="Type more of it")
    return _to_job(found[0])


def _to_job(row: RowMapping) -> JobRecord:
    return JobRecord(**{**row, "config": payload.load(row["config"])})


class SqlSlots:
    """Implements ``Slots``."""

    def __init__(self, database: Database, doorbell: Doorbell, clock: Callable[[], float]) -> None:
        self._database = database
        self._doorbell = doorbell
        self._clock = clock

    async def acquire(self, engine: str, rollout: str, *, limit: int) -> None:
        def work(conn: Connection) -> bool:
            return _try_slot(conn, engine, rollout, limit, self._clock())

        try:
            while True:
                mark = self._doorbell.mark("")
                if await self._database.write("slot", work, durable=False):
                    return
                await self._doorbell.wait("", mark)
        except asyncio.CancelledError:
            # The place in the queue must not outlive the one who stood there.
            await asyncio.shield(self.release(engine, rollout))
            raise

    async def release(self, engine: str, rollout: str) -> None:
        def work(conn: Connection) -> None:
            conn.execute(delete(SLOT).where(SLOT.c.engine == engine, SLOT.c.rollout == rollout))

        await self._database.write("slot_release", work, durable=False, topics=("",))


def _try_slot(conn: Connection, engine: str, rollout: str, limit: int, now: float) -> bool:
    """Take a place in the queue, and the slot when it is this one's turn."""
    for owner in conn.execute(select(SLOT.c.engine).distinct()).scalars().all():
        record = find_engine(conn, owner)
        if record is None or not lives(record, now):
            conn.execute(delete(SLOT).where(SLOT.c.engine == owner))
    mine = conn.execute(select(SLOT).where(SLOT.c.rollout == rollout)).mappings().one_or_none()
    if mine is not None and mine["engine"] != engine:
        conn.execute(delete(SLOT).where(SLOT.c.n == mine["n"]))
        mine = None
    if mine is None:
        conn.execute(insert(SLOT).values(engine=engine, rollout=rollout, held=False))
        mine = conn.execute(select(SLOT).where(SLOT.c.rollout == rollout)).mappings().one()
    if mine["held"]:
        return True
    ahead = conn.execute(
        select(func.count()).select_from(SLOT).where(SLOT.c.held | (SLOT.c.n < mine["n"]))
    ).scalar_one()
    if ahead >= limit:
        return False
    conn.execute(update(SLOT).where(SLOT.c.n == mine["n"]).values(held=True))
    return True
