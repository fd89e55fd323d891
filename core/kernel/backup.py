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


@dataclass(frozen=True, slots=True)
class Rules:
    """Which children count."""

    weights: Weights = "uniform"
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


@dataclass(frozen=True, slots=True)
class Decision:
    """A branching node with its V, its groups and the children behind them."""

    node: str
    value: StateValue
    ways: tuple[Way, ...]
    pending: int


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
    return f"answer:{json.dumps(content, sort_keys=True, ensure_ascii=False)}"


def decisions(tree: Tree, rules: Rules | None = None) -> dict[str, Decision]:
    """V of every node that has more than one way on, deepest first."""
    rules = rules or Rules()
    found: dict[str, Decision] = {}
    if not tree.root_id:
        return found
    silent = _silent_lines(tree)
    for node in reversed(list(tree.root.subtree)):
        first = node.children + [_placeholder(tree, node, line) for line in silent[node.id]]
        if len(first) > 1:
            ways = [_way(tree, node, child, rules, found) for child in first]
            found[node.id] = _decide(node, ways, rules)
    return found


def _silent_lines(tree: Tree) -> defaultdict[str, list[Line]]:
    """Lines that have no node yet, by their fork point: each is a way on from there."""
    silent: defaultdict[str, list[Line]] = defaultdict(list)
    for line in tree.lines.values():
        fork = tree.nodes.get(line.parent_id or "")
        if fork is not None and line.leaf_id == fork.id and line.number != fork.line:
            silent[fork.id].append(line)
    return silent


def _placeholder(tree: Tree, node: Node, line: Line) -> Node:
    """Stands for the first node of a line that died, or ended, before it made one."""
    return Node(
        tree,
        f"{node.id}/{line.number}",
        node.seq,
        line.started_at,
        "step",
        line.number,
        node.id,
        verdicts=[],
    )


def _way(tree: Tree, node: Node, child: Node, rules: Rules, found: Mapping[str, Decision]) -> Way:
    line = tree.lines[child.line]
    key = _key(node, child, line)
    why_out = _why_out(line, node, rules)
    if why_out:
        return Way(child, line, key, Value(None, 0, None, None, 1), why_out)
    value, nested = _return(tree, child, found)
    if value is None and line.outcome is not None:
        why_out = f"{line.outcome}: no reward"
        return Way(child, line, key, Value(None, 0, None, None, 1), why_out)
    return Way(child, line, key, value, nested=nested)


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


def _return(tree: Tree, child: Node, found: Mapping[str, Decision]) -> tuple[Value | None, bool]:
    """The value of going to ``child``: its first decision below, else its line's verdict."""
    node = child
    while True:
        decision = found.get(node.id)
        if decision is not None:
            value = decision.value.value
            return (value if value.mean is not None else None), True
        following = [item for item in node.child_ids if item in tree.nodes]
        if not following:
            break
        node = tree.nodes[following[0]]
    line = tree.lines.get(node.line)
    # A score of the state that a running line has got to is not its return.
    ended = line is None or line.outcome is not None
    verdict = node.verdict if ended else None
    return (q_value([verdict.result.reward]) if verdict else None), False


def _decide(node: Node, ways: list[Way], rules: Rules) -> Decision:
    groups: dict[str, list[Way]] = {}
    for way in ways:
        groups.setdefault(way.key, []).append(way)
    values = {key: _group_value(members) for key, members in groups.items()}
    values = {key: value for key, value in values.items() if value.n or value.excluded}
    pending = sum(way.value is None for way in ways)
    return Decision(node.id, state_value(values, weights=rules.weights), tuple(ways), pending)


def _group_value(members: list[Way]) -> Value:
    scored = [way for way in members if way.value is not None and way.value.mean is not None]
    excluded = sum(bool(way.why_out) for way in members)
    if not any(way.nested for way in scored):
        returns = [way.value.mean for way in scored if way.value and way.value.mean is not None]
        return q_value(returns, excluded=excluded)
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
