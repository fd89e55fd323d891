"""SQLite state: sealed, copied and put back without ever losing or mixing a row."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.environments.scripts import SQLITE


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def make(path: Path, rows: int = 3, *, mode: str = "wal") -> None:
    with connected(path) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT, data BLOB)")
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO items (text, data) VALUES (?, ?)",
            [(f"row {number}", bytes([number % 256])) for number in range(rows)],
        )
        db.execute("COMMIT")


def count(path: Path) -> int:
    with connected(path) as db:
        return int(db.execute("SELECT count(*) FROM items").fetchone()[0])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "world.db"
    make(path)
    return path


def test_the_digest_is_of_the_content_not_of_the_pages(tmp_path: Path, database: Path) -> None:
    other = tmp_path / "other.db"
    make(other, rows=500, mode="delete")
    with connected(other) as db:
        db.execute("DELETE FROM items WHERE id > 3")
        assert SQLITE.digest(other) == SQLITE.digest(database)
        db.execute("VACUUM")
    assert SQLITE.digest(other) == SQLITE.digest(database)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE items SET text = 'x' WHERE id = 2",
        "UPDATE items SET text = CAST(text AS BLOB) WHERE id = 2",
        "UPDATE items SET text = NULL WHERE id = 2",
        "DELETE FROM items WHERE id = 3",
        "INSERT INTO items VALUES (9, '', x'')",
        "CREATE INDEX by_text ON items (text)",
        "CREATE TABLE more (a)",
        "PRAGMA user_version = 7",
    ],
)
def test_any_change_changes_the_digest(database: Path, change: str) -> None:
    before = SQLITE.digest(database)
    with connected(database) as db:
        db.execute(change)
    assert SQLITE.digest(database) != before


def test_an_absent_database_is_reported_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    answer, _ = SQLITE.run("flush", paths=[str(path)])
    assert answer["states"] == [
        {"path": str(path), "present": False, "digest": "absent", "log": "none"}
    ]
    assert not path.exists()


def test_flush_leaves_everything_in_the_main_file(database: Path, tmp_path: Path) -> None:
    with connected(database) as service:
        service.execute("INSERT INTO items (text) VALUES ('late')")
        assert database.with_name("world.db-wal").stat().st_size > 0
        answer, _ = SQLITE.run("flush", paths=[str(database)])
        (state,) = answer["states"]
        assert state["log"] == "truncated"
        assert database.with_name("world.db-wal").stat().st_size == 0
        alone = tmp_path / "alone.db"
        alone.write_bytes(database.read_bytes())
    assert count(alone) == 4
    assert SQLITE.digest(alone) == state["digest"]


def test_flush_keeps_the_log_while_a_reader_needs_it(database: Path) -> None:
    with connected(database) as reader, connected(database) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM items").fetchall()
        writer.execute("INSERT INTO items (text) VALUES ('late')")
        answer, _ = SQLITE.run("flush", paths=[str(database)])
        (state,) = answer["states"]
        assert state["log"] == "kept"
    assert state["digest"] == SQLITE.digest(database)


def test_flush_refuses_while_a_write_is_under_way(database: Path) -> None:
    with connected(database) as writer:
        writer.execute("BEGIN IMMEDIATE")
        answer, _ = SQLITE.run("flush", paths=[str(database)])
    assert "locked" in answer["error"]


def test_a_damaged_database_is_an_error_that_names_it(database: Path) -> None:
    raw = bytearray(database.read_bytes())
    raw[4096:8192] = b"\xff" * 4096
    database.write_bytes(bytes(raw))
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    answer, _ = SQLITE.run("flush", paths=[str(database)])
    assert str(database) in answer["error"]
    database.write_bytes(b"no database at all, only text that is long enough" * 40)
    answer, _ = SQLITE.run("digest", paths=[str(database)])
    assert "not a database" in answer["error"]


def test_what_is_exported_comes_back_to_the_row(database: Path) -> None:
    header, copy = SQLITE.run("export", paths=[str(database)])
    assert header["digest"] == SQLITE.digest(database)
    with connected(database) as db:
        db.execute("DELETE FROM items")
        db.execute("PRAGMA wal_checkpoint")
        db.execute("INSERT INTO items (text) VALUES ('after')")
    SQLITE.restore(database, copy)
    assert SQLITE.digest(database) == header["digest"]
    assert sorted(path.name for path in database.parent.iterdir()) == ["world.db"]


def test_a_log_left_by_a_killed_service_is_not_played_into_the_restored_state(
    database: Path,
) -> None:
    header, copy = SQLITE.run("export", paths=[str(database)])
    with connected(database) as service:
        service.execute("PRAGMA wal_autocheckpoint = 0")
        service.execute("DELETE FROM items")
        left = {
            suffix: database.with_name(database.name + suffix).read_bytes()
            for suffix in ("-wal", "-shm")
        }
    for suffix, raw in left.items():
        database.with_name(database.name + suffix).write_bytes(raw)
    SQLITE.restore(database, copy)
    assert SQLITE.digest(database) == header["digest"]
    assert count(database) == 3


def test_copies_under_a_writer_are_each_one_committed_state(database: Path) -> None:
    """The writer adds pairs in one transaction: an odd count would be half a write."""
    with connected(database) as db:
        db.execute("DELETE FROM items")
    ended = threading.Event()

    def write() -> None:
        with connected(database) as db:
            while not ended.is_set():
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT INTO items (text) VALUES ('a')")
                db.execute("INSERT INTO items (text) VALUES ('b')")
                db.execute("COMMIT")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [SQLITE.run("export", paths=[str(database)]) for _ in range(5)]
    finally:
        ended.set()
        writer.join()
    for number, (header, copy) in enumerate(copies):
        place = database.with_name(f"copy{number}.db")
        place.write_bytes(copy)
        assert count(place) % 2 == 0
        assert SQLITE.digest(place) == header["digest"]


def test_a_copy_holds_the_commits_that_are_only_in_the_log(database: Path) -> None:
    with connected(database) as service:
        service.execute("PRAGMA wal_autocheckpoint = 0")
        service.execute("INSERT INTO items (text) VALUES ('only in the log')")
        header, copy = SQLITE.run("export", paths=[str(database)])
        assert header["digest"] == SQLITE.digest(database)
    place = database.with_name("copy.db")
    place.write_bytes(copy)
    assert count(place) == 4


@pytest.mark.parametrize("name", ["a b.db", "50%25.db", "q?mode=memory.db", "hash#.db", "ü.db"])
def test_any_file_name_is_a_database_of_that_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    make(path)
    header, copy = SQLITE.run("export", paths=[str(path)])
    with connected(path) as db:
        db.execute("DELETE FROM items")
    SQLITE.restore(path, copy)
    assert SQLITE.digest(path) == header["digest"]
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_a_damaged_copy_is_refused_before_anything_is_replaced(database: Path) -> None:
    before = SQLITE.digest(database)
    answer = SQLITE.restore(database, b"not a database" * 100)
    assert "not a database" in answer["error"]
    assert SQLITE.digest(database) == before


def test_swap_removes_what_was_absent(database: Path) -> None:
    SQLITE.run("swap", paths=[], absent=[str(database)])
    assert not list(database.parent.iterdir())


def test_reset_goes_back_to_what_was_kept(database: Path, tmp_path: Path) -> None:
    later = database.with_name("later.db")
    args: dict[str, Any] = {"paths": [str(database), str(later)], "folder": str(tmp_path / "kept")}
    before = SQLITE.digest(database)
    SQLITE.run("keep", **args)
    with connected(database) as db:
        db.execute("DROP TABLE items")
    make(later)
    SQLITE.run("reset", **args)
    assert SQLITE.digest(database) == before
    assert not later.exists()


def test_a_query_shows_tables_with_keys_and_json_safe_cells(tmp_path: Path) -> None:
    path = tmp_path / "world.db"
    with connected(path) as db:
        db.execute(
            'CREATE TABLE "odd ""name" (b TEXT, a INTEGER, c, PRIMARY KEY (a, b)) WITHOUT ROWID'
        )
        db.execute("INSERT INTO \"odd \"\"name\" VALUES ('z', 1, x'00ff'), ('y', 1, 1e999)")
        db.execute("CREATE TABLE plain (v)")
        db.execute("INSERT INTO plain VALUES (CAST(x'ff61' AS TEXT)), (?)", ("x" * 20_000,))
        db.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        db.execute("INSERT INTO words VALUES ('hello')")
    answer, _ = SQLITE.run("query", paths=[str(path)], rows=10, bytes=1 << 20)
    tables = {table["name"]: table for table in answer["states"][0]["tables"]}
    odd = tables['odd "name']
    assert odd["columns"] == ["b", "a", "c"]
    assert odd["key"] == ["a", "b"]
    assert odd["rows"][0] == ["y", 1, {"$float": "inf"}]
    assert odd["rows"][1][2]["$bytes"] == "00ff"
    plain = tables["plain"]
    assert plain["key"] == []
    assert plain["rows"][0] == ["\\xffa"]
    assert plain["rows"][1][0]["size"] == 20_000
    assert "words" not in tables
    assert tables["words_content"]["row_count"] == 1
    before = SQLITE.digest(path)
    with connected(path) as db:
        db.execute("INSERT INTO words VALUES ('world')")
    assert SQLITE.digest(path) != before


@pytest.mark.parametrize(("rows", "size"), [(10, 1 << 20), (10_000, 2_000)])
def test_a_query_is_bounded_while_counts_and_digest_cover_all(
    tmp_path: Path, rows: int, size: int
) -> None:
    path = tmp_path / "world.db"
    make(path, rows=500)
    answer, _ = SQLITE.run("query", paths=[str(path)], rows=rows, bytes=size)
    (state,) = answer["states"]
    (table,) = state["tables"]
    assert len(table["rows"]) < 100
    assert table["row_count"] == 500
    assert state["digest"] == SQLITE.digest(path)
