"""Creating and upgrading the tables.

A fresh database gets them from ``metadata`` at once and is stamped with
``HEAD``; an older one is taken through the migrations. Both ways lead to the same
schema (there is a test). Alembic is loaded only when there is something to migrate.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from core.contracts.errors import StoreError
from core.store.append import REVISION
from core.store.tables import COUNTER, metadata

HEAD = "0001"
"""The newest migration."""
MIGRATIONS = Path(__file__).parent / "migrations"


def is_current(conn: Connection) -> bool:
    return current(conn) == HEAD


def prepare(conn: Connection) -> None:
    """Bring the database to ``HEAD`` inside the current transaction."""
    version = current(conn)
    if version is None:
        create(conn)
    elif version != HEAD:
        migrate(conn)


def create(conn: Connection) -> None:
    metadata.create_all(conn)
    version = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, {key})"
    key = "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
    conn.execute(text(version.format(key=key)))
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
    conn.execute(COUNTER.insert().values(name=REVISION, value=0))


def current(conn: Connection) -> str | None:
    """The migration the database is at; None for a database without our tables."""
    if "alembic_version" not in inspect(conn).get_table_names():
        return None
    found = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if found is None else str(found)


def migrate(conn: Connection) -> None:
    """Run the migrations that are missing. Raises StoreError for a database that is newer."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = conn
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the store is at version {current(conn)}, this program knows versions up to {HEAD}",
            remedy="Update benchflow-workbench, or name another store folder",
        ) from error
