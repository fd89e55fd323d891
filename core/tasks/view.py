"""Typed reads from a value that a shape has already checked.

A value of another type than asked reads as absent: the shape reported it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.contracts.values import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class View:
    data: Mapping[str, JsonValue]

    def text(self, name: str, default: str = "") -> str:
        value = self.data.get(name)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: float) -> float:
        value = self.data.get(name)
        return float(value) if isinstance(value, int | float) else default

    def whole(self, name: str, default: int) -> int:
        value = self.data.get(name)
        return value if isinstance(value, int) else default

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        return value if isinstance(value, bool) else default

    def table(self, name: str) -> View:
        value = self.data.get(name)
        return View(value if isinstance(value, dict) else {})

    def items(self, name: str) -> list[JsonValue]:
        value = self.data.get(name)
        return value if isinstance(value, list) else []

    def tables(self, name: str) -> list[View]:
        return [View(item) for item in self.items(name) if isinstance(item, dict)]

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(item for item in self.items(name) if isinstance(item, str))

    def pairs(self, name: str) -> dict[str, str]:
        value = self.table(name).data
        return {key: item for key, item in value.items() if isinstance(item, str)}

    def rest(self, *acted_on: str) -> JsonObject:
        """Everything but the named keys."""
        return {key: value for key, value in self.data.items() if key not in acted_on}
