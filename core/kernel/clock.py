"""Time: stopwatches for phases, and an agent's limit that stops while a person thinks.

Durations use the monotonic clock of the running loop, never wall time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class AgentClock:
    """The agent's time limit. It does not run while at least one pause is held.

    Use: ``async with clock.limit(): ...`` raises TimeoutError once ``seconds`` of
    unpaused time have passed; ``with clock.paused(): ...`` around anything that
    waits for a user. None means no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._pauses = 0
        self._running_since: float | None = None
        self._timeout: asyncio.Timeout | None = None
        self._paused_total = 0.0
        self._paused_since = 0.0

    @property
    def paused_seconds(self) -> float:
        """How long a user was waited for, so far."""
        total = self._paused_total
        if self._pauses:
            total += _now() - self._paused_since
        return total

    def limit(self) -> _Limit:
        return _Limit(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._pauses += 1
        if self._pauses == 1:
            self._paused_since = _now()
            self._stop()
            self._reschedule(None)
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._paused_total += _now() - self._paused_since
                if self._timeout is not None:
                    self._reschedule(self._start())

    def _reschedule(self, when: float | None) -> None:
        # A limit that was reached in this very tick cannot be moved any more.
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(when)

    def _start(self) -> float | None:
        """Begin to count; the loop time at which the limit is reached."""
        self._running_since = _now()
        return None if self._left is None else self._running_since + self._left

    def _stop(self) -> None:
        if self._running_since is not None and self._left is not None:
            self._left = max(0.0, self._left - (_now() - self._running_since))
        self._running_since = None


class _Limit:
    def __init__(self, clock: AgentClock) -> None:
        self._clock = clock

    async def __aenter__(self) -> None:
        clock = self._clock
        timeout = asyncio.timeout_at(None if clock._pauses else clock._start())
        await timeout.__aenter__()
        clock._timeout = timeout

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        clock = self._clock
        timeout, clock._timeout = clock._timeout, None
        clock._stop()
        assert timeout is not None
        await timeout.__aexit__(kind, error, trace)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Stopwatch:
    """Seconds since it was made, and named parts of them."""

    def __init__(self) -> None:
        self._began = _now()
        self.parts: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return _now() - self._began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = _now()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + _now() - began
