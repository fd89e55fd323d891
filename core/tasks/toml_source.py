"""TOML to located values: values from ``tomllib``, lines found in the text.

The library tells no lines, so a small scanner notes where each table and key
begins. It is only asked where something is, never what it is.
"""

from __future__ import annotations

import math
import re
import tomllib
from typing import cast

from core.tasks.located import MAX_DEPTH, MAX_NODES, Located, Scalar, Unreadable

_Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$"""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"' + r"|'[^']*'")
_DEEP_KEY = re.compile(
    r"""(?<![A-Za-z0-9_"'-])(?>(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*)"""
    rf"{{{MAX_DEPTH}}}"
)
_ERROR_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def read_toml(text: str) -> Located:
    """One TOML document. Raises Unreadable."""
    if deep := _DEEP_KEY.search(text):  # the library's time grows with the square of it
        line = text.count("\n", 0, deep.start()) + 1
        raise Unreadable(line, f"has a key of more than {MAX_DEPTH} parts", "Flatten it")
    try:
        data = cast("dict[str, object]", tomllib.loads(text))
    except RecursionError as error:
        raise Unreadable(None, "is nested too deep", "Flatten it") from error
    except ValueError as error:
        found = _ERROR_LINE.search(str(error))
        reason = _ERROR_LINE.sub("", str(error)).strip() or "syntax error"
        raise Unreadable(
            int(found.group(1)) if found else None,
            f"is not valid TOML: {reason}",
            "Fix the syntax; text needs quotes",
        ) from error
    return _Locator(_lines(text)).locate(data, (), 1, 0)


class _Locator:
    def __init__(self, lines: dict[_Path, int]) -> None:
        self._lines = lines
        self._nodes = 0

    def locate(self, value: object, path: _Path, near: int, depth: int) -> Located:
        """``near`` is the line of the closest value around this one that has one."""
        line = self._lines.get(path, near)
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise Unreadable(line, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it")
        if self._nodes > MAX_NODES:
            raise Unreadable(line, f"holds more than {MAX_NODES:,} values", "Move data into files")
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            return Located(
                {key: self.locate(v, (*path, key), line, depth + 1) for key, v in table.items()},
                line,
            )
        if isinstance(value, list):
            items = cast("list[object]", value)
            return Located(
                [self.locate(v, (*path, i), line, depth + 1) for i, v in enumerate(items)], line
            )
        return Located(_scalar(value, line), line, value if isinstance(value, str) else str(value))


def _scalar(value: object, line: int) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable(line, "holds a number that is not finite", "Give a finite number")
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _lines(text: str) -> dict[_Path, int]:
    """Line of each table header and each ``key =``, by path."""
    found: dict[_Path, int] = {}
    counts: dict[_Path, int] = {}
    table: _Path = ()
    skip = _Skipper()
    for number, line in enumerate(text.split("\n"), start=1):
        if skip.inside(line):
            continue
        if header := _HEADER.match(line):
            table = _enter(_parts(header.group(2)), header.group(1) == "[[", counts)
            _note(found, table, number)
        elif key := _KEY.match(line):
            _note(found, (*table, *_parts(key.group(1))), number)
            skip.begin(key.group(2))
    return found


def _note(found: dict[_Path, int], path: _Path, line: int) -> None:
    for end in range(1, min(len(path), MAX_DEPTH) + 1):
        found.setdefault(path[:end], line)


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)][: MAX_DEPTH + 1]


def _enter(parts: list[str], is_array: bool, counts: dict[_Path, int]) -> _Path:
    """The path of a table header, with the index of the array element it is in."""
    path: _Path = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        last = position == len(parts) - 1
        if last and is_array:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


class _Skipper:
    """Knows whether a line lies inside a multi-line string or array."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0

    def begin(self, rest: str) -> None:
        """``rest`` is what follows the ``=`` of a key."""
        value = rest.strip()
        for quote in ('"""', "'''"):
            if value.startswith(quote):
                self._quote = "" if quote in value[3:] else quote
                return
        self._depth = max(0, _brackets(value))

    def inside(self, line: str) -> bool:
        if self._quote:
            if self._quote in line:
                self._quote = ""
            return True
        if self._depth:
            self._depth = max(0, self._depth + _brackets(line))
            return True
        return False


def _brackets(text: str) -> int:
    bare = _QUOTED.sub("", text).split("#", 1)[0]
    return bare.count("[") - bare.count("]")
