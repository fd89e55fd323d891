"""An agent's stderr: always drained, only its tail kept.

Invariant: an agent never blocks on a full stderr pipe, and no amount of it
costs more than ``KEEP`` bytes.
"""

from __future__ import annotations

import asyncio

KEEP = 64 << 10


class StderrTail:
    """Reads a stream to its end and remembers the last ``KEEP`` bytes."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._tail = bytearray()
        self.total = 0

    async def drain(self, reader: asyncio.StreamReader) -> None:
        """Read until the stream ends."""
        while chunk := await reader.read(1 << 16):
            self.total += len(chunk)
            self._tail += chunk
            del self._tail[: -self._keep]

    def text(self) -> str:
        """The tail as text; a character cut at its start is replaced."""
        return self._tail.decode("utf-8", errors="replace")

    def last_lines(self, count: int = 5, width: int = 500) -> str:
        """The last lines, short enough for an error message."""
        lines = [line for line in self.text().splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-width:]
