"""Store: the log, ownership, commands, requests and lists.

One truth per datum. A live rollout is its event log; a person's act is one
short durable transaction. Methods are coroutines; none blocks the loop.

Fencing: every write on behalf of a rollout carries an ``Ownership``. When the
store no longer agrees (another owner, another term) the write raises Fenced
and changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from core.contracts.values import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class Ownership:
    """Proof of who may write a rollout. ``term`` fences, ``attempt`` counts retries."""

    rollout: str
    engine: str
    term: int
    attempt: int


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event before it has its numbers."""

    kind: str
    payload: JsonObject
    line: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a rollout's log. ``seq`` is 1-based and gapless per rollout;
    ``line_seq`` is 1-based and gapless per (line, attempt). ``at`` is Unix seconds
    and only for people: order is ``seq``."""

    rollout: str
    seq: int
    term: int
    attempt: int
    line: int
    line_seq: int
    kind: str
    version: int
    at: float
    payload: JsonObject

    @property
    def cursor(self) -> str:
        return f"{self.term}.{self.seq}"


class Recorder(Protocol):
    """The one writer of one owned rollout. Its queue is bounded: ``put`` waits when full."""

    @property
    def ownership(self) -> Ownership: ...

    async def put(self, draft: EventDraft) -> None:
        """Queue an event; it is committed within 50 ms or 200 events."""
        ...

    async def commit(self, *drafts: EventDraft) -> tuple[Event, ...]:
        """Queue events and return them numbered, once they are durable."""
        ...

    async def close(self) -> None:
        """Commit what is queued. Raises what the last commit raised."""
        ...


class EventLog(Protocol):
    async def read(
        self, rollout: str, *, after: int = 0, limit: int = 1000, whole: bool = False
    ) -> list[Event]:
        """Committed events with ``seq > after``, in order.

        Values above 64 KB come as previews, or complete when ``whole``.
        """
        ...

    def follow(self, rollout: str, *, after: int = 0) -> AsyncIterator[list[Event]]:
        """Committed batches as they come, from any process; ends when the rollout has ended."""
        ...

    def recorder(self, ownership: Ownership) -> Recorder: ...


class RolloutState(StrEnum):
    """Where a rollout stands. The last four are final until it is reopened."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SCORED = "scored"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def final(self) -> bool:
        return self in (
            RolloutState.SCORED,
            RolloutState.FAILED,
            RolloutState.CANCELLED,
            RolloutState.INTERRUPTED,
        )


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A row of the list of rollouts. Times are Unix seconds."""

    id: str
    job: str
    name: str
    """``<task>__<8 hex>``, the folder's name."""
    task: str
    task_digest: str
    agent: str
    model: str | None
    sandbox: str
    user: str
    state: RolloutState
    phase: str
    owner: str | None
    term: int
    attempt: int
    lease_until: float
    head_seq: int
    steps: int
    waiting: int
    """Open requests."""
    reward: float | None
    error: str | None
    error_category: str | None
    assisted: bool
    folder: str
    """Absolute path of the result folder; it exists once the rollout is sealed."""
    sealed: str | None
    """Hash of the sealed bundle."""
    config: JsonObject
    revision: int
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class NewRollout:
    id: str
    job: str
    name: str
    task: str
    task_digest: str
    agent: str
    model: str | None
    sandbox: str
    user: str
    folder: str
    config: JsonObject


