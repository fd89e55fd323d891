"""One writer thread, one reader thread, each with its own connection.

Invariant: a transaction begins and ends inside one call on its thread. Whatever
happens to the coroutine that waits for it, it is committed whole or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from core.contracts.errors import ConfigError, StoreBusy, StoreError, StoreFull
from core.store import effects, sqlite

T = TypeVar("T")

_TRIES = 2
_SQLSTATES = {"53100": "full", "55P03": "busy", "40001": "busy", "40P01": "busy"}
"""PostgreSQL's words for a full disk, a lock not had, and lost races."""


class Database:
    """The connections of one store. ``committed`` is called on the event loop with the
    topics of each transaction that was committed."""

    def __init__(
        self, folder: Path, url: str | None, committed: Callable[[tuple[str, ...]], None]
    ) -> None:
        self.folder = folder
        self._committed = committed
        self._url = url or f"sqlite:///{folder / 'store.db'}"
        try:
            self.is_sqlite = make_url(self._url).get_backend_name() == "sqlite"
        except ArgumentError as error:
            raise ConfigError(
                f"{self._url!r} is not a database URL",
                remedy="Use sqlite:///FILE or postgresql+psycopg://HOST/NAME",
            ) from error
        self._where = "store.db in " + str(folder) if self.is_sqlite else "the database server"
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._connections: dict[str, Connection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        give_up = time.monotonic() + sqlite.BUSY_SECONDS
        while True:
            try:
                await self._loop.run_in_executor(self._writer, self._connect, "writer")
            except StoreBusy:
                # SQLite does not wait for the lock when two processes create the
                # file at once; there is no event to wait for either.
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.02)
            else:
                return

    async def close(self) -> None:
        if self._closed or self._loop is None:
            return
        self._closed = True
        await self._loop.run_in_executor(self._reader, self._disconnect, "reader")
        await self._loop.run_in_executor(self._writer, self._disconnect, "writer")
        self._reader.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    async def write(
        self,
        name: str,
        work: Callable[[Connection], T],
        *,
        durable: bool,
        topics: tuple[str, ...] = (),
    ) -> T:
        """Run ``work`` in one writing transaction named ``name`` (see ``effects``).

        Waits 5 s for a lock, tries once more, then raises StoreBusy; no space
        raises StoreFull. ``work`` may run twice, so it touches only the connection.
        """
        return await self._run(self._writer, lambda: self._transact(name, work, durable, topics))

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._run(self._reader, lambda: self._look(work))

    async def file_work(self, work: Callable[[], T]) -> T:
        """Blocking file work, in line with the writes."""
        return await self._run(self._writer, work)

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._loop is None or self._closed:
            raise StoreError("the store is not open", where=self._where, remedy="Call open() first")
        return await self._loop.run_in_executor(thread, work)

    def _connect(self, role: str) -> Connection:
        try:
            engine = self._engine(writer=role == "writer")
            conn = self._connections[role] = engine.connect()
        except DBAPIError as error:
            raise self._translate(error) from error
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigError(
                f"the database cannot be opened: {error}",
                where=self._where,
                remedy="Check the URL and that its driver is installed",
            ) from error
        return conn

    def _engine(self, *, writer: bool) -> Engine:
        if not self.is_sqlite:
            return create_engine(self._url, poolclass=NullPool)
        engine = create_engine(self._url, poolclass=NullPool)
        sqlite.prepare(engine, writer=writer)
        return engine

    def _disconnect(self, role: str) -> None:
        conn = self._connections.pop(role, None)
        if conn is not None:
            conn.close()

    def _transact(
        self,
        name: str,
        work: Callable[[Connection], T],
        durable: bool,
        topics: tuple[str, ...],
    ) -> T:
        conn = self._connections["writer"]
        for left in reversed(range(_TRIES)):
            try:
                if self.is_sqlite:
                    sqlite.set_durability(conn, durable)
                conn.begin()
                result = work(conn)
                effects.commit(conn, name, durable=durable)
            except DBAPIError as error:
                conn.rollback()
                failure = self._translate(error)
                if left and isinstance(failure, StoreBusy):
                    continue
                raise failure from error
            except BaseException:
                conn.rollback()
                raise
            if topics and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._committed, topics)
            return result
        raise AssertionError("unreachable")

    def _look(self, work: Callable[[Connection], T]) -> T:
        try:
            conn = self._connections.get("reader") or self._connect("reader")
            with conn.begin() as transaction:
                result = work(conn)
                transaction.rollback()
        except DBAPIError as error:
            raise self._translate(error) from error
        return result

    def _translate(self, error: DBAPIError) -> StoreError:
        state = str(getattr(error.orig, "sqlstate", ""))
        kind = sqlite.trouble(error) if self.is_sqlite else _SQLSTATES.get(state, "")
        if kind == "busy":
            return StoreBusy(
                "the database stayed locked",
                where=self._where,
                remedy="Look for a process that holds it, then try again",
            )
        if kind == "full":
            return StoreFull(
                "no space is left for the store",
                where=self._where,
                remedy="Free space, then run the command again; what was recorded is kept",
            )
        remedy = (
            "Move store.db and what lies beside it with that name away, then rebuild it from the"
            " results: `bench store reindex JOBS_FOLDER`"
            if kind == "corrupt"
            else ""
        )
        return StoreError(f"the database refused: {error.orig}", where=self._where, remedy=remedy)
