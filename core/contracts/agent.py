"""Agent and Session: who acts.

A session reports what the agent does as a stream of ``SessionUpdate`` values.
The kernel turns them into steps; a session never numbers nodes itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from core.contracts.sandbox import Mount, Sandbox
from core.contracts.values import Fidelity, JsonObject, JsonValue, StopReason

AskSource: TypeAlias = Literal["elicitation", "permission", "tool", "command"]


@dataclass(frozen=True, slots=True)
class Option:
    """One enumerated answer. ``value`` is what goes back to the agent."""

    value: str
    label: str
    description: str = ""
    kind: str = ""
    """ACP permission kind (allow_once, ...) where the option came from one."""


@dataclass(frozen=True, slots=True)
class AskField:
    """One field of a form. The first field with options is the branchable one."""

    name: str
    title: str
    kind: Literal["choice", "multi", "text", "number", "integer", "boolean"]
    options: tuple[Option, ...] = ()
    required: bool = False
    default: JsonValue = None


@dataclass(frozen=True, slots=True)
class AskUser:
    """A question the agent waits on, whichever channel carried it."""

    question: str
    fields: tuple[AskField, ...]
    source: AskSource
    tool_call_id: str | None = None
    native: JsonObject = field(default_factory=dict)
    """The request as the agent sent it, for the record."""

    @property
    def choice(self) -> AskField | None:
        """The field whose options are the branches, if any has options."""
        for item in self.fields:
            if item.options:
                return item
        return None

    @property
    def options(self) -> tuple[Option, ...]:
        return self.choice.options if self.choice else ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the user said. ``content`` maps field names to values when accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, JsonValue] = field(default_factory=dict)
    actor: str = ""
    """Who answered: ``scripted``, ``auto``, or a person's name."""
    via: str = ""
    """From where: ``cli``, ``web``, ``tui``, ``user-model``, ``default``."""
    request: str = ""
    """Id of the stored request that it settled, when one waited for it."""


@dataclass(frozen=True, slots=True)
class PermissionAsked:
    """A security request. Never mistaken for ``AskUser``."""

    title: str
    options: tuple[Option, ...]
    tool_call_id: str | None
    native: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """The chosen option's value, or None for cancelled."""

    option: str | None
    policy: str
    actor: str = ""


AskUserHandler: TypeAlias = Callable[[AskUser], Awaitable[Answer]]
PermissionHandler: TypeAlias = Callable[[PermissionAsked], Awaitable[PermissionDecision]]


@dataclass(frozen=True, slots=True)
class MessageText:
    """A piece of assistant text. Pieces of one message are joined by the kernel."""

    text: str
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class ThoughtText:
    text: str
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUpdate:
    """A tool call as known so far; unset fields mean "unchanged". Upsert by id."""

    tool_call_id: str
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: JsonValue = None
    raw_output: JsonValue = None
    content: tuple[JsonObject, ...] | None = None
    locations: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True)
class UsageUpdate:
    """Context tokens in use and allowed, and the cumulative cost if the agent told it."""

    used: int | None = None
    size: int | None = None
    cost: float | None = None
    currency: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class OtherUpdate:
    """Anything else the protocol carries: plan, mode, commands, or a vendor's own."""

    name: str
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class Noise:
    """Output that was no protocol message; counted, never fatal."""

    channel: Literal["stdout", "protocol", "stderr"]
    sample: str


SessionUpdate: TypeAlias = (
    MessageText | ThoughtText | ToolUpdate | UsageUpdate | OtherUpdate | Noise
)


@dataclass(frozen=True, slots=True)
class AgentCapabilities:
    """What this agent can do, as far as is known before it connects.

    ``at_ask`` is the best fidelity of a child forked while a question is
    pending; ``at_turn`` at the end of a turn. What a session really can, it says
    when it is captured.
    """

    at_ask: Fidelity
    at_turn: Fidelity
    asks: bool
    step_rule: Literal["proxy", "updates", "command"]


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """One agent session, frozen. ``state`` is opaque to everyone but its agent.

    ``pending_ask`` says that the session was captured while a question waited;
    restoring it raises that question again.
    """

    agent: str
    fidelity: Fidelity
    state: JsonObject
    pending_ask: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Role:
    """Who the agent is in this rollout: lowered per-step configuration."""

    name: str = "agent"
    model: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    line: int = 0
    """The line it acts on: a fork is another line, with a seed of its own."""

    @property
    def variables(self) -> Mapping[str, str]:
        """What the agent and everything it starts find in their environment."""
        return {"BENCH_SEED": str(self.seed), "BENCH_LINE": str(self.line), **self.env}


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's process ended; ``code`` None when it never had one."""

    code: int | None
    stderr_tail: str = ""


class Session(Protocol):
    """A live conversation with one agent.

    Calling order: ``on_ask_user`` and ``on_permission`` before the first
    ``prompt``; ``updates`` is consumed by one reader for the session's life.
    """

    @property
    def id(self) -> str: ...

    async def prompt(self, text: str) -> StopReason:
        """Run one turn. Raises AgentCrashed or AgentProtocolError; never hangs on a dead agent."""
        ...

    async def resume_turn(self) -> StopReason:
        """After a restore with a pending question: run the interrupted turn to its end."""
        ...

    async def cancel(self) -> None:
        """End the running turn; open questions and permissions are settled as cancelled."""
        ...

    def on_ask_user(self, handler: AskUserHandler) -> None: ...

    def on_permission(self, handler: PermissionHandler) -> None: ...

    def updates(self) -> AsyncIterator[SessionUpdate]:
        """What the agent does, in its order, until the session is closed."""
        ...

    async def settle(self) -> None:
        """Return once every update received so far was taken by the reader of ``updates``."""
        ...

    async def snapshot(self) -> SessionSnapshot:
        """Freeze the session. Raises CheckpointError where this agent cannot, with the reason."""
        ...

    async def close(self) -> AgentExit:
        """End the agent and prove that nothing of it lives. Safe to call twice."""
        ...


@runtime_checkable
class Holdable(Protocol):
    """A session that counts the agent's silence, and can be told not to."""

    def held(self) -> AbstractContextManager[None]:
        """Inside, silence is not held against the agent."""
        ...


class Agent(Protocol):
    """One kind of agent: connects sessions, and restores them in a fork."""

    @property
    def name(self) -> str: ...

    def capabilities(self) -> AgentCapabilities: ...

    def mounts(self) -> tuple[Mount, ...]:
        """Runtime folders that must be in the sandbox before it starts."""
        ...

    async def connect(self, sandbox: Sandbox, role: Role) -> Session: ...

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session: ...
