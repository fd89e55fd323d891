"""An event loop whose time moves only when nothing else can happen: hours pass at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager


class _InstantSelector(selectors.SelectSelector):
    """Instead of sleeping until the next timer, moves its loop's time there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class InstantLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._instant = _InstantSelector()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


@contextmanager
def _loop() -> Iterator[InstantLoop]:
    loop = InstantLoop()
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def run(body: Coroutine[None, None, None]) -> None:
    with _loop() as loop:
        loop.run_until_complete(body)


def now() -> float:
    return asyncio.get_running_loop().time()
