"""What lists the tests compare before and after: processes, mounts, groups, files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from core.sandboxes.cgroups import discover, names
from core.sandboxes.layers import LayerStore


def descendants(pid: int) -> set[int]:
    """All living processes below ``pid``, zombies not counted."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            found.add(child)
            pending.append(child)
    return found


def with_argument(mark: str) -> set[int]:
    """Processes anywhere on the machine that carry ``mark`` in their command line."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def mounts(root: Path) -> list[str]:
    return [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line
    ]


def groups(root: Path) -> set[str]:
    return names(LayerStore(root).tag, discover())


def files(root: Path) -> set[str]:
    """Everything in a store but the cached seed layers and the lock."""
    return {
        str(path.relative_to(root))
        for folder in ("layers", "images", "sandboxes", "trash")
        for path in (root / folder).iterdir()
        if not path.name.startswith("b")
    }


async def until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for something that another process does. Fails the test when it never happens."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (no event comes from outside)
            await asyncio.sleep(0.01)