class Rollouts(Protocol):
    """The list of rollouts and who owns each."""

    async def create(self, engine: str, new: NewRollout) -> Ownership:
        """Insert a queued rollout owned by ``engine`` with term 1, attempt 1."""
        ...

    async def claim(self, engine: str, rollout: str, *, new_attempt: bool = False) -> Ownership:
        """Take over a rollout nobody live owns: term + 1 (and attempt + 1).

        Raises Conflict, naming pid and host, while a live owner holds it.
        """
        ...

    async def release(self, own: Ownership) -> None: ...

    async def update(self, own: Ownership, **fields: JsonValue) -> None:
        """Fenced change of list fields (state, phase, steps, reward, ...)."""
        ...

    async def get(self, ref: str) -> RolloutRecord:
        """By id, unique id prefix, name, or ``last``. Raises NotFound or UsageError (ambiguous)."""
        ...

    async def select(
        self,
        *,
        job: str | None = None,
        states: Sequence[RolloutState] = (),
        after_revision: int = 0,
        limit: int = 200,
    ) -> list[RolloutRecord]:
        """Newest first; with ``after_revision`` only those changed since, by revision."""
        ...

    async def orphans(self) -> list[RolloutRecord]:
        """Not final, or final and not let go; the owner is dead or its lease ran out."""
        ...


@dataclass(frozen=True, slots=True)
class EngineRecord:
    id: str
    host: str
    pid: int
    pid_start: int
    """Start time of the process in clock ticks since boot, so that a reused pid is seen."""
    boot_id: str
    heartbeat: float


class Engines(Protocol):
    """Every process that hosts the engine."""

    async def register(self) -> str: ...

    async def beat(self, engine: str) -> None:
        """Heartbeat; renews the lease of every rollout this engine owns."""
        ...

    async def live(self) -> list[EngineRecord]: ...

    async def deregister(self, engine: str) -> None: ...


class RequestState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    DELIVERED = "delivered"
    EXPIRED = "expired"
    """The deadline came first; ``answer`` is the default."""
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request is keyed (rollout, line, ask_index, question digest); the same one
    raised again after a crash finds the answer it already has."""

    rollout: str
    line: int
    node: str
    ask_index: int
    kind: str
    """ask_user, permission, turn_end, checkpoint, authority."""
    question: JsonObject
    default: JsonObject
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    id: str
    rollout: str
    line: int
    node: str
    ask_index: int
    kind: str
    question: JsonObject
    default: JsonObject
    state: RequestState
    answer: JsonObject | None
    actor: str | None
    via: str | None
    deadline_at: float | None
    opened_at: float
    answered_at: float | None
    draft: str
    revision: int


class Requests(Protocol):
    """The one inbox."""

    async def open(self, own: Ownership, new: NewRequest) -> RequestRecord: ...

    async def get(self, ref: str) -> RequestRecord: ...

    async def select(
        self, *, rollout: str | None = None, open_only: bool = True, limit: int = 200
    ) -> list[RequestRecord]: ...

    async def answer(
        self, request: str, answer: JsonObject, *, actor: str, via: str, idem_key: str
    ) -> RequestRecord:
        """First valid answer wins, durably, in any process.

        The same ``idem_key`` again returns the same record. Raises Conflict,
        naming who answered what and when, to everyone else.
        """
        ...

    async def save_draft(self, request: str, text: str) -> RequestRecord:
        """Keep a half-typed answer. Raises Conflict once the request is no longer open."""
        ...

    async def wait(self, request: str) -> RequestRecord:
        """Until it is answered, expired (the default is taken) or withdrawn."""
        ...

    async def deliver(self, own: Ownership, request: str, *drafts: EventDraft) -> tuple[Event, ...]:
        """Mark answered as delivered and append the events, in one transaction."""
        ...

    async def withdraw(self, own: Ownership, *, line: int | None = None) -> int:
        """Close what is still open for a rollout (or one line of it)."""
        ...


class CommandState(StrEnum):
    PENDING = "pending"
    TAKEN = "taken"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CommandRecord:
    id: str
    rollout: str
    verb: str
    args: JsonObject
    actor: str
    role: str
    idem_key: str
    state: CommandState
    term: int | None
    result: JsonObject | None
    error: JsonObject | None
    """``{"category", "what", "where", "remedy"}`` of the error the owner raised."""


class Commands(Protocol):
    """Acts on a rollout, sent durably to whoever owns it."""

    async def send(
        self,
        rollout: str,
        verb: str,
        args: JsonObject,
        *,
        actor: str,
        role: str = "author",
        idem_key: str,
    ) -> CommandRecord:
        """Insert (or find, by ``idem_key``) and ring the owner's doorbell."""
        ...

    async def wait(self, command: str, *, silent_after: float = 5.0) -> CommandRecord:
        """Until done or failed.

        Raises OwnerSilent, naming its pid, when a live owner has not taken it
        within ``silent_after`` seconds, and at once when nobody live owns the
        rollout: then ``Rollouts.claim`` succeeds and the caller does it itself.
        """
        ...

    async def find(self, idem_key: str) -> CommandRecord | None:
        """The command that was sent with this key, if any."""
        ...

    async def take(self, own: Ownership, *, again: bool = False) -> CommandRecord | None:
        """The oldest pending command of an owned rollout, by compare-and-set.

        With ``again`` also one that this very owner took and was kept from finishing.
        """
        ...

    async def finish(
        self,
        own: Ownership,
        command: str,
        *drafts: EventDraft,
        result: JsonObject | None = None,
        error: JsonObject | None = None,
    ) -> tuple[Event, ...]:
        """Write the result and its events in one transaction."""
        ...

    def pending(self, own: Ownership) -> AsyncIterator[CommandRecord]:
        """Commands as they come (doorbell, with a slow poll underneath), already taken.

        Never ends by itself; raises Fenced when the rollout has another owner.
        """
        ...


