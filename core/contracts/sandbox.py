"""Sandbox: where a rollout runs.

A sandbox is one file state seen through *compartments*. Each compartment has a
user, a view (which of the declared mounts it sees) and a network:

- ``agent``: the agent under test. Sees an allow-list: system folders, its own
  runtime, workspace and home. Its network is loopback only, and every port on
  it is a relay route.
- ``service``: the environment's services. Sees the state mounts too.
- ``verifier``: the task's check. Sees workspace, state and the injected files,
  and shares the services' loopback.

Nothing an agent can reach contains hidden files, state files or the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Compartment: TypeAlias = Literal["agent", "service", "verifier"]


@dataclass(frozen=True, slots=True)
class Mount:
    """One path that some compartments see.

    ``source`` is a host path for read-only mounts of runtimes and fixtures;
    None means the path is writable and lives on the captured layer.
    """

    target: str
    """Absolute path inside."""
    source: Path | None = None
    seen_by: frozenset[Compartment] = frozenset({"agent", "service", "verifier"})
    seed: Path | None = None
    """Host folder whose content a writable mount starts with."""
    owner: Compartment = "agent"
    """Which compartment's user owns a writable mount."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. None means the provider's default."""

    processes: int = 512
    memory_mb: int = 2048
    cpus: float = 1.0
    output_bytes: int = 1 << 20
    """Kept of each exec's stdout and of its stderr: half from the head, half from the tail."""
    file_mb: int = 4096
    """Largest single file a command may write."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a rollout asks of a provider."""

    name: str
    """For people and labels; the provider makes ids unique."""
    workdir: str = "/workspace"
    home: str = "/home/agent"
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Store and engine ids, written on everything made so that a reaper can find it."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A finished command. ``exit_code`` is negative for a signal (-9 = SIGKILL)."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    stdout_bytes: int = 0
    """Bytes the command wrote, before truncation to ``Limits.output_bytes``."""
    stderr_bytes: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A sandbox port as the engine's host reaches it (loopback only)."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class Captured(StrEnum):
    """What a snapshot holds."""

    FILES = "files"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class SandboxImage:
    """A frozen file state that any number of sandboxes can be forked from.

    Immutable. ``id`` names it inside the provider's store; ``spec`` is the full
    saved specification, so that a fork has the same mounts, env and limits.
    """

    id: str
    provider: str
    parent: str | None
    rung: str
    """Which strategy made it, e.g. ``overlay``."""
    layers: tuple[str, ...]
    """Layer ids, lowest first."""
    new_bytes: int
    seconds: float
    captured: frozenset[Captured]
    spec: SandboxSpec


@dataclass(frozen=True, slots=True)
class SandboxCapabilities:
    """What a probe, which really tried it, found on this machine."""

    provider: str
    available: bool
    rung: str
    o1_fork: bool
    live_parent: bool
    path_stable: bool
    reasons: tuple[str, ...]
    """One sentence per thing that is weaker or missing, with the way out."""


class Process(Protocol):
    """A long-running program in a sandbox, with its own pipes."""

    @property
    def stdin(self) -> asyncio.StreamWriter: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def stderr(self) -> asyncio.StreamReader: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        ...

    async def wait(self) -> int: ...

    async def kill(self, *, grace: float = 2.0) -> int:
        """End it and everything it started: EOF, then TERM, then KILL.

        Returns the exit code once every descendant is proven gone.
        """
        ...


RelayHandler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Relay(Protocol):
    """The one door between the agent's loopback and the world (design: 4b)."""

    async def forward(self, port: int, *, target: int | None = None) -> None:
        """Agent's ``localhost:port`` reaches the services' ``localhost:target``."""
        ...

    async def serve(self, port: int, handler: RelayHandler) -> None:
        """Agent's ``localhost:port`` is answered by ``handler`` in the engine."""
        ...

    def fence(self) -> None:
        """Hold bytes of new requests; those in flight go on."""
        ...

    def lift(self) -> None: ...

    @property
    def in_flight(self) -> int:
        """Exchanges begun by the agent that have not been answered yet."""
        ...

    async def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight. False when the time ran out."""
        ...


class Sandbox(Protocol):
    """One running sandbox. Every method raises SandboxLost when it is gone."""

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> SandboxSpec: ...

    @property
    def relay(self) -> Relay: ...

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
        """Run a command to its end. Past ``timeout`` it and all it started are killed."""
        ...

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a program and hand back its pipes."""
        ...

    async def upload(self, local: Path, remote: str, *, user: Compartment = "agent") -> None:
        """Copy a host file or folder in. Links that leave ``local`` are refused."""
        ...

    async def download(self, remote: str, local: Path, *, user: Compartment = "agent") -> None:
        """Copy out regular files and folders only; links are skipped, never followed."""
        ...

    async def expose_port(self, port: int, *, user: Compartment = "service") -> Endpoint:
        """Reach a port of a compartment from the engine's loopback."""
        ...

    async def connect(
        self, port: int, *, user: Compartment = "service", timeout: float = 5.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open one connection to a port of a compartment.

        Raises ConnectionRefusedError or TimeoutError, as a plain socket would.
        """
        ...

    async def freeze(self) -> None:
        """Stop every process of the sandbox where it stands."""
        ...

    async def thaw(self) -> None: ...

    async def snapshot(self, *, retire: bool = False) -> SandboxImage:
        """Capture the file state. ``retire`` gives this sandbox up, which may cost nothing."""
        ...

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        """Start ``n`` new sandboxes on a frozen state."""
        ...

    async def restore(self, image: SandboxImage) -> None:
        """Put this sandbox back to a frozen state: everything running in it ends."""
        ...

    async def teardown(self) -> None:
        """Leave no process, mount or file. Safe to call twice."""
        ...


class Attached(Protocol):
    """A program that runs on a terminal of the caller's."""

    async def wait(self) -> int:
        """Its exit code, once it and all it started are gone; negative for a signal."""
        ...

    async def kill(self, *, grace: float = 2.0) -> int: ...


@runtime_checkable
class Terminals(Protocol):
    """A sandbox that can run a program on a terminal."""

    async def attach(
        self,
        argv: Sequence[str],
        *,
        tty_fd: int,
        user: Compartment = "agent",
        env: Mapping[str, str] | None = None,
    ) -> Attached:
        """Start a program whose input, output and controlling terminal is ``tty_fd``.

        That is the inner end of a pseudo-terminal made for it, never a person's own
        terminal: the program is hostile. The caller closes its copy afterwards.
        """
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind and cleans up after dead owners."""

    name: str

    async def probe(self) -> SandboxCapabilities: ...

    async def require(self) -> None:
        """Refuse before anything is made. Cheap: what only a try shows is left to ``probe``.

        Raises SandboxUnavailable naming what is in the way.
        """
        ...

    async def start(self, spec: SandboxSpec) -> Sandbox: ...

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]: ...

    async def discard(self, image: SandboxImage) -> None:
        """Forget a frozen state. Layers that others still need stay."""
        ...

    async def reap(self, *, is_live: Callable[[Mapping[str, str]], bool]) -> list[str]:
        """Remove what owners whose labels are no longer live left behind.

        Returns one line per thing removed.
        """
        ...
