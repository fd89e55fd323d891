"""Work that must not be cut short: ending, recording and tearing down.

Whoever uses it gives the work deadlines of its own; a cancellation waits for
them, and is raised again afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from core.contracts.errors import BenchFlowError

T = TypeVar("T")


async def finish(work: Coroutine[object, object, T]) -> T:
    """Run ``work`` to its end, however often the caller is cancelled meanwhile.

    A cancellation is raised after it, before the work's own error.
    """
    task = asyncio.create_task(work)
    cancelled = await outlast(task)
    if cancelled is not None:
        raise cancelled
    return task.result()


async def outlast(task: asyncio.Task[T], *, stop: bool = False) -> asyncio.CancelledError | None:
    """Wait until ``task`` is done; the first cancellation that came meanwhile, if any.

    With ``stop`` that cancellation is passed on to the task, once.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            if stop and cancelled is None:
                task.cancel()
            cancelled = cancelled or error
    if not task.cancelled():
        # Marks the error as seen: where a cancellation comes first nobody asks for it.
        task.exception()
    return cancelled


@asynccontextmanager
async def deadline(
    seconds: float | None, kind: type[BenchFlowError], what: str
) -> AsyncIterator[None]:
    """Bound the body: past ``seconds`` it is cancelled and ``kind`` says so."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise kind(
            f"{what} took longer than {seconds:g} s",
            remedy="Raise this limit, or find what hangs in the rollout's log",
        ) from error
