"""Environment: the stateful world, declared by a manifest, provisioned by us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from core.contracts.sandbox import Mount, Sandbox
from core.contracts.values import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class EnvContext:
    """What provisioning needs. ``state`` says whether files are already there (a fork)."""

    sandbox: Sandbox
    selection: Mapping[str, str] = field(default_factory=dict)
    """Task selection and forwarded variables; reaches PID 1 of every service."""
    state: Literal["fresh", "restored"] = "fresh"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EnvHandle:
    """What the agent may be told: service name to its URL on the agent's loopback."""

    services: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """One readiness probe and what it last saw."""

    name: str
    ready: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    ready: bool
    checks: tuple[Check, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TableState:
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Primary key columns; empty when the table has none."""
    rows: tuple[tuple[JsonValue, ...], ...]
    row_count: int
    """All rows; ``rows`` may hold fewer when ``truncated``."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class FileState:
    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class EnvState:
    """The world as the verifier and a diff see it; ``digest`` covers all of it."""

    tables: Mapping[str, tuple[TableState, ...]]
    """State path to its tables."""
    files: tuple[FileState, ...]
    services: Mapping[str, JsonObject]
    digest: str


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """One layer: the environment's state.

    ``in_layer`` means that the files ride in the sandbox's captured layer and
    this record only proves which state it was (``digest``).
    """

    id: str
    kind: str
    in_layer: bool
    digest: str
    epoch: int
    payload: JsonObject = field(default_factory=dict)
    not_captured: tuple[str, ...] = ()


class Environment(Protocol):
    """Roll out and roll back. Every method is bounded by a deadline of its own."""

    @property
    def name(self) -> str: ...

    def mounts(self) -> tuple[Mount, ...]:
        """State and fixtures, in compartments the agent's view lacks."""
        ...

    async def provision(self, ctx: EnvContext) -> EnvHandle:
        """Put the state in place and start the services."""
        ...

    async def readiness(self) -> ReadinessProbe:
        """Wait until every probe passes. Raises NotReady with the list of those that did not."""
        ...

    async def query(self) -> EnvState: ...

    async def flush(self, epoch: int) -> StateSnapshot:
        """Make state on the captured layer safe to capture now (WAL checkpoint, digest)."""
        ...

    async def prove(self, sandbox: Sandbox, snap: StateSnapshot) -> None:
        """Raise StateError unless the state in ``sandbox`` is the one that was captured.

        No service may run on it yet.
        """
        ...

    async def watch(self) -> None:
        """Raise ServiceDied once a service ends by itself; return after teardown."""
        ...

    async def snapshot(self) -> StateSnapshot:
        """Capture the state by itself, outside the sandbox's layer."""
        ...

    async def restore(self, snap: StateSnapshot) -> None:
        """Put a state back. Services never see a file change under an open connection."""
        ...

    async def reset(self) -> None:
        """Back to the state just after provisioning."""
        ...

    async def teardown(self) -> None: ...
