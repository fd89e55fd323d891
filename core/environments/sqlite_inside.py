"""SQLite state, handled where it lives: a script run beside the services.

It runs by file path in the service compartment with nothing but the standard
library, so it imports none of our modules. Invariant: no database file is ever
copied or replaced by plain file operations while somebody may have it open;
copies go through SQLite's backup API in one step (in many steps it starts over
at each foreign write), and ``swap`` is only called while the services stand.

    python3 sqlite_inside.py VERB JSON

prints one line of JSON. ``export`` prints that line and then the bytes;
``stage`` reads the bytes from stdin. Exit code 3 means ``{"error": ...}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a script that runs at each capture loads only what it uses
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

LOCK_SECONDS = 5.0
READER_SECONDS = 0.5
CHUNK = 1 << 20
VALUE_BYTES = 16 << 10
LOGS = ("-wal", "-shm", "-journal")
COPY = ".benchflow-copy"
INCOMING = ".benchflow-incoming"


class StateFault(Exception):
    """Told to the caller as one sentence."""


def beside(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


def remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def copied(source: BinaryIO, target: BinaryIO) -> None:
    while chunk := source.read(CHUNK):
        target.write(chunk)


@contextlib.contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """A connection to an existing database; never creates one."""
    try:
        connection = sqlite3.connect(
            f"file:{escaped(path)}?mode=rw",
            uri=True,
            timeout=LOCK_SECONDS,
            isolation_level=None,
        )
    except sqlite3.Error as error:
        raise StateFault(f"{path} cannot be opened: {error}") from error
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        raise StateFault(f"{path}: {error}") from error
    finally:
        connection.close()


def escaped(path: str) -> str:
    """An absolute path as part of a SQLite URI."""
    path = os.path.abspath(path)
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Ordinary tables by name. Statistics are left out: they are no state."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    return sorted(
        name
        for name, sql in found
        if not name.startswith("sqlite_stat")
        and not (sql or "").upper().startswith("CREATE VIRTUAL")
    )


def key_of(connection: sqlite3.Connection, table: str) -> list[str]:
    columns = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    return [row[1] for row in sorted((row for row in columns if row[5]), key=lambda row: row[5])]


def rows_of(connection: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    key = key_of(connection, table)
    order = ", ".join(quoted(name) for name in key) or "rowid"
    return connection.execute(f"SELECT * FROM {quoted(table)} ORDER BY {order}")


def content_digest(connection: sqlite3.Connection) -> str:
    """Hash of schema and rows: equal for equal content, whatever the page layout."""
    digest = hashlib.sha256()

    def feed(*values: object) -> None:
        for value in values:
            raw = encoded(value)
            digest.update(len(raw).to_bytes(8, "big") + raw)

    for pragma in ("user_version", "application_id"):
        feed(pragma, *connection.execute(f"PRAGMA {pragma}").fetchone())
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    for row in connection.execute(schema):
        if not str(row[1]).startswith("sqlite_stat"):
            feed(*row)
    for table in tables_of(connection):
        feed("table", table)
        for row in rows_of(connection, table):
            feed("row", *row)
    return digest.hexdigest()


def encoded(value: object) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"t" + value.encode("utf-8", "surrogateescape")
    return b"b" + bytes(value)  # type: ignore[call-overload,no-any-return]


def shown(value: object) -> object:
    """A cell as JSON: what JSON cannot say is a tagged object, big values a preview."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        finite = value == value and abs(value) != float("inf")
        return value if finite else {"$float": repr(value)}
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        head = raw[:VALUE_BYTES].decode("utf-8", "backslashreplace")
        if len(raw) <= VALUE_BYTES:
            return head
        return {"$text": head, "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    blob = bytes(value)  # type: ignore[call-overload]
    return {
        "$bytes": blob[:VALUE_BYTES].hex(),
        "size": len(blob),
        "sha256": hashlib.sha256(blob).hexdigest(),
    }


def seal(path: str, *, write: bool) -> dict[str, Any]:
    """The digest of one database; with ``write`` also make it safe to capture.

    Afterwards either everything is in the main file, or (a reader held the log
    back) the log is whole and no write is under way.
    """
    if not os.path.isfile(path):
        return {"path": path, "present": False, "digest": "absent", "log": "none"}
    with opened(path) as connection:
        log = "unread"
        if write:
            check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise StateFault(f"{path} is damaged: {check}")
            # A reader that stays is no reason to wait long: the log may be captured too.
            connection.execute(f"PRAGMA busy_timeout = {int(READER_SECONDS * 1000)}")
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            connection.execute(f"PRAGMA busy_timeout = {int(LOCK_SECONDS * 1000)}")
            log = "kept" if busy else "truncated"
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute("BEGIN")
        digest = content_digest(connection)
        connection.execute("ROLLBACK")
        return {"path": path, "present": True, "digest": digest, "log": log}


def verb_flush(args: dict[str, Any]) -> dict[str, Any]:
    return {"states": [seal(path, write=True) for path in args["paths"]]}


def verb_digest(args: dict[str, Any]) -> dict[str, Any]:
    return {"states": [seal(path, write=False) for path in args["paths"]]}


def verb_query(args: dict[str, Any]) -> dict[str, Any]:
    """Tables of every database, at most ``rows`` a table and ``bytes`` in all."""
    room = [int(args["bytes"])]
    states: list[dict[str, Any]] = []
    for path in args["paths"]:
        if not os.path.isfile(path):
            states.append({"path": path, "digest": "absent", "tables": []})
            continue
        with opened(path) as connection:
            connection.execute("BEGIN")
            tables = [
                described(connection, name, int(args["rows"]), room)
                for name in tables_of(connection)
            ]
            digest = content_digest(connection)
        states.append({"path": path, "digest": digest, "tables": tables})
    return {"states": states}


def described(
    connection: sqlite3.Connection, table: str, limit: int, room: list[int]
) -> dict[str, Any]:
    cursor = rows_of(connection, table)
    columns = [item[0] for item in cursor.description]
    rows: list[list[object]] = []
    for row in cursor:
        cells = [shown(value) for value in row]
        room[0] -= len(json.dumps(cells))
        if len(rows) >= limit or room[0] < 0:
            break
        rows.append(cells)
    count = connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()[0]
    key = key_of(connection, table)
    return {"name": table, "columns": columns, "key": key, "rows": rows, "row_count": count}


def export(path: str, begin: Callable[[dict[str, Any]], BinaryIO]) -> None:
    """Write a consistent copy; ``begin`` takes the header and gives the place for the bytes."""
    if not os.path.isfile(path):
        begin({"path": path, "present": False, "digest": "absent"})
        return
    copy = beside(path, f"{COPY}-{os.getpid()}")
    try:
        with opened(path) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target, pages=-1)
        with opened(copy) as connection:
            digest = content_digest(connection)
        with open(copy, "rb") as data:
            copied(data, begin({"path": path, "present": True, "digest": digest}))
    finally:
        remove(copy, *(copy + suffix for suffix in LOGS))


