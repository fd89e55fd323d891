"""What a section of a file may hold, declared once as data.

A shape reads a located value: it returns the plain value when it fits, adds a
fault and returns None when it does not. A key that is absent or null is left
out, so the defaults live in ``models.py`` alone. Reading goes on after a
fault, so that all of them are found at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from core.contracts.values import JsonObject, JsonValue
from core.tasks.located import Faults, Located


class Shape(Protocol):
    @property
    def says(self) -> str:
        """What is allowed, in words that follow "must be"."""
        ...

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue: ...


def kind_of(node: Located) -> str:
    """What a value is, in a person's words."""
    names: dict[type, str] = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(node.value), "nothing")


def _refuse(shape: Shape, node: Located, key: str, faults: Faults) -> None:
    shown = f" {node.value!r:.60}" if isinstance(node.value, str | int | float) else ""
    faults.add(key, node.line, f"must be {shape.says}, not {kind_of(node)}{shown}", "Change it")


@dataclass(frozen=True, slots=True)
class Text:
    """Text. A bare number or yes/no counts as the text the author typed."""

    says: str = "text"
    fits: Callable[[str], bool] | None = None

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        value = node.value
        if isinstance(value, bool | int | float):
            value = node.written
        if not isinstance(value, str) or (self.fits is not None and not self.fits(value)):
            _refuse(self, node, key, faults)
            return None
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number inside ``low`` and ``high``, both included unless ``above`` is given."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    whole: bool = False

    @property
    def says(self) -> str:
        noun = "a whole number" if self.whole else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        if self.above is not None:
            return f"{noun} above {self.above:g}"
        return f"{noun} of at least {self.low:g}" if self.low is not None else noun

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        value = node.value
        right = isinstance(value, int if self.whole else int | float)
        if not right or isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(self, node, key, faults)
            return None
        inside = (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )
        if not inside:
            _refuse(self, node, key, faults)
            return None
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    says: str = "true or false"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        if isinstance(node.value, bool):
            return node.value
        _refuse(self, node, key, faults)
        return None


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]

    @property
    def says(self) -> str:
        return "one of " + ", ".join(self.words)

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        if isinstance(node.value, str) and node.value in self.words:
            return node.value
        close = difflib.get_close_matches(str(node.written), self.words, n=1)
        remedy = f"Did you mean {close[0]!r}?" if close else "Pick one of them"
        faults.add(key, node.line, f"must be {self.says}, not {node.written!r:.60}", remedy)
        return None


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Shape

    @property
    def says(self) -> str:
        return f"a list, each of it {self.item.says}"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        if not isinstance(node.value, list):
            _refuse(self, node, key, faults)
            return None
        read = [self.item.read(item, f"{key}[{i}]", faults) for i, item in enumerate(node.value)]
        return [item for item in read if item is not None]


@dataclass(frozen=True, slots=True)
class MapOf:
    """Free keys, each with a value of one shape."""

    item: Shape

    @property
    def says(self) -> str:
        return f"a mapping of names, each to {self.item.says}"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        if not isinstance(node.value, dict):
            _refuse(self, node, key, faults)
            return None
        read: JsonObject = {}
        for name, child in node.value.items():
            value = self.item.read(child, f"{key}.{name}", faults)
            if value is not None:
                read[name] = value
        return read


@dataclass(frozen=True, slots=True)
class Free:
    """Anything at all; kept, not interpreted."""

    says: str = "anything"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        return node.plain()


@dataclass(frozen=True, slots=True)
class FreeMap:
    """A mapping with anything in it."""

    says: str = "a mapping"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        if isinstance(node.value, dict):
            return node.plain()
        _refuse(self, node, key, faults)
        return None


@dataclass(frozen=True, slots=True)
class Either:
    """The first shape that takes values of this kind reads it."""

    choices: tuple[tuple[type, Shape], ...]

    @property
    def says(self) -> str:
        return " or ".join(shape.says for _, shape in self.choices)

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        for kind, shape in self.choices:
            if isinstance(node.value, kind):
                return shape.read(node, key, faults)
        _refuse(self, node, key, faults)
        return None


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with known keys.

    ``older`` maps an older spelling to the key it became. ``refused`` maps a key
    to what to do instead. Any other unknown key is a fault that names the
    closest known one.
    """

    keys: Mapping[str, Shape]
    required: tuple[str, ...] = ()
    older: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    says: str = "a mapping"

    def read(self, node: Located, key: str, faults: Faults) -> JsonValue:
        return self.table(node, key, faults)

    def table(self, node: Located, key: str, faults: Faults) -> JsonObject | None:
        if not isinstance(node.value, dict):
            _refuse(self, node, key, faults)
            return None
        read: JsonObject = {}
        for name, child in node.value.items():
            inner = f"{key}.{name}" if key else name
            shape, name = self._shape(name, child, inner, node.value, faults)
            if shape is not None and child.value is not None:
                value = shape.read(child, inner, faults)
                if value is not None:
                    read[name] = value
        self._check_required(node, key, faults)
        return read

    def _shape(
        self,
        name: str,
        child: Located,
        inner: str,
        siblings: Mapping[str, Located],
        faults: Faults,
    ) -> tuple[Shape | None, str]:
        newer = self.older.get(name, name)
        if newer != name and newer in siblings:
            faults.add(inner, child.line, f"says the same as {newer!r}", f"Keep only {newer!r}")
            return None, name
        if name in self.refused:
            faults.add(inner, child.line, "is not read here", self.refused[name])
            return None, name
        if newer not in self.keys:
            faults.add(inner, child.line, "is not a known key", self._suggest(name))
            return None, name
        return self.keys[newer], newer

    def _suggest(self, name: str) -> str:
        close = difflib.get_close_matches(name.lower(), self.keys, n=1)
        if close:
            return f"Did you mean {close[0]!r}?"
        return "Known keys: " + ", ".join(sorted(self.keys))

    def _check_required(self, node: Located, key: str, faults: Faults) -> None:
        assert isinstance(node.value, dict)
        for name in self.required:
            child = node.value.get(name)
            if child is None or child.value is None:
                inner = f"{key}.{name}" if key else name
                faults.add(inner, node.line, "is missing", f"It must be {self.keys[name].says}")
