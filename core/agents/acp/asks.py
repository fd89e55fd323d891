"""The agent's open questions and permissions.

Invariant: each request gets exactly one answer. When the turn is cancelled all
open ones are answered "cancelled" before anything else is said to the agent;
two with one tool call id, or at one time, never replace each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class OpenAsks:
    """Waits for answers, and can settle all that wait at once."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[None]] = set()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def waiting(self) -> bool:
        """Whether any request is not answered yet."""
        return bool(self._open)

    async def wait(self, answer: Awaitable[T]) -> T | None:
        """The answer, or None when it was settled as cancelled meanwhile."""
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(stop)
        self._drained.clear()
        task = asyncio.ensure_future(answer)
        task.add_done_callback(lambda _: _release(stop))
        try:
            await stop
            return task.result() if task.done() and not task.cancelled() else None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            self._open.discard(stop)
            if not self._open:
                self._drained.set()

    async def cancel_all(self, limit: float) -> None:
        """Settle everything that waits, and wait until it left, at most ``limit`` seconds."""
        for stop in self._open:
            _release(stop)
        # A handler that swallows its cancellation must not keep the turn alive.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._drained.wait()


def _release(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)
