"""Backup: V of every branching state of a tree, decision by decision.

A decision is a node with more than one way on. Each way has a *continuation
key*: equal keys are one group, whatever line they are on, so that a resample
joins the line it resamples and a branch that gives the same answer joins the
line that got it. Walks are loops; a tree of any depth works.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from core.contracts.values import JsonObject
from core.kernel.tree import GivenAnswer, Line, Node, Tree
from core.kernel.value import StateValue, Value, Weights, q_value, state_value

OUT_BY_DEFAULT = frozenset({"transcript", "replayed-loose", "diverged"})
"""Fidelities whose child may not be in the parent's state."""

CONTINUE = "continue"

SCORED = "scored"
"""The one outcome of a line whose leaf's verdict is a return."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which children count."""

    weights: Weights | None = None
    """None: empirical where the user model was sampled, else uniform."""
    include_human: bool = False
    """Branches a person opened after seeing outcomes are chosen, not sampled."""
    include_loose: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """One child of a decision: the line it is on, its group, and its return so far."""

    child: Node
    line: Line
    key: str
    value: Value | None
    """None while it runs; an empty Value when it is excluded."""
    why_out: str = ""
    nested: bool = False
    range: tuple[float, float] | None = None
    """What the returns behind it were declared to lie in; None without a return."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A branching node with its V, its groups and the children behind them."""

    node: str
    value: StateValue
    ways: tuple[Way, ...]
    pending: int

    @property
    def range(self) -> tuple[float, float] | None:
        """The widest that the returns behind it were declared to lie in."""
        found = [way.range for way in self.ways if way.range is not None]
        if not found:
            return None
        return min(low for low, _ in found), max(high for _, high in found)


def continuation_key(continuation: JsonObject) -> str:
    """The group of a child line, from what makes it differ."""
    kind = str(continuation.get("kind", CONTINUE))
    if kind == "answer":
        return answer_key(
            str(continuation.get("action", "accept")), continuation.get("content") or {}
        )
    if kind == "nudge":
        return f"nudge:{continuation.get('text', '')}"
    if kind in ("edit", "config"):
        return f"{kind}:{json.dumps(continuation, sort_keys=True, ensure_ascii=False)}"
    return CONTINUE


def answer_key(action: str, content: object) -> str:
    if action != "accept":
        return f"answer:{action}"
    return f"answer:{json.dumps(_canonical(content), sort_keys=True, ensure_ascii=False)}"


def _canonical(value: object) -> object:
    """Equal answers in one form: 1 and 1.0, several choices in any order."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted((_canonical(item) for item in value), key=json.dumps)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def decisions(tree: Tree, rules: Rules | None = None) -> dict[str, Decision]:
    """V of every node that has more than one way on, deepest first.

    To stop there is a way on too: of a line that ended and was scored at a node from
    which others went on. Of the attempts at a rollout only the newest is one.
    """
    rules = rules or Rules()
    found: dict[str, Decision] = {}
    if not tree.root_id:
        return found
    silent, given_up = _silent_lines(tree), _given_up(tree)
    for node in reversed(list(tree.root.subtree)):
        first = node.children + [_placeholder(tree, node, line) for line in silent[node.id]]
        ways = [
            _way(tree, node, child, rules, found) for child in first if child.line not in given_up
        ]
        stopped = _stopped_here(tree, node) if ways else None
        if stopped is not None:
            ways.append(stopped)
        if len(ways) > 1:
            found[node.id] = _decide(node, ways, rules)
    return found


def _given_up(tree: Tree) -> set[int]:
    """The first lines of attempts that a later attempt took the place of."""
    kinds = ("start", "attempt")
    attempts = [line for line in tree.lines.values() if line.continuation.get("kind") in kinds]
    attempts = [line for line in attempts if line.parent_id == tree.root_id]
    newest = max((line.number for line in attempts), default=None)
    return {line.number for line in attempts if line.number != newest}


def _stopped_here(tree: Tree, node: Node) -> Way | None:
    """The way of the node's own line, where it ended at the node and was scored."""
    line = tree.lines.get(node.line)
    if line is None or line.leaf_id != node.id or line.outcome != SCORED or not node.verdict:
        return None
    result = node.verdict.result
    return Way(node, line, _key(node, node, line), q_value([result.reward]), range=result.range)


def _silent_lines(tree: Tree) -> defaultdict[str, list[Line]]:
    """Lines that have no node yet, by their fork point: each is a way on from there."""
    silent: defaultdict[str, list[Line]] = defaultdict(list)
    for line in tree.lines.values():
        fork = tree.nodes.get(line.parent_id or "")
        if fork is not None and line.leaf_id == fork.id and line.number != fork.line:
            silent[fork.id].append(line)
    return silent


