"""One local sandbox: a holder, its limits, its layer, its door.

Whatever happens to the engine, the holder and all below it end with it; what
stays on disk is named by an owner file that was written first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from core.contracts.errors import SandboxError, SandboxLost, SnapshotError, StoreFull
from core.contracts.sandbox import Captured, Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.cgroups import FREEZE_SECONDS, Group
from core.sandboxes.inside import Inside
from core.sandboxes.layers import LayerStore, new_id
from core.sandboxes.link import Holder, end
from core.sandboxes.rung import Rung
from core.sandboxes.waiting import finish

PROVIDER = "local"
_STOP_SECONDS = 30.0


@dataclass(slots=True)
class Parts:
    """What a sandbox is made of; the provider puts it together."""

    id: str
    spec: SandboxSpec
    folder: Path
    layers: tuple[str, ...]
    image: str | None
    """The image it was forked from."""
    group: Group
    holder: Holder


class Maker(Protocol):
    """What a sandbox needs of the provider that made it."""

    store: LayerStore

    @property
    def rung(self) -> Rung: ...

    def labels_of(self, spec: SandboxSpec) -> dict[str, str]: ...

    async def chain(self, image: SandboxImage) -> tuple[str, ...]: ...

    def captured(self) -> None: ...

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]: ...

    async def discard(self, image: SandboxImage) -> None: ...

    async def reboot(
        self, id: str, spec: SandboxSpec, folder: Path, layers: tuple[str, ...], group: Group
    ) -> Holder: ...

    async def forget(self, id: str, folder: Path, layer: str, group: Group) -> None: ...


class LocalSandbox(Inside):
    """Implements ``Sandbox`` on this machine."""

    def __init__(self, provider: Maker, parts: Parts) -> None:
        super().__init__(parts.id, parts.spec, parts.holder)
        self._provider = provider
        self._folder = parts.folder
        self._layers = parts.layers
        self._image = parts.image
        self._group = parts.group
        self._changing = asyncio.Lock()

    async def freeze(self) -> None:
        self._alive()
        self._thawed.clear()
        try:
            await finish(self._freeze())
        except BaseException:
            await self.thaw()
            raise

    async def _freeze(self) -> None:
        if self._group.can_freeze:
            await asyncio.to_thread(self._group.freeze)
            return
        try:
            await self._holder.channel.request({"op": "freeze", "seconds": FREEZE_SECONDS})
        except OSError as error:
            raise SandboxError(
                f"the sandbox did not stand still within {FREEZE_SECONDS:g} s: {error.strerror}",
                where=self._id,
                remedy="Look for a program that hangs in the kernel (state D)",
            ) from error

    async def thaw(self) -> None:
        await finish(self._thaw())
        self._thawed.set()

    async def _thaw(self) -> None:
        if self._group.can_freeze:
            await asyncio.to_thread(self._group.thaw)
        elif not self._thawed.is_set() and not self._holder.ended.is_set():
            # A sandbox that is lost needs no thaw; whoever uses it next is told.
            with contextlib.suppress(SandboxLost, OSError):
                await self._holder.channel.request({"op": "thaw"})

    async def snapshot(self, *, retire: bool = False) -> SandboxImage:
        async with self._changing:
            self._alive()
            work = asyncio.ensure_future(self._snapshot(retire))
            try:
                return await finish(work)
            except asyncio.CancelledError:
                # Nobody will ever hold this image.
                if work.done() and not work.cancelled() and work.exception() is None:
                    await self._provider.discard(work.result())
                raise

    async def _snapshot(self, retire: bool) -> SandboxImage:
        began = time.monotonic()
        image = new_id("i")
        if retire:
            await self._stop()
            self._retired = True
            layers, size = await asyncio.to_thread(self._capture, image, True)
        else:
            layers, size = await self._capture_alive(image)
        await asyncio.to_thread(
            self._provider.store.save_image, image, layers, self._provider.labels_of(self._spec)
        )
        self._provider.captured()
        return SandboxImage(
            id=image,
            provider=PROVIDER,
            parent=self._image,
            rung=self._provider.rung.name,
            layers=layers,
            new_bytes=size,
            seconds=time.monotonic() - began,
            captured=frozenset({Captured.FILES}),
            spec=self._spec,
        )

    async def _capture_alive(self, image: str) -> tuple[tuple[str, ...], int]:
        was_frozen = not self._thawed.is_set()
        if not was_frozen:
            await self.freeze()
        try:
            return await asyncio.to_thread(self._capture, image, False)
        finally:
            if not was_frozen:
                await self.thaw()

    def _capture(self, image: str, retire: bool) -> tuple[tuple[str, ...], int]:
        """The layers of the image and the bytes of the new one. Blocks."""
        store, rung = self._provider.store, self._provider.rung
        # What was flattened while we ran need not stay for the sake of our children.
        below = store.shorten(self._layers)
        try:
            layer, size = rung.capture(
                store, self._folder, below[-1], f"image-{image}", retire=retire
            )
            if layer is None:
                return below, size
            return ((*below, layer) if rung.deltas else (layer,)), size
        except StoreFull as error:
            # The rollout itself goes on without this state.
            raise SnapshotError(error.what, where=error.where, remedy=error.remedy) from error
        except OSError as error:
            raise SnapshotError(
                f"the sandbox's files could not be read: {error.strerror}",
                where=str(error.filename or self._folder),
                remedy="Take another snapshot",
            ) from error

    async def _stop(self) -> None:
        """End every program and mount of this sandbox, and prove it. Files stay."""
        await self._relay.close()
        for door in self._doors:
            await door.close()
        self._doors.clear()
        holder = self._holder
        if not holder.ended.is_set():
            try:
                if not self._thawed.is_set():
                    holder.kill()
                else:
                    await holder.channel.request({"op": "quit"}, timeout=_STOP_SECONDS)
            except (SandboxLost, OSError):
                holder.kill()
            # Frozen programs die only when they run again; they are under sentence already.
            await self.thaw()
            await end(holder)
        for process in self._processes:
            process.abandon()
        self._processes.clear()

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        return await self._provider.fork(image, n)

    async def restore(self, image: SandboxImage) -> None:
        async with self._changing:
            if self._torn:
                raise SandboxLost("the sandbox was torn down", where=self._id)
            await finish(self._restore(image))

    async def _restore(self, image: SandboxImage) -> None:
        layers = await self._provider.chain(image)
        store, ref = self._provider.store, f"sandbox-{self._id}"
        await asyncio.to_thread(store.hold, layers[-1], ref)
        await self._stop()
        before = self._layers
        self._layers = layers
        self._image = image.id
        self._spec = image.spec
        if before[-1] != layers[-1]:
            await asyncio.to_thread(store.drop, before[-1], ref)
        self._holder = await self._provider.reboot(
            self._id, self._spec, self._folder, self._layers, self._group
        )
        self._retired = False
        await self._relay.reopen()

    async def teardown(self) -> None:
        async with self._changing:
            if self._torn:
                return
            self._torn = True
            await finish(self._teardown())

    async def _teardown(self) -> None:
        problem: SandboxError | None = None
        try:
            await self._stop()
        except (SandboxError, TimeoutError) as error:
            problem = SandboxLost(
                f"programs of the sandbox could not be proven dead: {error}",
                where=self._id,
                remedy="Run `bench reap` later; a program may hang in the kernel",
            )
        try:
            await self._provider.forget(self._id, self._folder, self._layers[-1], self._group)
        except OSError as error:
            raise SandboxError(
                f"files of the sandbox could not be removed: {error.strerror}",
                where=str(error.filename or self._folder),
                remedy="Run `bench reap`",
            ) from error
        if problem is not None:
            raise problem
