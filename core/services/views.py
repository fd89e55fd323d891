"""Read models that every face shows: rows of a tree, a header, times.

Pure: a tree in, frozen rows out, nothing nested. Every text in a row has passed
the sanitiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from core.contracts.values import JsonObject
from core.kernel.tree import Line, Node, Tree
from core.services.sanitise import clean


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of a tree view. ``depth`` counts forks, never steps."""

    node: str
    kind: str
    line: int
    depth: int
    label: str
    detail: str
    state: str
    """open, done, waiting, answered, scored, failed, cancelled, interrupted."""
    reward: float | None
    at: float


@dataclass(frozen=True, slots=True)
class RolloutHead:
    """What stands above the tree."""

    rollout: str
    task: str
    agent: str
    sandbox: str
    user: str
    state: str
    phase: str
    attempt: int
    steps: int
    lines: int
    waiting: int
    reward: float | None
    reward_range: tuple[float, float] | None
    items: dict[str, float]
    hardened: bool
    assisted: bool
    error: str | None
    error_category: str | None
    seconds: float | None
    noise: int


def head(tree: Tree) -> RolloutHead:
    """The rollout in one record; its reward is the main line's leaf's."""
    line = tree.main_line
    leaf = tree.main_leaf
    verdict = leaf.verdict if leaf else None
    nodes = tree.nodes.values()
    return RolloutHead(
        rollout=tree.rollout,
        task=tree.task,
        agent=tree.agent,
        sandbox=tree.sandbox,
        user=tree.user,
        state=tree.outcome or ("waiting" if any(_waits(node) for node in nodes) else "running"),
        phase=(line.phase if line else "") or tree.phase,
        attempt=tree.attempt,
        steps=sum(node.kind == "step" for node in nodes),
        lines=len(tree.lines),
        waiting=sum(_waits(node) for node in nodes),
        reward=verdict.result.reward if verdict else None,
        reward_range=verdict.result.range if verdict else None,
        items=dict(verdict.result.items) if verdict else {},
        hardened=verdict.result.hardened if verdict else True,
        assisted=bool(line and line.assisted),
        error=tree.error or (line.error if line else None),
        error_category=tree.error_category or (line.error_category if line else None),
        seconds=tree.seconds,
        noise=sum(tree.noise.values()),
    )


def rows(tree: Tree, *, after: int = 0) -> list[TreeRow]:
    """Every node made by an event later than ``after``, line by line, parents first."""
    depths = _line_depths(tree)
    order = _reading_order(tree)
    return [
        row(tree, node, depths.get(node.line, 0) if node.kind != "root" else 0)
        for node in order
        if node.seq > after
    ]


def row(tree: Tree, node: Node, depth: int = 0) -> TreeRow:
    """One node as a row; its reward is its newest verdict's."""
    return TreeRow(
        node=node.id,
        kind=node.kind,
        line=node.line,
        depth=depth,
        label=clean(_label(tree, node)),
        detail=clean(_detail(tree, node)),
        state=_state(tree, node),
        reward=node.verdict.result.reward if node.verdict else None,
        at=node.at,
    )


def _reading_order(tree: Tree) -> list[Node]:
    """Depth first; at a fork each child's line is told whole before the next."""
    if not tree.root_id:
        return []
    return list(tree.root.subtree)


def _line_depths(tree: Tree) -> dict[int, int]:
    return {number: len(tree.ancestry(number)) - 1 for number in tree.lines}


def _waits(node: Node) -> bool:
    return node.kind == "ask" and node.open


def _label(tree: Tree, node: Node) -> str:
    if node.kind == "root":
        return f"{tree.task} · {tree.agent}"
    if node.kind == "prompt":
        return "nudge" if node.origin == "nudge" else "prompt"
    if node.kind == "ask":
        return f"ask_user → {node.answer.label}" if node.answer else "ask_user"
    calls = node.tool_calls
    if calls:
        names = [call.title or call.kind for call in calls]
        return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"
    return "message" if node.message else "thought"


def _detail(tree: Tree, node: Node) -> str:
    if node.kind == "root":
        return ""
    if node.kind == "prompt":
        return first_line(node.text)
    if node.kind == "ask":
        question = first_line(str(node.question.get("question", "")))
        options = [str(option.get("label", "")) for option in _options(node.question)]
        tail = f" [{' | '.join(options)}]" if options else ""
        return question + tail
    return first_line(node.message or node.thought)


def _options(question: JsonObject) -> list[JsonObject]:
    for item in cast("list[JsonObject]", question.get("fields") or []):
        options = item.get("options")
        if isinstance(options, list) and options:
            return cast("list[JsonObject]", options)
    return []


def _state(tree: Tree, node: Node) -> str:
    line: Line | None = tree.lines.get(node.line)
    if node.verdict is not None:
        return "scored"
    if node.kind == "ask":
        return "waiting" if node.open else "answered"
    if node.open:
        return "open"
    if line is not None and line.leaf_id == node.id and line.outcome not in (None, "scored"):
        return str(line.outcome)
    return "done"


def first_line(text: str, limit: int = 200) -> str:
    """The first line with anything on it, cut with an ellipsis at ``limit`` characters."""
    for line in text.splitlines():
        if line.strip():
            line = line.strip()
            return line if len(line) <= limit else line[: limit - 1] + "…"
    return ""
