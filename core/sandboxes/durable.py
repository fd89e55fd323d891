"""Bring captured layers to the disk, behind the rollouts.

Nothing waits for the disk while it runs; a layer counts after a reboot only
once this has marked it. One call for the whole file system covers every layer
captured before it.
"""

from __future__ import annotations

import asyncio
import contextlib

from core.sandboxes.layers import LayerStore

_PAUSE = 2.0
"""Seconds in which captures are gathered for one call."""


class Syncer:
    """Syncs a store some time after ``later``; ``close`` does at once what is still due."""

    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._due = False
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        self._due = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._due:
            await asyncio.sleep(_PAUSE)
            await self._sync()

    async def _sync(self) -> None:
        self._due = False
        # Without the mark the layers count until the machine restarts; the next call tries again.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._store.sync)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._due:
            await self._sync()