@dataclass(frozen=True, slots=True)
class JobRecord:
    id: str
    folder: str
    config: JsonObject
    revision: int
    created_at: float
    ended_at: float | None


class Jobs(Protocol):
    async def create(self, id: str, folder: str, config: JsonObject) -> JobRecord: ...

    async def get(self, ref: str) -> JobRecord: ...

    async def end(self, id: str) -> None: ...

    async def select(self, *, limit: int = 100) -> list[JobRecord]: ...


class Slots(Protocol):
    """How much may run at once, over every engine of this store."""

    async def acquire(self, engine: str, rollout: str, *, limit: int) -> None:
        """Wait for a slot. Slots of dead engines are free."""
        ...

    async def release(self, engine: str, rollout: str) -> None: ...


class Blobs(Protocol):
    """Content-addressed payloads above 64 KB, beside the database."""

    async def write(self, data: bytes) -> str: ...

    async def read(self, digest: str) -> bytes:
        """Raises NotFound, or BundleCorrupt when the bytes do not match the hash."""
        ...


class Store(Protocol):
    """Everything kept, by the part that uses it."""

    log: EventLog
    rollouts: Rollouts
    engines: Engines
    requests: Requests
    commands: Commands
    jobs: Jobs
    slots: Slots
    blobs: Blobs

    async def open(self) -> None:
        """Create or upgrade the schema. Raises StoreError when it is newer than this program."""
        ...

    async def revision(self) -> int:
        """The counter bumped by every change of a list; waits are built on it."""
        ...

    async def changed(self, after: int, *, timeout: float) -> int:
        """Wait until the counter passes ``after`` (doorbell, slow poll); returns it."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SealedFile:
    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class SealResult:
    """What sealing a rollout made. ``digest`` covers the manifest, hence all files."""

    folder: str
    digest: str
    files: tuple[SealedFile, ...]
    events: int


class Bundles(Protocol):
    """Sealed result folders: written beside, fsynced, renamed."""

    async def seal(self, own: Ownership, folder: str, files: Mapping[str, bytes]) -> SealResult:
        """Write segments of the whole log plus ``files`` and put the folder in place.

        Doing it again replaces the folder by an equal or longer one.
        """
        ...

    async def verify(self, folder: str) -> list[str]:
        """Compare every file with the manifest, and the chain with itself; problems found."""
        ...
