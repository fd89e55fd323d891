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
from core.sandboxes.durable import Syncer
from core.sandboxes.flattener import FLATTEN_AT, WAIT_AT, Flattener
from core.sandboxes.ladder import Choice, Ladder, named
from core.sandboxes.layers import LayerStore, new_id
from core.sandboxes.link import Holder, Nursery
from core.sandboxes.rung import Rung
from core.sandboxes.sandbox import PROVIDER, LocalSandbox, Parts
from core.sandboxes.waiting import finish
from core.sandboxes.wire import Message

_TOY_BEFORE = "mkdir d && echo old > d/old && echo toy > toy"
_TOY_AFTER = "rm -r d && mkdir d && ls -A d && mv d e && cat toy"


class LocalProvider:
    """Implements ``SandboxProvider``. ``labels`` go on everything made.

    ``rung`` forces one; by default the best that works here is found. From
    ``flatten_at`` layers on a state is flattened in the background.
    """

    name = PROVIDER

    def __init__(
        self,
        root: Path,
        labels: Mapping[str, str] | None = None,
        *,
        rung: Rung | None = None,
        flatten_at: int = FLATTEN_AT,
    ) -> None:
        self.store = LayerStore(root)
        self._ladder = Ladder(self.store.root, rung)
        self._rung: Rung | None = None
        self._choice: Choice | None = None
        self._choosing = asyncio.Lock()
        self._labels = dict(labels or {})
        self._nursery = Nursery()
        self._live: set[str] = set()
        self._roots: dict[str, Path] | None = None
        self._capabilities: SandboxCapabilities | None = None
        self._flatten_at = flatten_at
        self.flattener = Flattener(self.store)
        self._syncer = Syncer(self.store)

    async def __aenter__(self) -> LocalProvider:
        """Stay warm between sandboxes (one small process) until the block ends."""
        await self._nursery.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flattener.close()
            await self._syncer.close()
        finally:
            await self._nursery.__aexit__()

    @property
    def rung(self) -> Rung:
        if self._rung is None:
            raise RuntimeError("no rung was chosen yet")
        return self._rung

    def labels_of(self, spec: SandboxSpec) -> dict[str, str]:
        return {**self._labels, **spec.labels}

    async def probe(self) -> SandboxCapabilities:
        """Start a toy, write, fork and read it back; the answer is kept."""
        if self._capabilities is None:
            async with self._choosing:
                await asyncio.to_thread(self.store.open)
                self._use(await self._ladder.climb(self._toy))
            self._capabilities = await asyncio.to_thread(self._describe)
        return self._capabilities

    def _use(self, choice: Choice) -> None:
        self._choice = choice
        if choice.rung is not None:
            self._mount(choice.rung)

    def _mount(self, rung: Rung) -> None:
        self._rung = rung
        self.store.trees, self.store.format = rung.trees, rung.format

    def _describe(self) -> SandboxCapabilities:
        choice = self._choice or Choice(None, ())
        rung, reasons = choice.rung, list(choice.passed)
        if rung is not None:
            reasons += rung.weaknesses(self.store.root)
            reasons += cgroups.weaknesses(self._hierarchies())
        return SandboxCapabilities(
            provider=PROVIDER,
            available=rung is not None,
            rung=rung.name if rung else "none",
            o1_fork=rung is not None and rung.o1_fork,
            live_parent=rung is not None and rung.live_parent,
            path_stable=True,
            reasons=tuple(reasons),
        )

    async def _toy(self, rung: Rung) -> None:
        """Raises SandboxError where a written file, a deleted and a renamed folder do not last."""
        self._mount(rung)
        spec = SandboxSpec("probe", limits=Limits(processes=16, memory_mb=256))
        first = await self._start(spec)
        made: list[Sandbox] = [first]
        image: SandboxImage | None = None
        try:
            wrote = await first.exec(["sh", "-c", _TOY_BEFORE], timeout=10)
            image = await first.snapshot(retire=True)
            made += await self._fork(image, 1)
            read = await made[1].exec(["sh", "-c", _TOY_AFTER], timeout=10)
            if not wrote.ok or read.stdout != b"toy\n":
                raise SandboxError(
                    "the toy's files did not survive a fork",
                    where=(wrote.stderr + read.stderr).decode(errors="replace")[:200],
                )
        finally:
            for sandbox in made:
                await sandbox.teardown()
            if image is not None:
                await self.discard(image)

    def _hierarchies(self) -> dict[str, Path]:
        if self._roots is None:
            self._roots = cgroups.discover()
        return self._roots

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.require()
        return await self._start(spec)

    async def require(self) -> None:
        """Refuse what cannot work; what works is found by trying, once until a restart."""
        async with self._choosing:
            if self._choice is None:
                self._use(await self._choose())
        if self._choice is not None and self._choice.rung is None:
            raise SandboxUnavailable(
                "the local sandbox cannot run on this machine",
                where=str(self.store.root),
                remedy="; ".join(self._choice.passed),
            )

    async def _choose(self) -> Choice:
        known = await asyncio.to_thread(self._ladder.recall)
        if known is not None:
            return known
        await asyncio.to_thread(self.store.open)
        return await self._ladder.climb(self._toy)

    async def _start(self, spec: SandboxSpec) -> Sandbox:
        layout = plan.make(spec)
        layer = await asyncio.to_thread(self._base, layout)
        return await self._boot(spec, layout, (layer,), None)

    def _base(self, layout: plan.Plan) -> str:
        self.store.open()
        self.store.check_room()
        return self.store.base(layout.seeds)

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        await self.require()
        return await self._fork(image, n)

    async def _fork(self, image: SandboxImage, n: int) -> list[Sandbox]:
        self.check_image(image)
        if n < 1:
            raise UsageError(f"cannot fork {n} sandboxes", remedy="Ask for at least one")
        layout = plan.make(image.spec)
        layers = await self.chain(image)
        boots = [self._boot(image.spec, layout, layers, image.id) for _ in range(n)]
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

    async def chain(self, image: SandboxImage) -> tuple[str, ...]:
        """The layers to mount for an image, checked; a deep chain is flattened on the way.

        Raises SnapshotError for an image this provider cannot mount, StoreFull without space.
        """
        self.check_image(image)
        layers = await asyncio.to_thread(self._checked, image.layers)
        if self.rung.deltas and len(layers) >= self._flatten_at:
            work = self.flattener.begin(layers)
            if len(layers) >= WAIT_AT:
                await asyncio.shield(work)
                layers = await asyncio.to_thread(self._checked, image.layers)
        return layers

    def _checked(self, layers: Sequence[str]) -> tuple[str, ...]:
        short = self.store.shorten(layers)
        self.store.check(short)
        self.store.check_room()
        return short

    def check_image(self, image: SandboxImage) -> None:
        """Raises SnapshotError for an image of another provider, or of layers that mean
        nothing to this rung."""
        maker = named(image.rung)
        format = maker.format if maker else image.rung
        if image.provider != PROVIDER or format != self.rung.format or not image.layers:
            raise SnapshotError(
                f"this image was made by {image.provider}/{image.rung}",
                where=image.id,
                remedy=f"Use that provider; this one is {PROVIDER}/{self.rung.name}",
            )

    def captured(self) -> None:
        """Tell that there is a new layer."""
        self._syncer.later()

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
        self._lay(folder, layers)
        group.create(spec.limits)

    def _lay(self, folder: Path, layers: tuple[str, ...]) -> None:
        try:
            self.rung.lay(self.store, folder, layers)
        except OSError as error:
            raise SandboxError(
                f"cannot lay out the sandbox's files: {error.strerror}",
                where=str(error.filename or folder),
                remedy="Check free space in the store",
            ) from error

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
            "lowers": list(layers) if self.rung.deltas else [],
            "options": self.rung.mount_options,
            "cgroups": group.joins,
            "hostname": "sandbox",
            "views": dict(layout.views),
            "limits": _limits(spec.limits, group.missing),
        }
        return await self._nursery.birth(id, message)

    async def reboot(
        self, id: str, spec: SandboxSpec, folder: Path, layers: tuple[str, ...], group: Group
    ) -> Holder:
        """A new holder for a stopped sandbox, on other layers."""
        await asyncio.to_thread(self._clear, folder, spec, layers)
        return await self._birth(id, spec, plan.make(spec), folder, layers, group)

    def _clear(self, folder: Path, spec: SandboxSpec, layers: tuple[str, ...]) -> None:
        reaper.write_owner(folder, self.labels_of(spec), layers[-1])
        for name in ("upper", "work", "merged", "view"):
            self.store.delete(folder / name)
        self._lay(folder, layers)

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


def _limits(limits: Limits, missing: Sequence[str]) -> list[tuple[int, int]]:
    """Limits of each single process, stricter where no control group holds them together."""
    found = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_mb << 20),
        (resource.RLIMIT_NOFILE, 8192),
    ]
    if "pids" in missing:
        found.append((resource.RLIMIT_NPROC, limits.processes))
    if "memory" in missing:
        found.append((resource.RLIMIT_DATA, limits.memory_mb << 20))
    return found


__all__ = ["LocalProvider", "LocalSandbox"]
