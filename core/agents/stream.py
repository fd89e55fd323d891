"""The updates of one session: a bounded queue with one reader.

Invariant: updates leave in the order they came; a writer that awaits ``put``
waits while the reader is behind, so a fast agent cannot fill our memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from core.contracts.agent import SessionUpdate

MAX_ITEMS = 1000
MAX_BYTES = 8 << 20


class UpdateStream:
    """A bounded hand-over of updates, by count and by bytes on the wire."""

    def __init__(self, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[SessionUpdate, int]] = deque()
        self._bytes = 0
        self._received = 0
        self._arrivals = 0
        self._handled = 0
        self._closed = False
        self._has_reader = False
        self._sleepers: list[asyncio.Future[None]] = []

    @property
    def received(self) -> int:
        """Updates that came in so far."""
        return self._received

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._max_items or self._bytes >= self._max_bytes

    async def put(self, update: SessionUpdate, size: int = 0) -> None:
        """Hand over one update of ``size`` bytes; waits while the stream is full."""
        await self._until(lambda: self._closed or not self.full)
        self.put_now(update, size)

    def put_now(self, update: SessionUpdate, size: int = 0) -> None:
        """Hand over one update even when the stream is full; dropped once closed."""
        if self._closed:
            return
        self._waiting.append((update, size))
        self._bytes += size
        self._received += 1
        self.passed_by()

    def passed_by(self) -> None:
        """Note something that came but is not handed over; ``quiet`` waits for its end too."""
        self._arrivals += 1
        self._wake()

    def close(self) -> None:
        """No more updates; the reader ends after those that wait."""
        self._closed = True
        self._wake()

    async def read(self) -> AsyncIterator[SessionUpdate]:
        """Every update until the stream is closed. One reader only."""
        self._has_reader = True
        try:
            while True:
                await self._until(lambda: self._closed or bool(self._waiting))
                if not self._waiting:
                    return
                update, size = self._waiting.popleft()
                self._bytes -= size
                self._wake()
                yield update
                self._handled += 1
                self._wake()
        finally:
            self._has_reader = False
            self._wake()

    async def settle(self) -> None:
        """Wait until the reader is done with every update received so far.

        An update counts as done when the reader asks for the next one. Returns
        at once where nobody reads.
        """
        target = self._received
        await self._until(lambda: self._handled >= target or not self._has_reader)

    async def quiet(self, silence: float, limit: float) -> None:
        """Wait for ``silence`` seconds without an update, at most ``limit`` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while not self._closed and (left := end - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(silence, left)):
                    await self._next(self._arrivals)
            except TimeoutError:
                return

    async def _next(self, seen: int) -> None:
        await self._until(lambda: self._closed or self._arrivals != seen)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            await sleeper

    def _wake(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
