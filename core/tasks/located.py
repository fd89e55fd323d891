"""Values of a file a person wrote, each with the line it stands on.

Both readers (YAML front matter, TOML) produce this one form, so that every
fault can name file, key and line. Nothing in here is deeper than ``MAX_DEPTH``
or wider than ``MAX_NODES``: whoever walks it may recurse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from core.contracts.errors import Fault
from core.contracts.values import JsonValue

MAX_DEPTH = 40
MAX_NODES = 20_000
MAX_TEXT = 1_000_000
"""Bytes of a task.md or manifest that are still read."""

Scalar: TypeAlias = "bool | int | float | str | None"


@dataclass(frozen=True, slots=True)
class Located:
    """One value. ``line`` is 1-based: its key's line, or its own inside a list.

    ``written`` is a scalar as the author typed it, so that ``yes`` or ``1.3``
    can still be read as text.
    """

    value: Scalar | list[Located] | dict[str, Located]
    line: int
    written: str = ""

    def find(self, *path: str | int) -> Located | None:
        """The value at a path of keys and indices, None when it is not there."""
        here: Located | None = self
        for part in path:
            if here is None:
                return None
            here = here._child(part)
        return here

    def _child(self, part: str | int) -> Located | None:
        if isinstance(part, str):
            return self.value.get(part) if isinstance(self.value, dict) else None
        if isinstance(self.value, list) and 0 <= part < len(self.value):
            return self.value[part]
        return None

    def line_of(self, *path: str | int) -> int | None:
        found = self.find(*path)
        return found.line if found else None

    def plain(self) -> JsonValue:
        """The value without its lines."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        return self.value


@dataclass(slots=True)
class Faults:
    """Everything wrong in one file, in the order it was found."""

    file: str
    items: list[Fault] = field(default_factory=list)

    def add(self, key: str, line: int | None, problem: str, remedy: str) -> None:
        self.items.append(Fault(self.file, key, line, problem, remedy))

    def add_beside(self, path: str, problem: str, remedy: str) -> None:
        """A fault of a whole file below the folder that this collector is for."""
        where = f"{self.file.rstrip('/')}/{path}" if path else self.file
        self.items.append(Fault(where, "", None, problem, remedy))


class Unreadable(Exception):
    """A file that cannot be read as what it should be; stays inside this package."""

    def __init__(self, line: int | None, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem
        self.remedy = remedy
