"""The raw traffic of a conversation, kept as it was.

Invariant: a line is on its way to the file before it is parsed or after it was
made, so a crash of ours never hides what an agent said.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

Direction: TypeAlias = Literal["in", "out"]


class WireSink(Protocol):
    """Sees every raw line: ``in`` from the agent, ``out`` to it, without its newline."""

    def __call__(self, direction: Direction, line: bytes) -> None: ...

    def close(self) -> None: ...


WireOpener: TypeAlias = Callable[[str], WireSink]
"""Makes the sink of one conversation, given the id of its sandbox."""


class WireFile:
    """Appends each line to a file, ``<`` from the agent and ``>`` to it."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: what was said last before a crash is what one wants to read.
        self._file = path.open("ab", buffering=0)

    def __call__(self, direction: Direction, line: bytes) -> None:
        mark = b"< " if direction == "in" else b"> "
        self._file.write(mark + line + b"\n")

    def close(self) -> None:
        self._file.close()


def wire_files(folder: Path) -> WireOpener:
    """Sinks that write ``acp-<sandbox>.log`` files into ``folder``."""

    def open_wire(sandbox_id: str) -> WireSink:
        folder.mkdir(parents=True, exist_ok=True)
        return WireFile(folder / f"acp-{sandbox_id.replace('/', '_')}.log")

    return open_wire
