"""Sandbox provider and environment in memory: they count what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from core.contracts.environment import (
    EnvContext,
    EnvHandle,
    EnvState,
    ReadinessProbe,
    StateSnapshot,
)
from core.contracts.errors import SandboxLost
from core.contracts.sandbox import (
    Captured,
    Compartment,
    Endpoint,
    ExecResult,
    Mount,
    Process,
    RelayHandler,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxSpec,
)
from tests.fakes.kernel_points import Points


class FakeRelay:
    def __init__(self, points: Points) -> None:
        self._points = points
        self.fenced = False
        self.in_flight = 0

    async def forward(self, port: int, *, target: int | None = None) -> None:
        raise NotImplementedError

    async def serve(self, port: int, handler: RelayHandler) -> None:
        raise NotImplementedError

    def fence(self) -> None:
        self.fenced = True

    def lift(self) -> None:
        self.fenced = False

    async def drain(self, timeout: float) -> bool:
        await self._points.reach("drain")
        return True


class FakeSandbox:
    """A sandbox that has nothing in it but can be started, frozen and lost."""

    def __init__(self, provider: FakeProvider, spec: SandboxSpec, number: int) -> None:
        self._provider = provider
        self._spec = spec
        self.id = f"sandbox-{number}"
        self.relay = FakeRelay(provider.points)
        provider.alive.add(self.id)

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    async def exec(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        raise NotImplementedError

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        raise NotImplementedError

    async def upload(self, local: Path, remote: str, *, user: Compartment = "agent") -> None:
        raise NotImplementedError

    async def download(self, remote: str, local: Path, *, user: Compartment = "agent") -> None:
        raise NotImplementedError

    async def expose_port(self, port: int, *, user: Compartment = "service") -> Endpoint:
        raise NotImplementedError

    async def connect(
        self, port: int, *, user: Compartment = "service", timeout: float = 5.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise NotImplementedError

    async def freeze(self) -> None:
        raise NotImplementedError

    async def thaw(self) -> None:
        raise NotImplementedError

    async def snapshot(self, *, retire: bool = False) -> SandboxImage:
        if self.id not in self._provider.alive:
            raise SandboxLost(f"{self.id} is gone")
        await self._provider.points.reach("snapshot")
        return self._provider.keep(self._spec)

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        return await self._provider.fork(image, n)

    async def restore(self, image: SandboxImage) -> None:
        raise NotImplementedError

    async def teardown(self) -> None:
        if self.id in self._provider.alive:
            await self._provider.points.reach("sandbox.teardown")
            self._provider.alive.discard(self.id)


class FakeProvider:
    """Knows every sandbox and image that is still there. A start that is cut
    short leaves nothing, as the contract asks."""

    name = "fake"

    def __init__(self, points: Points) -> None:
        self.points = points
        self.alive: set[str] = set()
        self.images: set[str] = set()
        self._made = 0

    def keep(self, spec: SandboxSpec) -> SandboxImage:
        self._made += 1
        image = SandboxImage(
            id=f"image-{self._made}",
            provider=self.name,
            parent=None,
            rung="fake",
            layers=(f"layer-{self._made}",),
            new_bytes=0,
            seconds=0.0,
            captured=frozenset({Captured.FILES}),
            spec=spec,
        )
        self.images.add(image.id)
        return image

    async def probe(self) -> SandboxCapabilities:
        return SandboxCapabilities("fake", True, "fake", True, True, True, ())

    async def require(self) -> None:
        await self.points.reach("sandbox.require")

    async def start(self, spec: SandboxSpec) -> Sandbox:
        async with self._starting("sandbox.start", spec) as sandbox:
            return sandbox

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        if image.id not in self.images:
            raise SandboxLost(f"{image.id} was discarded")
        forks: list[Sandbox] = []
        for _ in range(n):
            async with self._starting("fork", image.spec) as sandbox:
                forks.append(sandbox)
        return forks

    @asynccontextmanager
    async def _starting(self, point: str, spec: SandboxSpec) -> AsyncIterator[FakeSandbox]:
        self._made += 1
        sandbox = FakeSandbox(self, spec, self._made)
        try:
            await self.points.reach(point)
        except BaseException:
            self.alive.discard(sandbox.id)
            raise
        yield sandbox

    async def discard(self, image: SandboxImage) -> None:
        await self.points.reach("discard")
        self.images.discard(image.id)

    async def reap(self, *, is_live: Callable[[Mapping[str, str]], bool]) -> list[str]:
        return []


class FakeEnvironment:
    """One service. ``watch`` waits at the point ``watch``, which a test can fail."""

    name = "desk"

    def __init__(self, points: Points, running: set[int]) -> None:
        self._points = points
        self._running = running
        self._suffix = ""

    def mounts(self) -> tuple[Mount, ...]:
        return ()

    async def provision(self, ctx: EnvContext) -> EnvHandle:
        self._running.add(id(self))
        self._suffix = "" if ctx.state == "fresh" else ".fork"
        await self._points.reach("provision" + self._suffix)
        return EnvHandle({"desk": "http://localhost:8000"})

    async def readiness(self) -> ReadinessProbe:
        await self._points.reach("ready" + self._suffix)
        return ReadinessProbe(True, (), 0.0)

    async def watch(self) -> None:
        await self._points.reach("watch")
        await asyncio.Event().wait()

    async def query(self) -> EnvState:
        return EnvState({}, (), {}, digest="")

    async def prove(self, sandbox: Sandbox, snap: StateSnapshot) -> None:
        return None

    async def flush(self, epoch: int) -> StateSnapshot:
        await self._points.reach("flush")
        return StateSnapshot(f"state-{epoch}", "fake", True, "digest", epoch)

    async def snapshot(self) -> StateSnapshot:
        return await self.flush(0)

    async def restore(self, snap: StateSnapshot) -> None:
        raise NotImplementedError

    async def reset(self) -> None:
        raise NotImplementedError

    async def teardown(self) -> None:
        await self._points.reach("environment.teardown")
        self._running.discard(id(self))
