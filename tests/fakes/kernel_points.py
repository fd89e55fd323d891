"""Points: places in the fakes where a test can watch, hold or fail a run.

Every fake reaches a named point before it does the thing of that name; nothing
in the product is patched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping


class Points:
    """What was reached so far, in order, and what happens there."""

    def __init__(
        self, *, hold: Iterable[str] = (), fail: Mapping[str, BaseException] | None = None
    ) -> None:
        self.seen: list[str] = []
        self._hold = set(hold)
        self._fail = dict(fail or {})
        self._changed = asyncio.Event()

    async def reach(self, name: str) -> None:
        """Note the point; raise or wait there when the test said so."""
        self.seen.append(name)
        self._wake()
        if name in self._fail:
            raise self._fail[name]
        while name in self._hold:
            await self._changed.wait()

    async def reached(self, name: str, *, times: int = 1) -> None:
        """Return once the point was reached that often."""
        async with asyncio.timeout(10):
            while self.seen.count(name) < times:
                await self._changed.wait()

    def release(self, name: str) -> None:
        self._hold.discard(name)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
