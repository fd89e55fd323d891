"""Event logs for tests: built by hand, or drawn by hypothesis; and a tree in plain words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from core.contracts.store import Event, EventDraft
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.kernel.trajectory import AskItem, PermissionItem, PromptItem, ToolItem, trajectory
from core.kernel.tree import Node, Tree

ROOT = ev.RolloutStarted("desk", "sha256:task", "fake", "local", "scripted", {"seed": 1})


def number(drafts: Iterable[EventDraft], *, after: int = 0, attempt: int = 1) -> list[Event]:
    """Drafts as the rows of one log, one second apart."""
    counts: dict[int, int] = {}
    rows: list[Event] = []
    for seq, draft in enumerate(drafts, start=after + 1):
        counts[draft.line] = counts.get(draft.line, 0) + 1
        rows.append(
            Event(
                rollout="r1",
                seq=seq,
                term=1,
                attempt=attempt,
                line=draft.line,
                line_seq=counts[draft.line],
                kind=draft.kind,
                version=draft.version,
                at=1000.0 + seq,
                payload=draft.payload,
            )
        )
    return rows


def log(*bodies: tuple[int, ev.Body]) -> list[Event]:
    """A log of ``(line, body)`` after the root event; the root is ``n1``."""
    return number([ev.encode(ROOT), *(ev.encode(body, line=line) for line, body in bodies)])


# -- strategies ------------------------------------------------------------------

TEXT = st.text(max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | TEXT
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECT: st.SearchStrategy[JsonObject] = st.dictionaries(TEXT, JSON, max_size=2)
NUMBERS = st.floats(-10, 10, allow_nan=False)

BY_TYPE: dict[str, st.SearchStrategy[JsonValue]] = {
    "str": TEXT,
    "int": st.integers(0, 50),
    "float": NUMBERS,
    "bool": st.booleans(),
    "str | None": st.none() | TEXT,
    "int | None": st.none() | st.integers(0, 50),
    "float | None": st.none() | NUMBERS,
    "JsonValue": JSON,
    "JsonObject": OBJECT.map(lambda value: value),
    "list[str]": st.lists(TEXT, max_size=2).map(list),
    "list[float]": st.lists(NUMBERS, min_size=2, max_size=2).map(list),
    "list[JsonObject]": st.lists(OBJECT, max_size=2).map(list),
    "list[JsonObject] | None": st.none() | st.lists(OBJECT, max_size=2).map(list),
}
"""Every type that a field of an event may have: JSON, and nothing else."""

NODE_IDS = st.integers(0, 40).map(lambda seq: f"n{seq}") | st.just("nowhere")
TOOL_IDS = st.sampled_from(["t1", "t2", "t3"])
_BY_NAME: dict[str, st.SearchStrategy[JsonValue]] = {
    "node": NODE_IDS,
    "parent": st.none() | NODE_IDS,
    "tool_call_id": TOOL_IDS,
    "main": st.integers(0, 5) | st.booleans(),
}


def bodies_of(kind: type[ev.Body], *, known: bool = False) -> st.SearchStrategy[ev.Body]:
    """Any well-typed event of one kind; ``known``: ids that may exist in a short log."""
    drawn: dict[str, st.SearchStrategy[JsonValue]] = {}
    for item in dataclasses.fields(kind):
        typed = BY_TYPE[str(item.type)]
        drawn[item.name] = _BY_NAME.get(item.name, typed) if known else typed
    return st.builds(kind, **drawn)


def any_body(*, known: bool = False) -> st.SearchStrategy[ev.Body]:
    return st.one_of([bodies_of(kind, known=known) for kind in ev.KINDS.values()])


@st.composite
def implausible_logs(draw: st.DrawFn) -> list[Event]:
    """Any events in any order on any lines, after a root: what a fold must survive."""
    pairs = st.tuples(st.integers(0, 4), any_body(known=True))
    return log(*draw(st.lists(pairs, max_size=30)))


@st.composite
def plausible_logs(draw: st.DrawFn, max_size: int = 40) -> list[Event]:
    """What real rollouts write: lines that start, turn, ask and end; forks of any node."""
    drafts = [ev.encode(ROOT)]
    writer = _Writer(draw, drafts)
    writer.start()
    for _ in range(draw(st.integers(0, max_size))):
        writer.act()
    return number(drafts)


class _Writer:
    """Keeps just enough of each line's state to write only what could happen there."""

    def __init__(self, draw: st.DrawFn, drafts: list[EventDraft]) -> None:
        self._draw = draw
        self._drafts = drafts
        self._nodes = ["n1"]
        self._live: list[int] = []
        self._open_step: dict[int, bool] = {}
        self._asks: dict[int, list[str]] = {}
        self._lines = 0

    def start(self) -> None:
        parent = self._draw(st.sampled_from(self._nodes))
        line, self._lines = self._lines, self._lines + 1
        answer: JsonObject = {"kind": "answer", "action": "accept", "content": {"a": line}}
        again: JsonObject = {"kind": "resample"}
        continuation = self._draw(st.sampled_from([answer, again]))
        self._write(line, ev.LineStarted(parent, continuation, main=line == 0))
        self._live.append(line)
        self._asks[line] = []

    def act(self) -> None:
        if not self._live or self._draw(st.integers(0, 9)) == 0:
            self.start()
            return
        line = self._draw(st.sampled_from(self._live))
        acts = ["prompt", "tool", "usage", "permission", "noise"]
        if self._open_step.get(line):
            acts += ["said", "thought", "step_end", "tool", "tool"]
        else:
            acts += ["step", "step", "ask"]
        if self._asks[line]:
            acts += ["answer", "answer"]
        if len(self._live) > 1:
            acts.append("end")
        getattr(self, f"_{self._draw(st.sampled_from(acts))}")(line)

    def _write(self, line: int, body: ev.Body) -> str:
        self._drafts.append(ev.encode(body, line=line))
        return f"n{len(self._drafts)}"

    def _prompt(self, line: int) -> None:
        self._open_step[line] = False
        via = self._draw(st.sampled_from(["user-model", "cli"]))
        origin = self._draw(st.sampled_from(["task", "nudge"]))
        self._nodes.append(self._write(line, ev.Prompted(self._draw(TEXT), origin, via=via)))

    def _step(self, line: int) -> None:
        self._nodes.append(self._write(line, ev.StepStarted("updates")))
        self._open_step[line] = True

    def _step_end(self, line: int) -> None:
        self._write(line, ev.StepEnded())
        self._open_step[line] = False

    def _said(self, line: int) -> None:
        self._write(line, ev.Said(self._draw(TEXT)))

    def _thought(self, line: int) -> None:
        self._write(line, ev.Thought(self._draw(TEXT)))

    def _tool(self, line: int) -> None:
        status = self._draw(st.sampled_from(["pending", "completed"]))
        output = self._draw(st.none() | st.integers(0, 99))
        self._write(line, ev.ToolChanged(self._draw(TOOL_IDS), status=status, raw_output=output))

    def _ask(self, line: int) -> None:
        index = len(self._asks[line])
        node = self._write(line, ev.Asked(index, {"question": "?", "fields": []}))
        self._nodes.append(node)
        self._asks[line].append(node)

    def _answer(self, line: int) -> None:
        node = self._asks[line].pop()
        self._write(line, ev.Answered(node, "accept", {"a": 1}, "ann", "cli"))

    def _permission(self, line: int) -> None:
        self._write(line, ev.PermissionSettled("rm", [], "yes", "auto", "auto"))

    def _usage(self, line: int) -> None:
        self._write(line, ev.UsageChanged(used=self._draw(st.integers(0, 99))))

    def _noise(self, line: int) -> None:
        self._write(line, ev.NoiseHeard("stdout", "x"))

    def _end(self, line: int) -> None:
        self._live.remove(line)
        self._open_step[line] = False
        self._write(line, ev.LineEnded("scored"))


