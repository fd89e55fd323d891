"""SQLite databases as state. The parent folder is the mount, so the log files ride along."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import cast

from core.contracts.environment import TableState
from core.contracts.values import JsonObject, JsonValue
from core.environments.state import Found


class SqliteState:
    """State kind ``sqlite``: each path is one database file."""

    name = "sqlite"
    script = Path(__file__).with_name("sqlite_inside.py")

    def folder(self, path: str) -> str:
        return str(PurePosixPath(path).parent)

    def read(self, answer: JsonObject) -> Found:
        tables = cast("list[JsonObject]", answer["tables"])
        return Found(str(answer["digest"]), tables=tuple(_table(item) for item in tables))


def _table(item: JsonObject) -> TableState:
    rows = cast("list[list[JsonValue]]", item["rows"])
    count = cast(int, item["row_count"])
    return TableState(
        name=str(item["name"]),
        columns=tuple(cast("list[str]", item["columns"])),
        key=tuple(cast("list[str]", item["key"])),
        rows=tuple(tuple(row) for row in rows),
        row_count=count,
        truncated=len(rows) < count,
    )
