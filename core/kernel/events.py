"""Events: one frozen dataclass per thing that can happen in a rollout.

The log stores ``kind``, ``version`` and a JSON payload; this module is the only
place that maps between the two. ``decode`` accepts every version ever written.
A node of the tree is named after the event that made it: ``rollout_started``,
``prompted``, ``step_started`` and ``asked`` make nodes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, cast

from core.contracts.errors import StoreError
from core.contracts.store import EventDraft
from core.contracts.values import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class RolloutStarted:
    """The root state. ``config`` is the resolved configuration, without secrets."""

    KIND: ClassVar[str] = "rollout_started"
    task: str
    task_digest: str
    agent: str
    sandbox: str
    user: str
    config: JsonObject


@dataclass(frozen=True, slots=True)
class LineStarted:
    """A chain of nodes begins: the main line, a new attempt, or a branch's child.

    ``parent`` is the node it grows from (None = the root). ``continuation`` is
    what makes it differ: ``{"kind": "attempt"|"answer"|"nudge"|...}``.
    """

    KIND: ClassVar[str] = "line_started"
    parent: str | None
    continuation: JsonObject
    fidelity: str = "none"
    origin: str = "main"
    seed: int = 0
    main: bool = False
    assisted: bool = False


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    KIND: ClassVar[str] = "phase_started"
    phase: str


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """``seconds`` by the monotonic clock; ``parts`` are named pieces of it."""

    KIND: ClassVar[str] = "phase_ended"
    phase: str
    seconds: float
    outcome: str
    error: str | None = None
    parts: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompted:
    """The user side spoke: the task's instruction, or a nudge."""

    KIND: ClassVar[str] = "prompted"
    text: str
    origin: str
    actor: str = ""
    via: str = ""
    role: str = "agent"
    turn: int = 1
    nudge: str = ""
    """Id of the accepted nudge that it delivers."""


@dataclass(frozen=True, slots=True)
class NudgeAccepted:
    """A person's follow-up that waits for the running turn to end. It is owed to the
    agent until a prompt delivers it, by whatever owner."""

    KIND: ClassVar[str] = "nudge_accepted"
    nudge: str
    text: str
    actor: str
    via: str = ""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """``rule`` says what drew the boundary: proxy, updates, command."""

    KIND: ClassVar[str] = "step_started"
    rule: str
    role: str = "agent"
    scene: str = ""
    skills: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of assistant text of the current step."""

    KIND: ClassVar[str] = "said"
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    KIND: ClassVar[str] = "thought"
    text: str


@dataclass(frozen=True, slots=True)
class ToolChanged:
    """Upsert of one tool call by its id; unset fields mean unchanged."""

    KIND: ClassVar[str] = "tool_changed"
    tool_call_id: str
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: JsonValue = None
    raw_output: JsonValue = None
    content: list[JsonObject] | None = None
    locations: list[JsonObject] | None = None


@dataclass(frozen=True, slots=True)
class UsageChanged:
    KIND: ClassVar[str] = "usage_changed"
    used: int | None = None
    size: int | None = None
    cost: float | None = None
    currency: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """Plan, mode, commands, titles: kept, shown, not interpreted."""

    KIND: ClassVar[str] = "session_changed"
    name: str
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class NoiseHeard:
    """The agent printed something that was no protocol message."""

    KIND: ClassVar[str] = "noise_heard"
    channel: str
    sample: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class StepEnded:
    KIND: ClassVar[str] = "step_ended"


@dataclass(frozen=True, slots=True)
class Asked:
    """The agent waits for its user: the branchable node.

    ``question`` is ``{"question", "source", "fields": [...]}``.
    """

    KIND: ClassVar[str] = "asked"
    ask_index: int
    question: JsonObject
    tool_call_id: str | None = None
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """``node`` is the asked node. ``seconds`` is how long the answer took."""

    KIND: ClassVar[str] = "answered"
    node: str
    action: str
    content: JsonObject
    actor: str
    via: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PermissionSettled:
    """A permission request and the policy's decision, in one record."""

    KIND: ClassVar[str] = "permission_settled"
    title: str
    options: list[JsonObject]
    chosen: str | None
    policy: str
    actor: str
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    KIND: ClassVar[str] = "turn_ended"
    stop_reason: str
    turn: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """``scope`` is turn or run."""

    KIND: ClassVar[str] = "cancel_requested"
    scope: str
    actor: str
    via: str = ""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """Written last: a checkpoint exists only once this is in the log.

    ``record`` names every layer with its digest, epoch, fidelity, and what was
    not captured.
    """

    KIND: ClassVar[str] = "checkpointed"
    node: str
    checkpoint: str
    consistency: str
    record: JsonObject


