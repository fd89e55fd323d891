"""The store on SQL: composition of its parts over one database and one folder.

``<folder>/`` (mode 0700) holds ``store.db``, ``blobs/`` and ``bells/``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, select

from core.contracts.errors import StoreError
from core.contracts.store import (
    Blobs,
    Commands,
    Engines,
    EventLog,
    Jobs,
    Requests,
    Rollouts,
    Slots,
)
from core.store import fsck, schema
from core.store.append import REVISION
from core.store.blobs import FileBlobs, file_trouble
from core.store.commands import SqlCommands
from core.store.database import Database
from core.store.doorbell import POLL, Doorbell
from core.store.engines import SqlEngines
from core.store.ids import new_id
from core.store.jobs import SqlJobs, SqlSlots
from core.store.log import SqlLog
from core.store.requests import SqlRequests
from core.store.rollouts import SqlRollouts
from core.store.tables import COUNTER


class SqlStore:
    """Implements ``Store`` on SQLite in ``folder``, or on the database at ``url``.

    ``clock`` gives Unix seconds; leases and deadlines are measured by it. ``poll`` is
    how many seconds a wait may last without looking again, should a bell be missed.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        poll: float = POLL,
    ) -> None:
        self.folder = folder.absolute()
        self.database = Database(self.folder, url, self._committed)
        self.doorbell = Doorbell(self.folder / "bells", new_id(), poll)
        self.files = FileBlobs(self.folder / "blobs", self.database)
        self.events = SqlLog(self.database, self.doorbell, self.files, clock)
        self.log: EventLog = self.events
        self.rollouts: Rollouts = SqlRollouts(self.database, clock, self.events.flush)
        self.engines: Engines = SqlEngines(self.database, self.doorbell.name, clock)
        self.requests: Requests = SqlRequests(self.database, self.doorbell, clock, self.events.act)
        self.commands: Commands = SqlCommands(self.database, self.doorbell, clock, self.events.act)
        self.jobs: Jobs = SqlJobs(self.database, clock)
        self.slots: Slots = SqlSlots(self.database, self.doorbell, clock)
        self.blobs: Blobs = self.files

    async def open(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self.doorbell.open()
        except OSError as error:
            raise file_trouble(error, self.folder) from error
        await self.database.open()
        if not await self.database.read(schema.is_current):
            await self.database.write("schema", schema.prepare, durable=True)

    async def revision(self) -> int:
        return await self.database.read(_revision)

    async def changed(self, after: int, *, timeout: float) -> int:
        give_up = time.monotonic() + timeout
        while True:
            mark = self.doorbell.mark("")
            revision = await self.revision()
            left = give_up - time.monotonic()
            if revision > after or left <= 0:
                return revision
            await self.doorbell.wait("", mark, left)

    async def fsck(self) -> list[str]:
        """What does not agree in rows, log, blobs and bundles; empty when all is well."""
        return await fsck.fsck(self.database, self.files)

    async def reindex(self, folder: Path) -> int:
        """Rebuild rows from the sealed bundles under a folder; how many rollouts changed."""
        return await fsck.reindex(self.database, self.files, folder)

    async def close(self) -> None:
        """Commits what recorders still hold. Their failures were told to their writers."""
        for recorder in self.events.open_recorders():
            with contextlib.suppress(StoreError):
                await recorder.close()
        self.doorbell.close()
        await self.database.close()

    def _committed(self, topics: tuple[str, ...]) -> None:
        for topic in topics:
            self.doorbell.ring(topic)


def _revision(conn: Connection) -> int:
    return int(conn.execute(select(COUNTER.c.value).where(COUNTER.c.name == REVISION)).scalar_one())
