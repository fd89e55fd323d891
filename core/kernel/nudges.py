"""Nudges: the follow-ups that wait for a line's turn to end.

Invariant: what was promised before the line's last turn is still delivered;
after it nothing is promised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from core.contracts.errors import Conflict
from core.contracts.user import Nudge


class Nudges:
    """One line's queue of follow-ups, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Nudge] = []
        self._holders = 0
        self._changed = asyncio.Event()
        self._open = True

    def put(self, nudge: Nudge) -> None:
        self._waiting.append(nudge)
        self._changed.set()

    @contextmanager
    def promised(self) -> Iterator[None]:
        """While inside, ``last`` waits. Raises Conflict when the last turn is over."""
        if not self._open:
            raise Conflict(
                "the agent has had its last turn",
                remedy="Look at its result with `bench show`",
            )
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._changed.set()

    async def come(self) -> None:
        """Until one waits."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> Nudge | None:
        return self._waiting.pop(0) if self._waiting else None

    async def last(self) -> Nudge | None:
        """The next one, those being promised included; None closes the queue for good."""
        while not self._waiting and self._holders:
            self._changed.clear()
            await self._changed.wait()
        self._open = bool(self._waiting)
        return self.take()

    def close(self) -> None:
        """The turns are over, however it came."""
        self._open = False
