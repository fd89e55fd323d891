"""Which tool calls of a line run now, so that a capture can wait for them.

Invariant: a call runs from the update that announces it to the one that ends it,
or to the end of its turn; one that itself waits for the user does not. The wait
is by event, and bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from core.contracts.agent import SessionUpdate, ToolUpdate
from core.kernel.steps import FINISHED

_TITLE = 80
"""Characters of a call's title that are kept."""


class RunningTools:
    """The open tool calls of one line. Fed by the reader of its session's updates."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        """Id to title, in the order they were announced."""
        self._asking: list[str] = []
        self._changed = asyncio.Event()

    def feed(self, update: SessionUpdate) -> None:
        """Take note of an update; most are no tool call."""
        if not isinstance(update, ToolUpdate):
            return
        call = update.tool_call_id
        if update.status in FINISHED:
            self._open.pop(call, None)
        elif call in self._open or update.status is not None:
            self._open[call] = update.title or self._open.get(call, "")
        self._changed.set()

    def turn_ended(self) -> None:
        """What was never reported as ended is of no turn any more."""
        self._open.clear()
        self._changed.set()

    @contextmanager
    def asking(self, call: str | None) -> Iterator[None]:
        """While this call waits for the user it does not run.

        An agent that does not say which call asks is taken to ask from the newest.
        """
        newest = next((item for item in reversed(self._open) if item not in self._asking), "")
        own = call or newest
        self._asking.append(own)
        self._changed.set()
        try:
            yield
        finally:
            self._asking.remove(own)
            self._changed.set()

    @property
    def busy(self) -> str:
        """What runs now, in words; empty when nothing does."""
        running = [
            f"{call!r} ({title[:_TITLE]})" if title else repr(call)
            for call, title in self._open.items()
            if call not in self._asking
        ]
        return f"tool calls that still ran: {', '.join(running)}" if running else ""

    async def finished(self, seconds: float) -> str:
        """Wait until nothing runs, at most this long; what still does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.busy:
                    self._changed.clear()
                    await self._changed.wait()
        return self.busy
