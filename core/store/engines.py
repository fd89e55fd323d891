"""Engines: every process that hosts the engine, and whether it lives.

An engine of this host lives when its process does (same start time, same boot)
and its heartbeat is fresh; one of another host when its heartbeat is fresh. A
stopped process whose heartbeat went stale may be fenced off.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sqlalchemy import Connection, RowMapping, delete, exists, insert, select, update

from core.contracts.errors import NotFound
from core.contracts.store import EngineRecord
from core.store import host
from core.store.append import bump
from core.store.database import Database
from core.store.ids import new_id
from core.store.tables import ENGINE, ROLLOUT, SLOT

LEASE_SECONDS = 15.0
HEARTBEAT_SECONDS = 3.0
"""How often the host of an engine must call ``beat``."""


class SqlEngines:
    """Implements ``Engines``."""

    def __init__(self, database: Database, name: str, clock: Callable[[], float]) -> None:
        self._database = database
        self._unused_name: str | None = name
        self._clock = clock

    async def register(self) -> str:
        """The first engine of an open store is named like its bell."""
        name, self._unused_name = self._unused_name or new_id(), None
        record = _this_process(name, self._clock())
        await self._database.write("register", lambda conn: _register(conn, record), durable=False)
        return record.id

    async def beat(self, engine: str) -> None:
        now = self._clock()
        await self._database.write("beat", lambda conn: _beat(conn, engine, now), durable=False)

    async def live(self) -> list[EngineRecord]:
        now = self._clock()

        def work(conn: Connection) -> list[EngineRecord]:
            rows = conn.execute(select(ENGINE).order_by(ENGINE.c.id)).mappings()
            return [record for row in rows if lives(record := to_engine(row), now)]

        return await self._database.read(work)

    async def deregister(self, engine: str) -> None:
        """Also gives up what the engine still owns, so that others need not wait for its lease."""

        def work(conn: Connection) -> None:
            conn.execute(delete(SLOT).where(SLOT.c.engine == engine))
            conn.execute(
                update(ROLLOUT)
                .where(ROLLOUT.c.owner == engine)
                .values(owner=None, lease_until=0.0, revision=bump(conn))
            )
            conn.execute(delete(ENGINE).where(ENGINE.c.id == engine))

        await self._database.write("deregister", work, durable=False, topics=("",))


def _this_process(name: str, now: float) -> EngineRecord:
    pid = os.getpid()
    return EngineRecord(
        id=name,
        host=host.host_name(),
        pid=pid,
        pid_start=host.process_start(pid) or 0,
        boot_id=host.boot_id(),
        heartbeat=now,
    )


def _register(conn: Connection, record: EngineRecord) -> None:
    """Insert the engine, and drop rows of dead ones that nothing refers to any more."""
    unused = select(ENGINE).where(
        ~exists().where(ROLLOUT.c.owner == ENGINE.c.id),
        ~exists().where(SLOT.c.engine == ENGINE.c.id),
    )
    for row in conn.execute(unused).mappings().all():
        if not lives(to_engine(row), record.heartbeat):
            conn.execute(delete(ENGINE).where(ENGINE.c.id == row["id"]))
    conn.execute(
        insert(ENGINE).values(
            id=record.id,
            host=record.host,
            pid=record.pid,
            pid_start=record.pid_start,
            boot_id=record.boot_id,
            heartbeat=record.heartbeat,
        )
    )


def _beat(conn: Connection, engine: str, now: float) -> None:
    found = conn.execute(update(ENGINE).where(ENGINE.c.id == engine).values(heartbeat=now))
    if found.rowcount == 0:
        raise NotFound(
            f"engine {engine} is not registered any more",
            remedy="It was silent for too long and was removed; register again",
        )
    conn.execute(
        update(ROLLOUT).where(ROLLOUT.c.owner == engine).values(lease_until=now + LEASE_SECONDS)
    )


def to_engine(row: RowMapping) -> EngineRecord:
    return EngineRecord(
        id=row["id"],
        host=row["host"],
        pid=row["pid"],
        pid_start=row["pid_start"],
        boot_id=row["boot_id"],
        heartbeat=row["heartbeat"],
    )


def find_engine(conn: Connection, engine: str | None) -> EngineRecord | None:
    if engine is None:
        return None
    row = conn.execute(select(ENGINE).where(ENGINE.c.id == engine)).mappings().one_or_none()
    return None if row is None else to_engine(row)


def lives(engine: EngineRecord, now: float, lease_until: float = 0.0) -> bool:
    """Whether an engine may still be trusted to hold what it owns."""
    process = host.process_lives(
        host=engine.host, pid=engine.pid, start=engine.pid_start, boot=engine.boot_id
    )
    if process is False:
        return False
    return now < engine.heartbeat + LEASE_SECONDS or now < lease_until


def live_owner(
    conn: Connection, owner: str | None, lease_until: float, now: float
) -> EngineRecord | None:
    """The engine that owns a rollout, if it lives."""
    engine = find_engine(conn, owner)
    if engine is None or not lives(engine, now, lease_until):
        return None
    return engine
