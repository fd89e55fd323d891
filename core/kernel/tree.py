"""The rollout tree: flat nodes and lines, built by ``replay.fold``, read by everyone.

Nodes are kept by id and refer to each other by id, and every walk is a loop,
so that depth never matters (3,000 and more). A node carries its tree, which is
what makes ``path``, ``subtree`` and ``children`` cheap to ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from core.contracts.reward import ToolCall, VerifyResult
from core.contracts.user import Nudge
from core.contracts.values import JsonObject

NodeKind: TypeAlias = Literal["root", "prompt", "step", "ask"]


@dataclass(frozen=True, slots=True)
class Block:
    """One thing inside a step, in the order the agent did it.

    ``ref`` is a tool call id for ``tool`` and an index into the tree's
    permissions for ``permission``.
    """

    kind: Literal["thought", "message", "tool", "permission"]
    text: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """What the user said to an ask node on one line."""

    action: str
    content: JsonObject
    actor: str
    via: str
    seconds: float

    @property
    def label(self) -> str:
        """The answer in a few words, for a tree row."""
        if self.action != "accept":
            return self.action
        values = [str(value) for value in self.content.values() if value not in (None, "")]
        return ", ".join(values) or "accept"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One version of the score of one node."""

    number: int
    result: VerifyResult
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Unscored:
    """A verifier's failure on one node, with what it printed."""

    error: str
    error_category: str
    logs: JsonObject


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """A whole checkpoint, as its record in the log names it."""

    id: str
    consistency: str
    record: JsonObject


@dataclass(eq=False, slots=True)
class Node:
    """A state of the rollout, and the edge that led to it."""

    tree: Tree = field(repr=False)
    id: str
    seq: int
    at: float
    kind: NodeKind
    line: int
    parent_id: str | None
    child_ids: list[str] = field(default_factory=list)
    text: str = ""
    """The prompt of a prompt node."""
    origin: str = ""
    actor: str = ""
    turn: int = 0
    rule: str = ""
    role: str = ""
    scene: str = ""
    blocks: list[Block] = field(default_factory=list)
    open: bool = False
    """The step is still going on, or the question still waits."""
    ask_index: int = 0
    question: JsonObject = field(default_factory=dict)
    answer: GivenAnswer | None = None
    ended_at: float | None = None
    checkpoint: CheckpointMark | None = None
    dropped: str = ""
    """Why its checkpoint is kept no more, where it had one."""
    verdicts: list[Verdict] = field(default_factory=list)
    unscored: Unscored | None = None
    """Why the last try to score it gave nothing."""

    @property
    def parent(self) -> Node | None:
        return self.tree.nodes[self.parent_id] if self.parent_id else None

    @property
    def children(self) -> list[Node]:
        return [self.tree.nodes[child] for child in self.child_ids]

    @property
    def path(self) -> list[Node]:
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    @property
    def subtree(self) -> Iterator[Node]:
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    @property
    def state(self) -> str | None:
        return self.checkpoint.id if self.checkpoint else None

    @property
    def thought(self) -> str:
        return "".join(block.text for block in self.blocks if block.kind == "thought")

    @property
    def message(self) -> str:
        return "".join(block.text for block in self.blocks if block.kind == "message")

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [
            self.tree.tool_call(self.line, block.ref)
            for block in self.blocks
            if block.kind == "tool"
        ]

    @property
    def verdict(self) -> Verdict | None:
        return self.verdicts[-1] if self.verdicts else None


@dataclass(frozen=True, slots=True)
class PhaseTime:
    phase: str
    seconds: float
    outcome: str
    error: str | None
    parts: JsonObject


@dataclass(frozen=True, slots=True)
class Permission:
    title: str
    options: tuple[JsonObject, ...]
    chosen: str | None
    policy: str
    actor: str
    tool_call_id: str | None


