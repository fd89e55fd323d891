"""Check packages without running anything: the list that loading one would raise."""

from __future__ import annotations

from pathlib import Path

from core.contracts.errors import Fault
from core.tasks.package import read_package


def check_task(path: Path) -> list[Fault]:
    """Every fault of one package, over all its files; empty when it can be run."""
    return list(read_package(path).faults)


def find_packages(path: Path) -> list[Path]:
    """The packages at a path: itself, or the folders directly below that hold a ``task.md``."""
    if path.name == "task.md":
        return [path.parent]
    if (path / "task.md").exists() or not path.is_dir():
        return [path]
    below = sorted(child for child in path.iterdir() if (child / "task.md").is_file())
    return below or [path]
