"""Waiting that a cancellation may interrupt but not break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Run clean-up to its end even when the caller is cancelled, then pass that on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def in_thread(
    work: Callable[[int], None], fd: int, give_up: Callable[[], Awaitable[None]]
) -> None:
    """Run blocking pipe work in a thread; on cancellation ``give_up`` must break the pipe."""
    thread = asyncio.ensure_future(asyncio.to_thread(work, fd))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        await give_up()
        await asyncio.wait([thread])
        thread.exception()
        raise
