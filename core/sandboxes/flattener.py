"""Keep chains of layers short, beside everything else that goes on.

A flat layer is named after the layer whose whole state it equals, so that its
rename into place is all there is to commit. Sandboxes that run keep the chain
they were mounted with; later forks stand on the flat layer.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from core.contracts.errors import SnapshotError
from core.sandboxes import boot
from core.sandboxes.identity import is_root
from core.sandboxes.layers import LayerStore, own_name
from core.sandboxes.waiting import finish

FLATTEN_AT = 64
"""Layers from which on a chain is flattened in the background."""
WAIT_AT = 160
"""Layers from which on a fork waits for it: mount options must stay below one page."""
_SECONDS = 600.0
# Only the follow form of what the sandboxes were mounted with; inodes as they are.
_AS_ROOT = "redirect_dir=on,index=off,metacopy=off,xino=off"
_AS_USER = "userxattr,index=off,metacopy=off,xino=off"


class Flattener:
    """Flattens each state at most once at a time. ``close`` ends what is under way."""

    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, layers: Sequence[str]) -> asyncio.Task[None]:
        """Start to flatten a chain, or join the work under way."""
        top = layers[-1]
        task = self._tasks.get(top)
        if task is None or task.done():
            task = asyncio.create_task(self._flatten(tuple(layers)))
            task.add_done_callback(lambda done: self._forget(top, done))
            self._tasks[top] = task
        return task

    def _forget(self, top: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(top) is task:
            del self._tasks[top]
        # A failure matters only to who waits: the chain works as it is.
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Wait for what is under way; cancelled, it is ended."""
        while self._tasks:
            tasks = list(self._tasks.values())
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise

    async def _flatten(self, layers: tuple[str, ...]) -> None:
        store = self._store
        hold, made = own_name("flatten"), store.draft()
        try:
            # To their ends even when cancelled, so that what follows knows what there is.
            await finish(asyncio.to_thread(store.hold, layers[-1], hold))
            await finish(asyncio.to_thread(made.mkdir))
            await self._run(layers, made)
            await finish(asyncio.to_thread(store.add_flat, made, layers[-1]))
        finally:
            await finish(asyncio.to_thread(self._let_go, made, layers[-1], hold))

    def _let_go(self, made: Path, layer: str, hold: str) -> None:
        self._store.discard_draft(made)
        self._store.drop(layer, hold)

    async def _run(self, layers: Sequence[str], made: Path) -> None:
        options = _AS_ROOT if is_root() else _AS_USER
        order = marshal.dumps(
            (str(self._store.layers), list(layers), str(made), options, not is_root())
        )
        place = boot.open_place()
        try:
            process = await asyncio.create_subprocess_exec(
                *boot.command("flatten", place),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(place,),
                env={},
                cwd="/",
            )
        finally:
            os.close(place)
        try:
            async with asyncio.timeout(_SECONDS):
                _, said = await process.communicate(order)
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise SnapshotError(
                f"a deep chain of {len(layers)} layers could not be flattened: "
                f"{said.decode(errors='replace').strip()[-300:]}",
                where=layers[-1],
                remedy="Check free space in the store; branch from an earlier node meanwhile",
            )
