from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from core.contracts.errors import ConfigError, StoreBusy, StoreError
from core.store import schema
from core.store.sql import SqlStore
from core.store.tables import metadata
from tests.core.store.helpers import opened, owned, said


def _schema_of(conn: Connection) -> dict[str, object]:
    seen = inspect(conn)
    return {
        name: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in seen.get_columns(name)
            ],
            seen.get_pk_constraint(name),
            sorted(map(str, seen.get_unique_constraints(name))),
            sorted(map(str, seen.get_indexes(name))),
        )
        for name in sorted(seen.get_table_names())
    }


def test_creating_and_migrating_give_the_same_schema(tmp_path: Path) -> None:
    found = []
    for way in (schema.create, schema.migrate):
        engine = create_engine(f"sqlite:///{tmp_path / way.__name__}.db")
        with engine.connect() as conn:
            way(conn)
            conn.commit()
            found.append((_schema_of(conn), schema.current(conn)))
            rows = conn.exec_driver_sql("SELECT name, value FROM counter").all()
            assert [tuple(row) for row in rows] == [("revision", 0)]
        engine.dispose()
    assert found[0] == found[1]


def test_no_migration_is_missing(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.connect() as conn:
        schema.migrate(conn)
        assert compare_metadata(MigrationContext.configure(conn), metadata) == []
        conn.rollback()
    engine.dispose()


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]


def test_the_tables_can_be_made_on_postgresql() -> None:
    for table in metadata.sorted_tables:
        # The dialect's constructor is untyped in SQLAlchemy.
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))


async def test_a_store_newer_than_the_program_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "store"):
        pass
    raw = sqlite3.connect(tmp_path / "store" / "store.db")
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    store = SqlStore(tmp_path / "store")
    with pytest.raises(StoreError, match=r"version 9999.*Update"):
        await store.open()
    await store.close()


async def test_the_folder_is_only_for_its_owner(store: SqlStore) -> None:
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    engine = await store.engines.register()
    bells = list((store.folder / "bells").iterdir())
    assert [bell.name for bell in bells] == [f"{engine}.sock"]
    assert {stat.S_IMODE(bell.stat().st_mode) for bell in bells} == {0o600}


async def test_many_processes_may_create_the_store_at_once(tmp_path: Path) -> None:
    async def one() -> None:
        async with opened(tmp_path / "store") as store:
            await store.engines.register()

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(one())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failures == []


@pytest.mark.slow
async def test_a_locked_database_is_waited_for_and_nothing_is_lost(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    holder = sqlite3.connect(store.folder / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for number in range(300):
        await recorder.put(said(str(number)))
    # Longer than two waits of five seconds: an act gives up, the recorder does not.
    with pytest.raises(StoreBusy, match="stayed locked"):
        await store.jobs.create("job", "/x", {})
    holder.execute("COMMIT")
    holder.close()
    await recorder.close()
    assert (await store.rollouts.get(own.rollout)).head_seq == 300


async def test_a_cancelled_wait_leaves_no_transaction_open(store: SqlStore) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work(conn: Connection) -> None:
        conn.exec_driver_sql("UPDATE counter SET value = 77")
        entered.set()
        leave.wait(10)

    task = asyncio.create_task(store.database.write("update", work, durable=False))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    leave.set()
    await store.jobs.create("after", "/x", {})
    assert await store.revision() == 78


async def test_a_failing_transaction_changes_nothing(store: SqlStore) -> None:
    def work(conn: Connection) -> None:
        conn.exec_driver_sql("UPDATE counter SET value = 77")
        conn.exec_driver_sql("SELECT nonsense")

    with pytest.raises(StoreError, match="refused"):
        await store.database.write("update", work, durable=False)
    assert await store.revision() == 0


async def test_acts_are_forced_to_the_disk_and_event_batches_are_not(store: SqlStore) -> None:
    def level(conn: Connection) -> int:
        return int(conn.exec_driver_sql("PRAGMA synchronous").scalar_one())

    assert await store.database.write("update", level, durable=True) == 2
    assert await store.database.write("update", level, durable=False) == 1


async def test_bad_urls_and_closed_stores_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a database URL"):
        SqlStore(tmp_path, "nonsense")
    store = SqlStore(tmp_path / "s", "postgresql+nodriver://localhost/x")
    with pytest.raises(ConfigError, match="cannot be opened"):
        await store.open()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await SqlStore(tmp_path / "t").revision()


async def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "store.db").write_bytes(b"not a database, certainly not" * 100)
    store = SqlStore(tmp_path / "s")
    with pytest.raises(StoreError, match="reindex"):
        await store.open()
    await store.close()
