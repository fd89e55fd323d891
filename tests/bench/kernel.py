"""How long the kernel takes to fold, walk and grow a tree. Prints; asserts nothing.

``python -m tests.bench.kernel``. A fold that is linear keeps its events per second
as the log grows; the floor beside it is decoding the same rows from JSON.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import TypeVar

from core.contracts.store import Event
from core.kernel import events as ev
from core.kernel.replay import fold
from core.kernel.trajectory import trajectory
from core.kernel.tree import Tree
from core.services.views import rows
from tests.core.kernel.logs import log

T = TypeVar("T")

MAIN = (0, ev.LineStarted(None, {"kind": "start"}, main=True))


def one_line(nodes: int) -> list[Event]:
    """Steps with a thought, a tool call in two updates, and an end."""
    bodies: list[tuple[int, ev.Body]] = [MAIN]
    for step in range(nodes):
        bodies += [
            (0, ev.StepStarted("updates")),
            (0, ev.Thought("Let me look at the next file.")),
            (0, ev.ToolChanged(f"t{step}", title="ls", status="pending")),
            (0, ev.ToolChanged(f"t{step}", status="completed", raw_output={"ok": True})),
            (0, ev.StepEnded()),
        ]
    return log(*bodies)


def forks(lines: int) -> list[Event]:
    """Every line grows from the node of the one before: as deep as a tree of forks gets."""
    bodies: list[tuple[int, ev.Body]] = [MAIN, (0, ev.Prompted("go", "task"))]
    for line in range(1, lines):
        bodies.append((line, ev.LineStarted(f"n{2 * line + 1}", {"kind": "resample"})))
        bodies.append((line, ev.Prompted("again", "nudge", via="user-model")))
    return log(*bodies)


def timed(what: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = what()
    return result, time.perf_counter() - began


def show(name: str, events: list[Event]) -> None:
    stored = [json.dumps(dataclasses.asdict(event)) for event in events]
    _, floor = timed(lambda: [json.loads(line) for line in stored])
    tree, folding = timed(lambda: fold(events))
    _, listing = timed(lambda: rows(tree))
    told, telling = timed(lambda: _longest(tree))
    print(
        f"{name:>22}: {len(events):>6} events, {len(tree.nodes):>6} nodes   "
        f"json {floor * 1e3:7.1f} ms   fold {folding * 1e3:7.1f} ms "
        f"({len(events) / folding:>9,.0f}/s)   rows {listing * 1e3:7.1f} ms   "
        f"trajectory of {told} items {telling * 1e3:6.1f} ms"
    )


def _longest(tree: Tree) -> int:
    return max(len(trajectory(tree, leaf.id).items) for leaf in tree.leaves()[-1:])


def main() -> None:
    for nodes in (1_000, 2_500, 5_000, 10_000, 20_000):
        show(f"one line of {nodes}", one_line(nodes))
    for lines in (250, 500, 1_000, 3_000):
        show(f"{lines} nested forks", forks(lines))


if __name__ == "__main__":
    main()