@dataclass(eq=False, slots=True)
class Line:
    """One chain of nodes from a fork, or from the root, on."""

    number: int
    attempt: int
    parent_id: str | None
    continuation: JsonObject
    fidelity: str
    origin: str
    seed: int
    assisted_at: int | None
    """The event since which a person has helped; None while nobody has."""
    leaf_id: str
    started_at: float
    mark: int = 0
    """The event that the line has got to, of those at which it can be forked: its
    newest node, or the answer to its newest question."""
    step_id: str | None = None
    """The step now going on."""
    phase: str = ""
    phases: list[PhaseTime] = field(default_factory=list)
    asks: int = 0
    turns: int = 0
    stop_reason: str | None = None
    outcome: str | None = None
    error: str | None = None
    error_category: str | None = None
    ended_at: float | None = None
    usage: JsonObject = field(default_factory=dict)
    selected: bool = False
    """A person made it the main line after its outcome was known."""

    @property
    def assisted(self) -> bool:
        return self.assisted_at is not None

    def assisted_by(self, seq: int) -> bool:
        """Whether a person had helped when the event ``seq`` happened."""
        return self.assisted_at is not None and self.assisted_at <= seq


@dataclass(eq=False, slots=True)
class Tree:
    """One rollout. ``main`` is the line whose leaf is the rollout's reward."""

    rollout: str = ""
    root_id: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    lines: dict[int, Line] = field(default_factory=dict)
    tools: dict[tuple[int, str], list[tuple[int, ToolCall]]] = field(default_factory=dict)
    """Each call as it was at each mark of its line: a fork keeps what its parent's
    calls were at the fork, whatever the parent learns later."""
    permissions: list[Permission] = field(default_factory=list)
    session: dict[str, JsonObject] = field(default_factory=dict)
    noise: dict[str, int] = field(default_factory=dict)
    nudges: dict[str, Nudge] = field(default_factory=dict)
    """Accepted and not yet given to the agent, oldest first, by id."""
    stop: str | None = None
    """Who ended the rollout of the current owner before its time, if anybody did."""
    main: int = 0
    paused: bool = False
    task: str = ""
    task_digest: str = ""
    agent: str = ""
    sandbox: str = ""
    user: str = ""
    config: JsonObject = field(default_factory=dict)
    seq: int = 0
    term: int = 0
    attempt: int = 1
    started_at: float = 0.0
    ended_at: float | None = None
    outcome: str | None = None
    error: str | None = None
    error_category: str | None = None
    before: tuple[str | None, str | None, str | None] | None = None
    """Outcome, error and category that it had ended with, while it grows again on the same
    main line: they stay its result."""
    seconds: float | None = None
    phase: str = ""
    phases: list[PhaseTime] = field(default_factory=list)
    """Phases of the rollout itself (sandbox, environment, ...), the last attempt's."""

    @property
    def root(self) -> Node:
        return self.nodes[self.root_id]

    @property
    def main_line(self) -> Line | None:
        return self.lines.get(self.main)

    @property
    def main_leaf(self) -> Node | None:
        line = self.main_line
        return self.nodes[line.leaf_id] if line else None

    def leaves(self) -> list[Node]:
        """The last node of every line, by line number."""
        return [self.nodes[line.leaf_id] for _, line in sorted(self.lines.items())]

    def verdict_of(self, line: Line) -> Verdict | None:
        """The verdict on the line's end. One without a node of its own has it only where it
        was scored: it stopped at its fork, and the fork's verdicts are of its state too."""
        leaf = self.nodes[line.leaf_id]
        own = leaf.line == line.number or line.outcome == "scored"
        return leaf.verdict if own else None

    def ancestry(self, line: int) -> list[int]:
        """Lines from ``line`` up to one that grows from the root."""
        chain: list[int] = []
        current: int | None = line
        while current is not None:
            chain.append(current)
            parent_id = self.lines[current].parent_id if current in self.lines else None
            parent = self.nodes.get(parent_id) if parent_id else None
            current = parent.line if parent and parent.kind != "root" else None
        return chain

    def find_tool(self, line: int, tool_call_id: str) -> ToolCall | None:
        """A tool call as ``line`` knows it: its own, else its ancestors' as of the fork."""
        limit: int | None = None
        current: int | None = line
        while current is not None:
            for mark, call in reversed(self.tools.get((current, tool_call_id), ())):
                if limit is None or mark <= limit:
                    return call
            here = self.lines.get(current)
            fork = self.nodes.get(here.parent_id) if here and here.parent_id else None
            current = fork.line if fork and fork.kind != "root" else None
            limit = fork.seq if fork else None
        return None

    def tool_call(self, line: int, tool_call_id: str) -> ToolCall:
        """The same, or an empty call for an id that nobody announced."""
        found = self.find_tool(line, tool_call_id)
        return found or ToolCall(tool_call_id, title="", kind="other", status="pending")
