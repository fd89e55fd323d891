"""The local provider: sandboxes on this machine, without any daemon.

Keeps three folders under one root (see ``layers``), a nursery while it has
sandboxes, and an owner file per sandbox from before its first resource to
after its last, so that what a killed engine left can be found and removed.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.contracts.errors import SandboxError, SandboxUnavailable, SnapshotError, UsageError
from core.contracts.sandbox import Limits, Sandbox, SandboxCapabilities, SandboxImage, SandboxSpec
from core.sandboxes import cgroups, plan, reaper
from core.sandboxes.cgroups import Group
from core.sandboxes.layers import LayerStore, new_id
from core.sandboxes.link import Holder, Nursery
from core.sandboxes.rung import OverlayAsRoot, Rung
from core.sandboxes.sandbox import PROVIDER, LocalSandbox, Parts
from core.sandboxes.waiting import finish
from core.sandboxes.wire import Message


class LocalProvider:
    """Implements ``SandboxProvider``. ``labels`` go on everything made."""

    name = PROVIDER

    def __init__(
        self, root: Path, labels: Mapping[str, str] | None = None, *, rung: Rung | None = None
    ) -> None:
        self.rung: Rung = rung or OverlayAsRoot()
        self.store = LayerStore(root)
        self._labels = dict(labels or {})
        self._nursery = Nursery()
        self._live: set[str] = set()
        self._roots: dict[str, Path] | None = None
        self._capabilities: SandboxCapabilities | None = None
        self._obstacles: list[str] | None = None

    async def __aenter__(self) -> LocalProvider:
        """Stay warm between sandboxes (one small process) until the block ends."""
        await self._nursery.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nursery.__aexit__()

    def labels_of(self, spec: SandboxSpec) -> dict[str, str]:
        return {**self._labels, **spec.labels}

    async def probe(self) -> SandboxCapabilities:
        """Start a toy, write, fork and read it back; the answer is kept."""
        if self._capabilities is None:
            self._capabilities = await self._probe()
        return self._capabilities

    async def _probe(self) -> SandboxCapabilities:
        reasons = await asyncio.to_thread(self.rung.obstacles, self.store.root)
        available = not reasons
        if available:
            try:
                await self._try_toy()
            except (SandboxError, OSError, TimeoutError) as error:
                available = False
                reasons = [f"a toy sandbox could not be made: {error}"]
        if available:
            reasons = self._weaknesses()
        return SandboxCapabilities(
            provider=PROVIDER,
            available=available,
            rung=self.rung.name if available else "none",
            o1_fork=self.rung.o1_fork,
            live_parent=self.rung.live_parent and "freezer" in self._hierarchies(),
            path_stable=True,
            reasons=tuple(reasons),
        )

    async def _try_toy(self) -> None:
        spec = SandboxSpec("probe", limits=Limits(processes=16, memory_mb=256))
        first = await self._start(spec)
        made: list[Sandbox] = [first]
        image: SandboxImage | None = None
        try:
            wrote = await first.exec(["sh", "-c", "echo toy > toy"], timeout=10)
            image = await first.snapshot(retire=True)
            made += await self._fork(image, 1)
            read = await made[1].exec(["cat", "toy"], timeout=10)
            if not wrote.ok or read.stdout != b"toy\n":
                raise SandboxError(
                    "the toy's file did not survive a fork",
                    where=(wrote.stderr + read.stderr).decode(errors="replace")[:200],
                )
        finally:
            for sandbox in made:
                await sandbox.teardown()
            if image is not None:
                await self.discard(image)

    def _weaknesses(self) -> list[str]:
        missing = Group(self.store.tag, "", self._hierarchies()).missing
        if not missing:
            return []
        return [
            f"no control group for {', '.join(missing)}: those limits do not hold, and without "
            "the freezer a snapshot must retire its sandbox; mount the cgroup file systems"
        ]

    def _hierarchies(self) -> dict[str, Path]:
        if self._roots is None:
            self._roots = cgroups.discover()
        return self._roots

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.require()
        return await self._start(spec)

    async def require(self) -> None:
        """Refuse what cannot work. The toy is left to ``probe``: a real start tries it all."""
        if self._obstacles is None:
            self._obstacles = await asyncio.to_thread(self.rung.obstacles, self.store.root)
        if self._obstacles:
            raise SandboxUnavailable(
                "the local sandbox cannot run on this machine",
                where=str(self.store.root),
                remedy="; ".join(self._obstacles),
            )

    async def _start(self, spec: SandboxSpec) -> Sandbox:
        layout = plan.make(spec)
        await asyncio.to_thread(self.store.open)
        layer = await asyncio.to_thread(self.store.base, layout.seeds)
        return await self._boot(spec, layout, (layer,), None)

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        await self.require()
        return await self._fork(image, n)

    async def _fork(self, image: SandboxImage, n: int) -> list[Sandbox]:
        self.check_image(image)
        if n < 1:
            raise UsageError(f"cannot fork {n} sandboxes", remedy="Ask for at least one")
        layout = plan.make(image.spec)
        boots = [self._boot(image.spec, layout, image.layers, image.id) for _ in range(n)]
        tasks = [asyncio.ensure_future(boot) for boot in boots]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await self._undo(tasks)
            raise
        if any(task.exception() for task in tasks):
            await self._undo(tasks)
        return [task.result() for task in tasks]

    async def _undo(self, tasks: Sequence[asyncio.Future[Sandbox]]) -> None:
        """None or all: tear down what was made beside one that failed."""
        for made in await finish(asyncio.gather(*tasks, return_exceptions=True)):
            if isinstance(made, LocalSandbox):
                await made.teardown()

    def check_image(self, image: SandboxImage) -> None:
        """Raises SnapshotError for an image this provider cannot mount."""
        if image.provider != PROVIDER or image.rung != self.rung.name or not image.layers:
            raise SnapshotError(
                f"this image was made by {image.provider}/{image.rung}",
                where=image.id,
                remedy=f"Use that provider; this one is {PROVIDER}/{self.rung.name}",
            )

    async def _boot(
        self, spec: SandboxSpec, layout: plan.Plan, layers: tuple[str, ...], image: str | None
    ) -> Sandbox:
        """A new sandbox, or nothing of it: cancelling in between undoes it first."""
        booting = asyncio.ensure_future(self._boot_whole(spec, layout, layers, image))
        try:
            return await asyncio.shield(booting)
        except asyncio.CancelledError:
            await asyncio.wait([booting])
            if booting.exception() is None:
                await finish(booting.result().teardown())
            raise

    async def _boot_whole(
        self, spec: SandboxSpec, layout: plan.Plan, layers: tuple[str, ...], image: str | None
    ) -> LocalSandbox:
        id = new_id("s")
        folder = self.store.sandboxes / id
        group = Group(self.store.tag, id, self._hierarchies())
        await self._nursery.__aenter__()
        self._live.add(id)
        try:
            await asyncio.to_thread(self._prepare, id, spec, folder, layers, group)
            holder = await self._birth(id, spec, layout, folder, layers, group)
        except BaseException:
            await finish(self.forget(id, folder, layers[-1], group))
            raise
        return LocalSandbox(self, Parts(id, spec, folder, layers, image, group, holder))

    def _prepare(
        self, id: str, spec: SandboxSpec, folder: Path, layers: tuple[str, ...], group: Group
    ) -> None:
        folder.mkdir(mode=0o700)
        reaper.write_owner(folder, self.labels_of(spec), layers[-1])
        self.store.hold(layers[-1], f"sandbox-{id}")
        for name in ("upper", "work"):
            (folder / name).mkdir(mode=0o755)
        group.create(spec.limits)

    async def _birth(
        self,
        id: str,
        spec: SandboxSpec,
        layout: plan.Plan,
        folder: Path,
        layers: tuple[str, ...],
        group: Group,
    ) -> Holder:
        message: Message = {
            "op": "hold",
            "folder": str(folder),
            "layers": str(self.store.layers),
            "lowers": list(layers),
            "options": self.rung.mount_options,
            "cgroups": group.joins,
            "hostname": "sandbox",
            "views": dict(layout.views),
            "limits": [
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_FSIZE, spec.limits.file_mb << 20),
                (resource.RLIMIT_NOFILE, 8192),
            ],
        }
        return await self._nursery.birth(id, message)

    async def reboot(
        self, id: str, spec: SandboxSpec, folder: Path, layers: tuple[str, ...], group: Group
    ) -> Holder:
        """A new holder for a stopped sandbox, on other layers."""
        await asyncio.to_thread(self._clear, folder, spec, layers[-1])
        return await self._birth(id, spec, plan.make(spec), folder, layers, group)

    def _clear(self, folder: Path, spec: SandboxSpec, layer: str) -> None:
        reaper.write_owner(folder, self.labels_of(spec), layer)
        for name in ("upper", "work", "merged", "view"):
            self.store.delete(folder / name)
        for name in ("upper", "work"):
            (folder / name).mkdir(mode=0o755)

    async def forget(self, id: str, folder: Path, layer: str, group: Group) -> None:
        """Remove what a sandbox without processes still has: groups, files, its hold on layers."""
        try:
            gone = await asyncio.to_thread(group.remove)
            if not gone:
                raise SandboxError(
                    "a process of the sandbox does not end",
                    where=", ".join(str(pid) for pid in sorted(group.members())),
                    remedy="It hangs in the kernel; `bench reap` removes the rest once it is gone",
                )
            await asyncio.to_thread(self._remove, id, folder, layer)
        finally:
            self._live.discard(id)
            await self._nursery.__aexit__()

    def _remove(self, id: str, folder: Path, layer: str) -> None:
        # The owner file goes last, by the rename of the whole folder.
        self.store.drop(layer, f"sandbox-{id}")
        self.store.delete(folder)

    async def discard(self, image: SandboxImage) -> None:
        await asyncio.to_thread(self.store.forget_image, image.id, image.layers)

    async def reap(self, *, is_live: Callable[[Mapping[str, str]], bool]) -> list[str]:
        """Remove sandboxes, then images, whose labels are not live; see ``reaper``."""
        await asyncio.to_thread(self.store.open)
        return await asyncio.to_thread(
            reaper.reap, self.store, self._hierarchies(), frozenset(self._live), is_live
        )


__all__ = ["LocalProvider", "LocalSandbox"]