def _placeholder(tree: Tree, node: Node, line: Line) -> Node:
    """Stands for the first node of a line that died, or stopped, before it made one."""
    verdict = tree.verdict_of(line)
    return Node(
        tree,
        f"{node.id}/{line.number}",
        node.seq,
        line.started_at,
        "step",
        line.number,
        node.id,
        verdicts=[verdict] if verdict else [],
    )


def _way(tree: Tree, node: Node, child: Node, rules: Rules, found: Mapping[str, Decision]) -> Way:
    line = tree.lines[child.line]
    key = _key(node, child, line)
    why_out = _why_out(line, node, rules)
    if why_out:
        return Way(child, line, key, Value(None, 0, None, None, 1), why_out)
    value, nested, bounds = _return(tree, child, found)
    if value is None and line.outcome is not None:
        why_out = f"{line.outcome}: no reward"
        return Way(child, line, key, Value(None, 0, None, None, 1), why_out)
    return Way(child, line, key, value, nested=nested, range=bounds)


def _key(node: Node, child: Node, line: Line) -> str:
    if child.line != node.line and line.parent_id == node.id:
        return continuation_key(line.continuation)
    answer: GivenAnswer | None = node.answer if node.kind == "ask" else None
    return answer_key(answer.action, answer.content) if answer else CONTINUE


def _why_out(line: Line, node: Node, rules: Rules) -> str:
    branched = line.parent_id == node.id and line.number != node.line
    if not branched:
        return ""
    if line.origin == "human" and not rules.include_human:
        return "opened by a person"
    if line.fidelity in OUT_BY_DEFAULT and not rules.include_loose:
        return f"fidelity {line.fidelity}"
    return ""


def _return(
    tree: Tree, child: Node, found: Mapping[str, Decision]
) -> tuple[Value | None, bool, tuple[float, float] | None]:
    """The value of going to ``child``: its first decision below, else its line's verdict;
    whether it was a decision's; and its declared range."""
    node = child
    while (decision := found.get(node.id)) is None and node.child_ids:
        node = tree.nodes[node.child_ids[0]]
    if decision is not None:
        value = decision.value.value
        return (value if value.mean is not None else None), True, decision.range
    line = tree.lines.get(node.line)
    # Neither the state that a running line has got to, nor that in which one died, is a return.
    verdict = node.verdict if line is None or line.outcome == SCORED else None
    if verdict is None:
        return None, False, None
    return q_value([verdict.result.reward]), False, verdict.result.range


def _decide(node: Node, ways: list[Way], rules: Rules) -> Decision:
    groups: dict[str, list[Way]] = {}
    for way in ways:
        groups.setdefault(way.key, []).append(way)
    bounds = Decision(node.id, state_value({}), tuple(ways), 0).range
    values = {key: _group_value(members, bounds) for key, members in groups.items()}
    values = {key: value for key, value in values.items() if value.n or value.excluded}
    value = state_value(values, weights=rules.weights or _weights(ways), bounds=bounds)
    return Decision(node.id, value, tuple(ways), sum(way.value is None for way in ways))


def _weights(ways: list[Way]) -> Weights:
    """How often the user model said it, where it was asked again; else each way alike."""
    origins = {way.line.origin for way in ways if way.value is not None and not way.why_out}
    return "empirical" if "sampled" in origins and "option" not in origins else "uniform"


def _group_value(members: list[Way], bounds: tuple[float, float] | None) -> Value:
    scored = [way for way in members if way.value is not None and way.value.mean is not None]
    excluded = sum(bool(way.why_out) for way in members)
    if not any(way.nested for way in scored):
        returns = [way.value.mean for way in scored if way.value and way.value.mean is not None]
        return q_value(returns, excluded=excluded, bounds=bounds)
    values = [way.value for way in scored if way.value is not None]
    means = [value.mean for value in values if value.mean is not None]
    mean = math.fsum(means) / len(means)
    if len(values) == 1:
        variance, interval = values[0].variance, values[0].interval
    else:
        # The spread of siblings holds both their own noise and that of the sampling.
        spread = math.fsum((value - mean) ** 2 for value in means) / (len(means) - 1)
        variance, interval = spread / len(means), None
    lost = excluded + sum(value.excluded for value in values)
    return Value(mean, sum(value.n for value in values), variance, interval, lost)