def stage(path: str, data: BinaryIO) -> None:
    """Put the bytes beside the database, under a name nobody opens."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    incoming = beside(path, INCOMING + os.path.basename(path))
    with open(incoming, "wb") as target:
        copied(data, target)
    with opened(incoming) as connection:
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise StateFault(f"the copy for {path} is damaged: {check}")
    remove(*(incoming + suffix for suffix in LOGS))


def verb_swap(args: dict[str, Any]) -> dict[str, Any]:
    """Make each staged copy the database; a path in ``absent`` is removed."""
    for path in args["paths"]:
        remove(*(path + suffix for suffix in LOGS))
        os.replace(beside(path, INCOMING + os.path.basename(path)), path)
    for path in args["absent"]:
        remove(path, *(path + suffix for suffix in LOGS))
    return {}


def kept_at(args: dict[str, Any], path: str) -> str:
    return os.path.join(args["folder"], hashlib.sha256(path.encode()).hexdigest()[:16])


def verb_keep(args: dict[str, Any]) -> dict[str, Any]:
    """Keep what is there now as the state that ``reset`` goes back to."""
    os.makedirs(args["folder"], exist_ok=True)
    for path in args["paths"]:
        place = kept_at(args, path)
        with open(place, "wb") as target:
            export(path, lambda _, target=target: target)  # type: ignore[misc]
            size = target.tell()
        if not size:
            os.unlink(place)
    return {}


def verb_reset(args: dict[str, Any]) -> dict[str, Any]:
    present = [path for path in args["paths"] if os.path.isfile(kept_at(args, path))]
    for path in present:
        with open(kept_at(args, path), "rb") as data:
            stage(path, data)
    absent = [path for path in args["paths"] if path not in present]
    return verb_swap({"paths": present, "absent": absent})


def verb_export(args: dict[str, Any]) -> None:
    def begin(header: dict[str, Any]) -> BinaryIO:
        print(json.dumps(header), flush=True)
        return sys.stdout.buffer

    export(args["paths"][0], begin)


def verb_stage(args: dict[str, Any]) -> dict[str, Any]:
    stage(args["paths"][0], sys.stdin.buffer)
    return {}


VERBS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "flush": verb_flush,
    "digest": verb_digest,
    "query": verb_query,
    "export": verb_export,
    "stage": verb_stage,
    "swap": verb_swap,
    "keep": verb_keep,
    "reset": verb_reset,
}


def main(argv: list[str]) -> int:
    try:
        answer = VERBS[argv[1]](json.loads(argv[2]))
    except (StateFault, OSError, sqlite3.Error) as error:
        print(json.dumps({"error": str(error)}))
        return 3
    if answer is not None:
        print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