@dataclass(frozen=True, slots=True)
class CheckpointDropped:
    """The stored state of a node was deleted to make room: it can be forked no more."""

    KIND: ClassVar[str] = "checkpoint_dropped"
    node: str
    checkpoint: str
    why: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict on a node; every one is kept, the newest counts."""

    KIND: ClassVar[str] = "scored"
    node: str
    reward: float
    items: JsonObject
    events: list[JsonObject]
    space: str
    granularity: str
    range: list[float]
    verifier_digest: str
    hardened: bool
    raw: str = ""
    seconds: float = 0.0
    logs: JsonObject = field(default_factory=dict)
    """What the verifier printed and wrote, by file name."""


@dataclass(frozen=True, slots=True)
class ScoringFailed:
    """The verifier gave no reward for a node; what it printed is kept."""

    KIND: ClassVar[str] = "scoring_failed"
    node: str
    error: str
    error_category: str
    logs: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LineEnded:
    KIND: ClassVar[str] = "line_ended"
    outcome: str
    error: str | None = None
    error_category: str | None = None


@dataclass(frozen=True, slots=True)
class MainLineSet:
    """The line whose leaf is the rollout's reward. ``why``: rewind, restore, attempt."""

    KIND: ClassVar[str] = "main_line_set"
    main: int
    why: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Paused:
    """A person stopped every line where it stands; no clock runs until ``unpaused``."""

    KIND: ClassVar[str] = "paused"
    actor: str
    via: str = ""


@dataclass(frozen=True, slots=True)
class Unpaused:
    KIND: ClassVar[str] = "unpaused"
    actor: str
    via: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """A new engine took the rollout over after its owner died."""

    KIND: ClassVar[str] = "owner_changed"
    engine: str
    why: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """A rollout that had ended grows again: a branch, a score. Its result stays."""

    KIND: ClassVar[str] = "reopened"
    engine: str
    actor: str
    why: str


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    KIND: ClassVar[str] = "rollout_ended"
    outcome: str
    error: str | None = None
    error_category: str | None = None
    seconds: float = 0.0


Body: TypeAlias = (
    RolloutStarted
    | LineStarted
    | PhaseStarted
    | PhaseEnded
    | Prompted
    | NudgeAccepted
    | StepStarted
    | Said
    | Thought
    | ToolChanged
    | UsageChanged
    | SessionChanged
    | NoiseHeard
    | StepEnded
    | Asked
    | Answered
    | PermissionSettled
    | TurnEnded
    | CancelRequested
    | Checkpointed
    | CheckpointDropped
    | Scored
    | ScoringFailed
    | LineEnded
    | MainLineSet
    | Paused
    | Unpaused
    | OwnerChanged
    | Reopened
    | RolloutEnded
)

KINDS: dict[str, type[Body]] = {kind.KIND: kind for kind in Body.__args__}

VERSION = 1


def encode(body: Body, *, line: int = 0) -> EventDraft:
    """The draft of an event; unset optional fields are left out of the payload."""
    payload: JsonObject = {}
    for item in dataclasses.fields(body):
        value = cast(JsonValue, getattr(body, item.name))
        required = item.default is item.default_factory is dataclasses.MISSING
        if value is not None or required:
            payload[item.name] = value
    return EventDraft(kind=body.KIND, payload=payload, line=line, version=VERSION)


def decode(kind: str, version: int, payload: JsonObject) -> Body:
    """The typed event. Keys this program does not know are ignored; a kind or a
    newer version it does not know is an error, never a guess."""
    cls = KINDS.get(kind)
    if cls is None or version > VERSION:
        raise StoreError(
            f"this log holds a {kind!r} event of version {version}, newer than this program",
            remedy="Update benchflow-workbench",
        )
    known = {item.name for item in dataclasses.fields(cls)}
    try:
        return cls(**{key: value for key, value in payload.items() if key in known})  # type: ignore[arg-type]
    except TypeError as error:
        raise StoreError(
            f"a {kind!r} event lacks a field: {error}",
            remedy="Run `bench store fsck` on this store",
        ) from error
