"""A real sandbox behind a thin front, so that a test can watch it or stand in its way.

Every call goes to the real provider, sandbox or relay; ``at`` is told the name of a
step just before it (``fence``, ``drain``, ``capture``, ``lift``, ``spawn USER: ARGV``)
and just after it (``fenced``, ``drained``, ``captured``, ``lifted``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from core.contracts.sandbox import (
    Compartment,
    Endpoint,
    ExecResult,
    Process,
    Relay,
    RelayHandler,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxProvider,
    SandboxSpec,
)

At: TypeAlias = Callable[[str, Sandbox], Awaitable[None]]
"""Told of a step and of the real sandbox it happens to."""


class FrontRelay:
    """Implements ``Relay``. Steps that cannot wait are reported by ``note``."""

    def __init__(self, real: Relay, sandbox: Sandbox, at: At, note: Callable[[str], None]) -> None:
        self._real = real
        self._sandbox = sandbox
        self._at = at
        self._note = note

    async def forward(self, port: int, *, target: int | None = None) -> None:
        await self._real.forward(port, target=target)

    async def serve(self, port: int, handler: RelayHandler) -> None:
        await self._real.serve(port, handler)

    def fence(self) -> None:
        self._note("fence")
        self._real.fence()
        self._note("fenced")

    def lift(self) -> None:
        self._note("lift")
        self._real.lift()
        self._note("lifted")

    @property
    def in_flight(self) -> int:
        return self._real.in_flight

    async def drain(self, timeout: float) -> bool:
        await self._at("drain", self._sandbox)
        drained = await self._real.drain(timeout)
        await self._at("drained", self._sandbox)
        return drained


class FrontSandbox:
    """Implements ``Sandbox`` by the real one behind it."""

    def __init__(self, real: Sandbox, at: At, note: Callable[[str], None]) -> None:
        self.real = real
        self._at = at
        self._relay = FrontRelay(real.relay, real, at, note)

    @property
    def id(self) -> str:
        return self.real.id

    @property
    def spec(self) -> SandboxSpec:
        return self.real.spec

    @property
    def relay(self) -> Relay:
        return self._relay

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
        return await self.real.exec(argv, user=user, timeout=timeout, cwd=cwd, env=env, stdin=stdin)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        await self._at(f"spawn {user}: {' '.join(argv)}", self.real)
        return await self.real.spawn(argv, user=user, cwd=cwd, env=env)

    async def upload(self, local: Path, remote: str, *, user: Compartment = "agent") -> None:
        await self.real.upload(local, remote, user=user)

    async def download(self, remote: str, local: Path, *, user: Compartment = "agent") -> None:
        await self.real.download(remote, local, user=user)

    async def expose_port(self, port: int, *, user: Compartment = "service") -> Endpoint:
        return await self.real.expose_port(port, user=user)

    async def connect(
        self, port: int, *, user: Compartment = "service", timeout: float = 5.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.real.connect(port, user=user, timeout=timeout)

    async def freeze(self) -> None:
        await self.real.freeze()

    async def thaw(self) -> None:
        await self.real.thaw()

    async def snapshot(self, *, retire: bool = False) -> SandboxImage:
        await self._at("capture", self.real)
        image = await self.real.snapshot(retire=retire)
        await self._at("captured", self.real)
        return image

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        return await self.real.fork(image, n)

    async def restore(self, image: SandboxImage) -> None:
        await self.real.restore(image)

    async def teardown(self) -> None:
        await self.real.teardown()


async def _nothing(step: str, sandbox: Sandbox) -> None:
    """Look on, do nothing."""


class FrontProvider:
    """Implements ``SandboxProvider``; everything it makes has a front."""

    def __init__(
        self,
        real: SandboxProvider,
        *,
        at: At = _nothing,
        note: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.real = real
        self.name = real.name
        self.forked: list[Sandbox] = []
        self._at = at
        self._note = note

    def _front(self, real: Sandbox) -> FrontSandbox:
        return FrontSandbox(real, self._at, self._note)

    async def probe(self) -> SandboxCapabilities:
        return await self.real.probe()

    async def require(self) -> None:
        await self.real.require()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return self._front(await self.real.start(spec))

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        made = await self.real.fork(image, n)
        self.forked += made
        return [self._front(one) for one in made]

    async def discard(self, image: SandboxImage) -> None:
        await self.real.discard(image)

    async def reap(self, *, is_live: Callable[[Mapping[str, str]], bool]) -> list[str]:
        return await self.real.reap(is_live=is_live)