# -- a tree in plain words ---------------------------------------------------------


def summary(tree: Tree) -> JsonObject:
    """Everything a tree says, as JSON: two trees are equal when these are."""
    return {
        "rollout": tree.rollout,
        "task": tree.task,
        "agent": tree.agent,
        "outcome": tree.outcome,
        "error": tree.error,
        "seconds": tree.seconds,
        "seq": tree.seq,
        "attempt": tree.attempt,
        "main": tree.main,
        "phase": tree.phase,
        "phases": [[item.phase, item.outcome] for item in tree.phases],
        "noise": dict(tree.noise),
        "session": dict(tree.session),
        "nodes": [_node(node) for node in (tree.root.subtree if tree.root_id else ())],
        "lines": {str(number): _line(tree, number) for number in sorted(tree.lines)},
    }


def _node(node: Node) -> JsonObject:
    return {
        "id": node.id,
        "kind": node.kind,
        "line": node.line,
        "parent": node.parent_id,
        "open": node.open,
        "turn": node.turn,
        "text": node.text,
        "blocks": [[block.kind, block.text, block.ref] for block in node.blocks],
        "ask": [node.ask_index, node.question],
        "answer": node.answer.label if node.answer else None,
        "checkpoint": node.state,
        "verdicts": [
            [item.number, item.result.reward, list(item.result.range)] for item in node.verdicts
        ],
        "unscored": node.unscored.error_category if node.unscored else None,
    }


def _line(tree: Tree, number: int) -> JsonObject:
    line = tree.lines[number]
    return {
        "parent": line.parent_id,
        "leaf": line.leaf_id,
        "assisted": line.assisted,
        "fidelity": line.fidelity,
        "outcome": line.outcome,
        "error": line.error,
        "stop_reason": line.stop_reason,
        "phases": [[item.phase, item.outcome] for item in line.phases],
        "asks": line.asks,
        "turns": line.turns,
        "usage": line.usage,
        "told": told(tree, line.leaf_id),
    }


def told(tree: Tree, leaf: str) -> list[JsonValue]:
    """The items of a trajectory, in a word or two each."""
    words: list[JsonValue] = []
    for item in trajectory(tree, leaf).items:
        if isinstance(item, PromptItem):
            words.append(f"prompt {item.text}")
        elif isinstance(item, ToolItem):
            words.append(f"tool {item.call.tool_call_id} {item.call.status} {item.call.raw_output}")
        elif isinstance(item, AskItem):
            words.append(f"ask {item.ask_index} {item.answer.label if item.answer else None}")
        elif isinstance(item, PermissionItem):
            words.append(f"permission {item.permission.title} {item.permission.chosen}")
        else:
            words.append(f"{item.kind} {item.text}")
    return words


def check_shape(tree: Tree) -> None:
    """What is true of every tree, whatever its log said."""
    reached = [node.id for node in tree.root.subtree]
    assert sorted(reached) == sorted(tree.nodes), "each node is below the root, once"
    for node in tree.nodes.values():
        parent = node.parent
        if parent is None:
            assert node.id == tree.root_id
        else:
            assert node.id in parent.child_ids
            assert parent.seq < node.seq
    for number, line in tree.lines.items():
        assert line.number == number
        assert line.leaf_id in tree.nodes
        assert line.parent_id in tree.nodes
        assert len(tree.ancestry(number)) == len(set(tree.ancestry(number)))
        _check_path(tree.nodes[line.leaf_id].path)


def _check_path(path: Sequence[Node]) -> None:
    assert path[0].kind == "root"
    for before, after in itertools.pairwise(path):
        assert after.parent_id == before.id
