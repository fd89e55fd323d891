"""Read models that every face shows: rows of a tree, a header, times.

Pure: a tree in, frozen rows out, nothing nested. Every text in a row has passed
the sanitiser.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import cast

from core.contracts.values import JsonObject
from core.kernel.backup import Decision, Rules, decisions
from core.kernel.tree import Line, Node, Tree
from core.services.sanitise import clean


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of a tree view: a node, or (``kind`` line) the start of a child's line.
    ``depth`` counts forks, never steps."""

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
    value: str = ""
    """V of a branching node, with n, interval and weights."""
    stored: str = ""
    """``stored`` where it can be forked, ``dropped`` where it could be once."""
    main: bool = False
    """This row is the rollout's main line, though it began as a branch."""


@dataclass(frozen=True, slots=True)
class Savings:
    """What the shared prefixes saved against as many rollouts on their own."""

    lines: int
    steps: int
    tool_calls: int
    seconds: float


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
    selected: bool
    """A person chose the main line once its outcome was known."""
    error: str | None
    error_category: str | None
    seconds: float | None
    noise: int
    saved: Savings | None


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
        phase="paused" if tree.paused else (line.phase if line else "") or tree.phase,
        attempt=tree.attempt,
        steps=sum(node.kind == "step" for node in nodes),
        lines=len(tree.lines),
        waiting=sum(_waits(node) for node in nodes),
        reward=verdict.result.reward if verdict else None,
        reward_range=verdict.result.range if verdict else None,
        items=dict(verdict.result.items) if verdict else {},
        hardened=verdict.result.hardened if verdict else True,
        assisted=bool(line and line.assisted),
        selected=bool(line and line.selected),
        error=tree.error or (line.error if line else None),
        error_category=tree.error_category or (line.error_category if line else None),
        seconds=tree.seconds,
        noise=sum(tree.noise.values()),
        saved=savings(tree),
    )


def savings(tree: Tree) -> Savings | None:
    """Counted over child lines: their path before the fork was not run again."""
    children = [line for line in tree.lines.values() if not _starts_tree(tree, line)]
    if not children:
        return None
    steps = calls = 0
    seconds = 0.0
    for line in children:
        fork = tree.nodes[line.parent_id or tree.root_id]
        path = [node for node in fork.path if node.kind == "step"]
        steps += len(path)
        calls += sum(len(node.tool_calls) for node in path)
        seconds += max(0.0, fork.at - tree.started_at)
    return Savings(len(children), steps, calls, seconds)


def rows(tree: Tree, *, after: int = 0, rules: Rules | None = None) -> list[TreeRow]:
    """Every node made by an event later than ``after``: each line told whole, a
    child's line right after the node it was forked at, with a row of its own first."""
    if not tree.root_id:
        return []
    values = decisions(tree, rules)
    forks = _forks(tree)
    asking = {node.line for node in tree.nodes.values() if _waits(node)}
    found: list[TreeRow] = []
    waiting: list[tuple[Node | Line, int]] = [(tree.root, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, Line):
            found.append(_line_row(tree, item, depth, waits=item.number in asking))
            first = [node for node in _forked(tree, item) if node.line == item.number]
            waiting.extend((node, depth) for node in first)
            continue
        if item.seq > after:
            found.append(row(tree, item, depth, values.get(item.id)))
        own = [node for node in item.children if not _is_fork(tree, item, node)]
        waiting.extend((node, depth) for node in own)
        waiting.extend((line, depth + 1) for line in reversed(forks[item.id]))
    return found


def _is_fork(tree: Tree, parent: Node, child: Node) -> bool:
    """Whether the way to ``child`` starts a line that is shown with a row of its own."""
    return child.line != parent.line and not _starts_tree(tree, tree.lines[child.line])


def _starts_tree(tree: Tree, line: Line) -> bool:
    """The first line of an attempt grows from the root and needs no row of its own."""
    return line.parent_id == tree.root_id and line.continuation.get("kind") in ("start", "attempt")


def _forks(tree: Tree) -> defaultdict[str, list[Line]]:
    """Lines that have a row of their own, by the node they grow from, by number."""
    forks: defaultdict[str, list[Line]] = defaultdict(list)
    for number, line in sorted(tree.lines.items()):
        parent = tree.nodes.get(line.parent_id or "")
        if parent is not None and number != parent.line and not _starts_tree(tree, line):
            forks[parent.id].append(line)
    return forks


def _forked(tree: Tree, line: Line) -> list[Node]:
    return tree.nodes[line.parent_id].children if line.parent_id else []


def _line_row(tree: Tree, line: Line, depth: int, *, waits: bool) -> TreeRow:
    verdict = tree.verdict_of(line)
    kind = str(line.continuation.get("kind", ""))
    label = str(line.continuation.get("label") or line.continuation.get("text") or kind)
    marks = [line.fidelity, line.origin]
    if line.assisted:
        marks.append("assisted")
    if line.selected:
        marks.append("selected")
    if line.error:
        marks.append(first_line(line.error))
    return TreeRow(
        node=f"line {line.number}",
        kind="line",
        line=line.number,
        depth=depth,
        label=clean(f"{kind}: {label}" if kind != label else label),
        detail=clean(" · ".join(marks)),
        state=line.outcome or ("waiting" if waits else "running"),
        reward=verdict.result.reward if verdict else None,
        at=line.started_at,
        main=line.number == tree.main,
    )


def value_text(decision: Decision) -> str:
    """V of a node in a few words: mean, n, interval, weights, what is missing."""
    value = decision.value.value
    if value.mean is None:
        return f"V - ({decision.pending} running)" if decision.pending else "V -"
    parts = [f"V {value.mean:.2f}", f"n={value.n}"]
    if value.interval is not None:
        parts.append(f"[{value.interval.low:.2f}, {value.interval.high:.2f}]")
    else:
        parts.append("no interval")
    parts.append(f"q {decision.value.weights}")
    if decision.pending:
        parts.append(f"{decision.pending} running")
    if value.excluded:
        parts.append(f"{value.excluded} left out")
    return " ".join(parts)


def row(tree: Tree, node: Node, depth: int = 0, decision: Decision | None = None) -> TreeRow:
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
        value=value_text(decision) if decision else "",
        stored="stored" if node.checkpoint else ("dropped" if node.dropped else ""),
    )


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
        if node.open or node.answer is not None:
            return "waiting" if node.open else "answered"
    elif node.open:
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
