"""Which children can be forked at which node, and what a refusal says."""

from __future__ import annotations

import dataclasses

import pytest

from core.contracts.agent import SessionSnapshot
from core.contracts.environment import StateSnapshot
from core.contracts.errors import BenchFlowError, CheckpointError, UsageError
from core.contracts.sandbox import SandboxImage, SandboxSpec
from core.contracts.values import Fidelity
from core.kernel import events as ev
from core.kernel.branch import Continuation, check_fork
from core.kernel.checkpoint import Checkpoint
from core.kernel.replay import fold
from core.kernel.tree import Node
from tests.core.kernel.logs import log

REST = SessionSnapshot("a", Fidelity.NATIVE, {}, pending_ask=False, steps=1)
ASKING = dataclasses.replace(REST, fidelity=Fidelity.EXACT, pending_ask=True)
ANSWER = Continuation("answer", "yes", content={"answer": "yes"})
NUDGE = Continuation("nudge", "nudge", text="go on")
AGAIN = Continuation("resample", "again 1")


def checkpoint(
    session: SessionSnapshot | None, *not_captured: str, environment: tuple[str, ...] = ()
) -> Checkpoint:
    image = SandboxImage(
        id="i1",
        provider="fake",
        parent=None,
        rung="fake",
        layers=(),
        new_bytes=0,
        seconds=0.0,
        captured=frozenset(),
        spec=SandboxSpec("s"),
    )
    state = StateSnapshot("s1", "files", True, "d", 1, not_captured=environment)
    return Checkpoint(
        "i1", "n2", 1, "quiesced", image, state, session, (*not_captured, *environment), 0.0, 0.0
    )


def node(kind: str) -> Node:
    """The last node of a log that ends with one of this kind."""
    start = [(0, ev.LineStarted(None, {}, "none", "main", 0, True))]
    bodies: dict[str, list[tuple[int, ev.Body]]] = {
        "root": [],
        "step": [(0, ev.Prompted("go", "task")), (0, ev.StepStarted("updates"))],
        "ask": [(0, ev.Asked(0, {"question": "Which?"}))],
    }
    tree = fold(log(*start, *bodies[kind]))
    found = tree.main_leaf or tree.root
    assert found.kind == kind
    return found


@pytest.mark.parametrize(
    ("kind", "session", "item"),
    [
        ("root", None, AGAIN),
        ("ask", ASKING, ANSWER),
        ("step", REST, NUDGE),
        ("step", REST, AGAIN),
    ],
)
def test_what_can_go_on_may(kind: str, session: SessionSnapshot | None, item: Continuation) -> None:
    check_fork(checkpoint(session), node(kind), [item])


@pytest.mark.parametrize(
    ("kind", "session", "item", "error", "words"),
    [
        ("root", None, NUDGE, UsageError, "is not the end of a turn"),
        ("ask", ASKING, NUDGE, UsageError, "is not the end of a turn"),
        ("step", REST, ANSWER, UsageError, "asks nothing"),
        ("ask", REST, ANSWER, CheckpointError, "cannot be forked: its session was not captured"),
        ("step", None, NUDGE, CheckpointError, "its agent had ended"),
        ("step", None, AGAIN, CheckpointError, "its agent had ended"),
    ],
)
def test_what_cannot_is_refused_with_the_reason(
    kind: str,
    session: SessionSnapshot | None,
    item: Continuation,
    error: type[BenchFlowError],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        check_fork(checkpoint(session), node(kind), [item])


@pytest.mark.parametrize("item", [NUDGE, AGAIN])
def test_an_agent_that_could_not_be_captured_is_named(item: Continuation) -> None:
    lacks = checkpoint(None, "the agent's session: agent x can neither resume nor load a session")
    with pytest.raises(CheckpointError, match=r"from node n\d+: .* can neither resume nor load"):
        check_fork(lacks, node("step"), [item])


def test_only_the_environment_says_that_memory_would_be_lost() -> None:
    named = checkpoint(REST, "the tool call 'memory test' still ran")
    check_fork(named, node("step"), [NUDGE])
    lost = checkpoint(REST, environment=("service 'desk' keeps its state in memory",))
    with pytest.raises(CheckpointError, match="'desk' keeps its state in memory"):
        check_fork(lost, node("step"), [NUDGE])
