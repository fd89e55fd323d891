"""What a line is given and what it gives back: frozen values, and how they are logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from core.contracts.agent import (
    Agent,
    Answer,
    AskUser,
    PermissionAsked,
    PermissionDecision,
    SessionSnapshot,
)
from core.contracts.reward import Reward, RolloutNode, VerifyResult
from core.contracts.sandbox import Sandbox
from core.contracts.store import Event, EventDraft, Recorder
from core.contracts.user import Nudge, UserModel
from core.contracts.values import JsonObject, Outcome
from core.kernel import events as ev
from core.kernel.checkpoint import Checkpoint, to_json
from core.kernel.tree import Tree

Forker: TypeAlias = Callable[[RolloutNode], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class LineContext:
    """What all lines of a rollout share."""

    rollout: str
    agent: Agent
    user: UserModel
    reward: Callable[[Forker], Reward]
    """Builds the scorer, given how to fork a node's frozen world."""
    permissions: Callable[[PermissionAsked, PermissionContext], Awaitable[PermissionDecision]]
    recorder: Recorder
    deliver: Callable[[str, EventDraft], Awaitable[tuple[Event, ...]]]
    """Settles a stored request and appends its event in one transaction."""
    tree: Callable[[], Awaitable[Tree]]
    """The tree as committed so far."""
    instruction: str
    agent_seconds: float | None = None
    ask_seconds: float | None = None
    ask_form: Callable[[AskUser], JsonObject] = field(
        default=lambda ask: {"question": ask.question}
    )
    max_turns: int = 50
    at_questions: bool = False
    """Capture a checkpoint while a question waits."""
    at_turns: bool = False
    """Capture one at the end of a turn, where the agent's session can be captured too."""
    at_root: bool = False
    """Capture the healthy world before the agent is connected."""
    on_fork_point: Callable[[ForkPoint], Awaitable[None]] | None = None
    """Told of every captured root and answered question; a policy may branch there."""


@dataclass(frozen=True, slots=True)
class PermissionContext:
    """Which request it is: one person's word is for one request of one line."""

    line: int
    index: int
    """0-based, of all that this line asked for."""


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A captured state that a policy may branch, and the answer its own line got there."""

    checkpoint: Checkpoint
    line: int
    depth: int
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class LineSpec:
    """Where a line grows from, why, and what it starts with.

    ``session`` is the agent's state to go on from; then ``answer`` is what the
    pending question is told, or ``prompt`` the next turn's prompt.
    """

    number: int
    parent: str | None = None
    continuation: JsonObject = field(default_factory=dict)
    fidelity: str = "none"
    origin: str = "main"
    seed: int = 0
    main: bool = True
    assisted: bool = False
    session: SessionSnapshot | None = None
    answer: Answer | None = None
    prompt: Nudge | None = None
    turn: int = 0
    asks: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class LineResult:
    outcome: Outcome
    verdict: VerifyResult | None = None
    error: str | None = None
    error_category: str | None = None
    infrastructure: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants this line, or its turn, to end."""

    scope: Literal["turn", "run"]
    actor: str
    via: str


def started(spec: LineSpec) -> ev.LineStarted:
    """The event that begins a line."""
    return ev.LineStarted(
        parent=spec.parent,
        continuation=spec.continuation,
        fidelity=spec.fidelity,
        origin=spec.origin,
        seed=spec.seed,
        main=spec.main,
        assisted=spec.assisted,
    )


def scored(node: str, verdict: VerifyResult, seconds: float) -> ev.Scored:
    """The event that keeps a verdict."""
    events: list[JsonObject] = [
        {
            "source": event.source,
            "value": event.value,
            "space": event.space,
            "granularity": event.granularity,
            "node": event.node,
            "reason": event.reason,
        }
        for event in verdict.events
    ]
    items: JsonObject = dict(verdict.items)
    return ev.Scored(
        node=node,
        reward=verdict.reward,
        items=items,
        events=events,
        space=verdict.space,
        granularity=verdict.granularity,
        range=list(verdict.range),
        verifier_digest=verdict.verifier_digest,
        hardened=verdict.hardened,
        raw=verdict.raw,
        seconds=round(seconds, 4),
        logs=dict(verdict.logs),
    )


def checkpointed(checkpoint: Checkpoint) -> ev.Checkpointed:
    """The record that makes a checkpoint exist."""
    return ev.Checkpointed(
        checkpoint.node, checkpoint.id, checkpoint.consistency, to_json(checkpoint)
    )
