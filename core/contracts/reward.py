"""Reward: how a node is scored, and the node as a scorer sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from core.contracts.values import JsonObject

Space: TypeAlias = Literal["output", "action", "reasoning", "memory", "latent"]
Granularity: TypeAlias = Literal["terminal", "step"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call, merged from its updates."""

    tool_call_id: str
    title: str
    kind: str
    status: str
    raw_input: object = None
    raw_output: object = None
    content: tuple[JsonObject, ...] = ()


class RolloutNode(Protocol):
    """A state of the tree with its context. Ids are ``n<seq>``."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str:
        """root, prompt, step, ask."""
        ...

    @property
    def line(self) -> int: ...

    @property
    def parent(self) -> RolloutNode | None: ...

    @property
    def children(self) -> Sequence[RolloutNode]: ...

    @property
    def path(self) -> Sequence[RolloutNode]:
        """Root to this node, both included."""
        ...

    @property
    def subtree(self) -> Iterator[RolloutNode]:
        """This node and everything below it, parents first."""
        ...

    @property
    def state(self) -> str | None:
        """Id of the checkpoint taken at this node, if one was."""
        ...

    @property
    def thought(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...


@dataclass(frozen=True, slots=True)
class RewardEvent:
    """One tagged signal. ``value`` is raw, in the range its source declared."""

    source: str
    value: float
    space: Space
    granularity: Granularity
    node: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """A verdict on one node. ``reward`` is finite and inside ``range``."""

    reward: float
    items: Mapping[str, float] = field(default_factory=dict)
    events: tuple[RewardEvent, ...] = ()
    space: Space = "output"
    granularity: Granularity = "terminal"
    range: tuple[float, float] = (0.0, 1.0)
    raw: str = ""
    """The reward exactly as the verifier wrote it."""
    verifier_digest: str = ""
    hardened: bool = True
    logs: Mapping[str, str] = field(default_factory=dict)
    """Name to text of what the verifier printed and wrote, bounded."""


class Reward(Protocol):
    """Scores any node. Raises VerifierError; an unscored node is never a 0."""

    @property
    def digest(self) -> str:
        """Content hash of the verifier, so that verdict versions can be told apart."""
        ...

    async def score(self, node: RolloutNode) -> VerifyResult: ...
