"""What differs between two states of the world: files, tables row by row, services.

Pure: two frozen states in, one difference out. Nothing is reported as added or
removed because a bounded reading did not get that far.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias, cast

from core.contracts.environment import TableState
from core.contracts.values import JsonObject, JsonValue

Change: TypeAlias = Literal["added", "removed", "changed"]
Row: TypeAlias = dict[str, JsonValue]
Mark: TypeAlias = tuple[str, ...]

TEXT_BYTES = 100_000
"""Longest file of which a text difference is made."""
TEXT_FILES = 40
TEXT_LINES = 400
"""Most lines of one file's difference."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a state. ``mark`` is its digest, or a link's target."""

    kind: Literal["file", "link", "special"]
    size: int
    mode: int
    mark: str


@dataclass(frozen=True, slots=True)
class WorldState:
    """One node's world as it was read in a fork."""

    node: str
    files: Mapping[str, FileEntry]
    tables: Mapping[str, tuple[TableState, ...]]
    """State path to its tables."""
    services: Mapping[str, JsonObject]
    not_read: tuple[str, ...] = ()
    """What the reading left out, a sentence each."""


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    change: Change
    before: FileEntry | None
    after: FileEntry | None
    text: str = ""
    """The unified difference, where both are text and short enough."""
    note: str = ""
    """Why there is no text."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """``key`` names the row by its key columns; without a key it is the whole row."""

    change: Change
    key: Row
    before: Row
    after: Row
    """Of a changed row only the columns that differ."""
    times: int = 1
    """More than once only where equal rows have no key to tell them apart."""


@dataclass(frozen=True, slots=True)
class TableChange:
    state: str
    table: str
    change: Change
    rows: tuple[RowChange, ...]
    rows_before: int
    rows_after: int
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    partial: bool = False
    """Not all rows were read on at least one side."""


@dataclass(frozen=True, slots=True)
class ServiceChange:
    service: str
    before: JsonObject | None
    after: JsonObject | None


@dataclass(frozen=True, slots=True)
class StateDiff:
    a: str
    b: str
    files: tuple[FileChange, ...]
    tables: tuple[TableChange, ...]
    services: tuple[ServiceChange, ...]
    not_read: tuple[str, ...] = field(default=())

    @property
    def same(self) -> bool:
        """Nothing that was read differs."""
        return not (self.files or self.tables or self.services)

    def to_json(self) -> JsonObject:
        return {**cast(JsonObject, asdict(self)), "same": self.same}


def diff_states(a: WorldState, b: WorldState) -> StateDiff:
    """How ``b`` differs from ``a``; texts of files are added by ``with_texts``."""
    return StateDiff(
        a.node,
        b.node,
        tuple(diff_files(a.files, b.files)),
        tuple(diff_tables(a.tables, b.tables)),
        tuple(_diff_services(a.services, b.services)),
        tuple(dict.fromkeys((*a.not_read, *b.not_read))),
    )


def diff_files(a: Mapping[str, FileEntry], b: Mapping[str, FileEntry]) -> list[FileChange]:
    """By path: added, removed, or another kind, mode or content."""
    changes = []
    for path in sorted(a.keys() | b.keys()):
        before, after = a.get(path), b.get(path)
        if before == after:
            continue
        change: Change = "changed" if before and after else ("added" if after else "removed")
        changes.append(FileChange(path, change, before, after))
    return changes


def wanted_texts(changes: Sequence[FileChange]) -> list[str]:
    """The paths whose content a text difference needs."""
    return [change.path for change in changes if not _why_no_text(change)][:TEXT_FILES]


def with_text(change: FileChange, before: bytes | None, after: bytes | None) -> FileChange:
    """The change with its unified difference, or a note of why there is none."""
    why = _why_no_text(change)
    if why:
        return _noted(change, why)
    if before is None and after is None:
        return _noted(change, f"only the first {TEXT_FILES} files are compared as text")
    try:
        old = (before or b"").decode("utf-8").splitlines()
        new = (after or b"").decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return _noted(change, "not text")
    if b"\0" in (before or b"") + (after or b""):
        return _noted(change, "not text")
    lines = list(difflib.unified_diff(old, new, "a" + change.path, "b" + change.path, lineterm=""))
    note = ""
    if len(lines) > TEXT_LINES:
        note = f"{len(lines) - TEXT_LINES} lines left out"
        lines = lines[:TEXT_LINES]
    return FileChange(
        change.path, change.change, change.before, change.after, "\n".join(lines), note
    )


def _why_no_text(change: FileChange) -> str:
    sides = [side for side in (change.before, change.after) if side is not None]
    if any(side.kind != "file" for side in sides):
        return "a link or a special file"
    if len(sides) == 2 and sides[0].mark == sides[1].mark:
        return "only its mode differs"
    if any(side.size > TEXT_BYTES for side in sides):
        return f"longer than {TEXT_BYTES} bytes"
    return ""


def _noted(change: FileChange, note: str) -> FileChange:
    return FileChange(change.path, change.change, change.before, change.after, "", note)


def diff_tables(
    a: Mapping[str, tuple[TableState, ...]], b: Mapping[str, tuple[TableState, ...]]
) -> list[TableChange]:
    """By state and table name. Rows are matched by primary key; without one, whole."""
    before = {(path, table.name): table for path, tables in a.items() for table in tables}
    after = {(path, table.name): table for path, tables in b.items() for table in tables}
    found = []
    for path, name in sorted(before.keys() | after.keys()):
        change = _diff_table(path, name, before.get((path, name)), after.get((path, name)))
        if change is not None:
            found.append(change)
    return found


def _diff_table(
    path: str, name: str, old: TableState | None, new: TableState | None
) -> TableChange | None:
    columns_old = old.columns if old else ()
    columns_new = new.columns if new else ()
    added = tuple(column for column in columns_new if column not in columns_old)
    removed = tuple(column for column in columns_old if column not in columns_new)
    rows = tuple(_diff_rows(old, new))
    count_old, count_new = (old.row_count if old else 0), (new.row_count if new else 0)
    if old and new and not (rows or added or removed or count_old != count_new):
        return None
    return TableChange(
        state=path,
        table=name,
        change="changed" if old and new else ("added" if new else "removed"),
        rows=rows,
        rows_before=count_old,
        rows_after=count_new,
        columns_added=added if old and new else (),
        columns_removed=removed if old and new else (),
        partial=bool((old and old.truncated) or (new and new.truncated)),
    )


def _diff_rows(old: TableState | None, new: TableState | None) -> list[RowChange]:
    key = _common_key(old, new)
    before, after = _by_key(old, key), _by_key(new, key)
    if not key or before is None or after is None:
        return _diff_keyless(old, new)
    changes = []
    # What one side did not read may be there all the same.
    seen_all_old, seen_all_new = _complete(old), _complete(new)
    for mark in [*before, *(mark for mark in after if mark not in before)]:
        left, right = before.get(mark), after.get(mark)
        named = {name: (left or right or {})[name] for name in key}
        if left is None and right is not None:
            if seen_all_old:
                changes.append(RowChange("added", named, {}, right))
        elif right is None and left is not None:
            if seen_all_new:
                changes.append(RowChange("removed", named, left, {}))
        elif left is not None and right is not None:
            changes += _diff_cells(named, left, right)
    return changes


def _diff_cells(key: Row, left: Row, right: Row) -> list[RowChange]:
    cells = [
        name
        for name in (left | right)
        if (name in left, _mark(left.get(name))) != (name in right, _mark(right.get(name)))
    ]
    if not cells:
        return []
    before = {name: left[name] for name in cells if name in left}
    after = {name: right[name] for name in cells if name in right}
    return [RowChange("changed", key, before, after)]


def _diff_keyless(old: TableState | None, new: TableState | None) -> list[RowChange]:
    """Rows without a key are alike or not; equal ones are counted."""
    left, right = _rows(old), _rows(new)
    before, after = Counter(map(_row_mark, left)), Counter(map(_row_mark, right))
    changes = []
    if _complete(new):
        named = {_row_mark(row): row for row in left}
        changes += [
            RowChange("removed", named[mark], named[mark], {}, times)
            for mark, times in (before - after).items()
        ]
    if _complete(old):
        named = {_row_mark(row): row for row in right}
        changes += [
            RowChange("added", named[mark], {}, named[mark], times)
            for mark, times in (after - before).items()
        ]
    return changes


def _common_key(old: TableState | None, new: TableState | None) -> tuple[str, ...]:
    keys = {table.key for table in (old, new) if table is not None}
    return keys.pop() if len(keys) == 1 else ()


def _complete(table: TableState | None) -> bool:
    return table is None or not table.truncated


def _rows(table: TableState | None) -> list[Row]:
    if table is None:
        return []
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _by_key(table: TableState | None, key: tuple[str, ...]) -> dict[Mark, Row] | None:
    """Rows by key; None where the key does not tell them apart (SQLite allows NULLs in one)."""
    rows = _rows(table)
    found = {tuple(_mark(row[name]) for name in key): row for row in rows}
    return found if len(found) == len(rows) else None


def _row_mark(row: Row) -> Mark:
    return tuple(f"{name}={_mark(value)}" for name, value in row.items())


def _mark(value: JsonValue) -> str:
    """Tells 1, 1.0 and true apart, as a table does and Python does not."""
    return json.dumps(value, sort_keys=True)


def _diff_services(a: Mapping[str, JsonObject], b: Mapping[str, JsonObject]) -> list[ServiceChange]:
    return [
        ServiceChange(name, a.get(name), b.get(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    ]
