"""Check task packages without running anything: their faults, and what a run would lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.contracts.errors import Fault
from core.tasks.check import find_packages
from core.tasks.needs import Shortfall, shortfalls
from core.tasks.package import read_package


@dataclass(frozen=True, slots=True)
class PackageCheck:
    """What is wrong with one package, and what it asks for and would not get."""

    path: str
    faults: tuple[Fault, ...]
    shortfalls: tuple[Shortfall, ...]

    @property
    def runs(self) -> bool:
        """Whether `bench run` would start it."""
        return not self.faults and not any(item.blocking for item in self.shortfalls)


def check_packages(path: Path) -> list[PackageCheck]:
    """Every package at the path, the good ones too. Blocking: call it from a thread."""
    return [_check(folder) for folder in find_packages(path)]


def _check(folder: Path) -> PackageCheck:
    reading = read_package(folder)
    lacks = shortfalls(reading.task) if reading.task is not None else ()
    return PackageCheck(str(folder), reading.faults, lacks)
