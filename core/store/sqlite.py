"""What is true of SQLite only: the one module that holds its SQL.

Invariant: a writing transaction is BEGIN IMMEDIATE, so it never reads first and
fails later; WAL lets readers go on meanwhile.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

BUSY_SECONDS = 5.0


class _Dbapi(Protocol):
    isolation_level: str | None

    def execute(self, sql: str) -> object: ...


def prepare(engine: Engine, *, writer: bool) -> None:
    """Set every connection of the engine up, and take BEGIN over from the driver."""

    def connected(dbapi: _Dbapi, _record: object) -> None:
        # None: the driver starts no transaction by itself; ``begun`` does.
        dbapi.isolation_level = None
        dbapi.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        if writer:
            dbapi.execute("PRAGMA journal_mode=WAL")
            dbapi.execute("PRAGMA wal_autocheckpoint=2000")
        else:
            dbapi.execute("PRAGMA query_only=1")

    def begun(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


def set_durability(conn: Connection, durable: bool) -> None:
    """FULL syncs the log at commit, and with it all earlier commits; NORMAL survives the
    death of the process but may lose the last commits at a power loss."""
    if conn.info.get("durable") is durable:
        return
    raw = conn.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    # Not through ``conn``: that would open a transaction, where the pragma is ignored.
    raw.execute("PRAGMA synchronous=FULL" if durable else "PRAGMA synchronous=NORMAL")
    conn.info["durable"] = durable


def check_integrity(conn: Connection) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    rows = conn.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    return [str(row) for row in rows if row != "ok"]


def trouble(error: DBAPIError) -> str:
    """``busy``, ``full``, ``corrupt``, or "" for any other failure."""
    name = getattr(error.orig, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "busy"
    if name.startswith("SQLITE_FULL"):
        return "full"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return "corrupt"
    return ""
