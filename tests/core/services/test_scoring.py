"""Which nodes are scored, with which verifier, and what re-scoring says has changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from core.contracts.errors import CheckpointError, UsageError
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.backup import decisions
from core.kernel.replay import fold
from core.kernel.tree import Tree
from core.services.rescoring import Changes, change_of, saved_verifiers
from core.services.scoring import (
    NodeScore,
    ScoreRequest,
    lost_leaves,
    nodes_to_score,
    verifier_folder,
    with_verifier,
)
from core.tasks.models import Task
from core.tasks.package import load_task
from tests.core.kernel.golden import QUESTION, scored
from tests.core.kernel.logs import log
from tests.e2e.packages import write_task

RECORD: JsonObject = {
    "id": "i1",
    "node": "n3",
    "epoch": 1,
    "consistency": "quiesced",
    "image": {
        "id": "i1",
        "provider": "local",
        "parent": None,
        "rung": "overlay",
        "layers": ["b0", "l1"],
        "new_bytes": 0,
        "seconds": 0.0,
        "captured": ["files"],
        "spec": {
            "name": "desk",
            "workdir": "/workspace",
            "home": "/home/agent",
            "mounts": [],
            "env": {},
            "limits": {
                "processes": 1,
                "memory_mb": 1,
                "cpus": 1.0,
                "output_bytes": 1,
                "file_mb": 1,
            },
            "labels": {},
        },
    },
    "state": None,
    "session": None,
    "not_captured": [],
    "seconds": 0.0,
    "frozen_seconds": 0.0,
}


def captured(node: str) -> ev.Checkpointed:
    return ev.Checkpointed(node, "i1", "quiesced", {**RECORD, "node": node})


def two_lines() -> Tree:
    """The main line (n3 asks, n6 is its leaf) and one that was told otherwise (n11)."""
    return fold(
        log(
            (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
            (0, ev.Asked(0, QUESTION)),
            (0, captured("n3")),
            (0, ev.Answered("n3", "accept", {"order": "A-17"}, "ann", "cli")),
            (0, ev.StepStarted("updates")),
            (0, captured("n6")),
            (0, scored("n6", 1.0)),
            (0, ev.LineEnded("scored")),
            (1, ev.LineStarted("n3", {"kind": "answer", "content": {}}, "exact", "option")),
            (1, ev.StepStarted("updates")),
            (1, scored("n11", 0.0)),
            (1, ev.LineEnded("scored")),
            (2, ev.LineStarted("n3", {"kind": "answer"}, "exact", "option")),
            (2, ev.StepStarted("updates")),
            (2, captured("n15")),
        )
    )


def names(tree: Tree, request: ScoreRequest) -> list[str]:
    return [node.id for node in nodes_to_score(tree, request)]


def test_the_main_lines_leaf_is_scored_where_no_node_is_named() -> None:
    assert names(two_lines(), ScoreRequest()) == ["n6"]


def test_named_nodes_are_scored_once_each_in_their_order() -> None:
    assert names(two_lines(), ScoreRequest(("n6", "n3", "n6"))) == ["n6", "n3"]


def test_leaves_are_those_of_ended_lines_whose_state_is_stored() -> None:
    tree = two_lines()
    assert names(tree, ScoreRequest(leaves=True)) == ["n6"]
    assert [node.id for node in lost_leaves(tree)] == ["n11"]
    assert names(tree, ScoreRequest(captured=True)) == ["n3", "n6", "n15"]


def test_a_node_that_is_not_there_or_not_stored_is_refused() -> None:
    with pytest.raises(UsageError, match="no node 'n99'"):
        nodes_to_score(two_lines(), ScoreRequest(("n99",)))
    with pytest.raises(CheckpointError, match="nothing was captured at node n11"):
        nodes_to_score(two_lines(), ScoreRequest(("n6", "n11")))
    with pytest.raises(UsageError, match="nothing of this rollout has run yet"):
        nodes_to_score(fold(log()), ScoreRequest())


def test_a_dropped_state_is_told_with_its_reason() -> None:
    events = log(
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.StepStarted("updates")),
        (0, captured("n3")),
        (0, scored("n3", 1.0)),
        (0, ev.LineEnded("scored")),
        (0, ev.CheckpointDropped("n3", "i1", "dropped to make room")),
    )
    with pytest.raises(CheckpointError, match="kept no more: dropped to make room"):
        nodes_to_score(fold(events), ScoreRequest(("n3",)))
    assert fold(events).nodes["n3"].dropped == "dropped to make room"


def test_the_score_of_a_running_lines_state_is_not_its_return() -> None:
    tree = two_lines()
    before = decisions(tree)["n3"]
    draft = ev.encode(scored("n15", 1.0), line=2)
    (first, *_) = log()
    event = replace(first, seq=tree.seq + 1, line=2, kind=draft.kind, payload=draft.payload)
    after = decisions(fold([event], tree))["n3"]
    assert tree.nodes["n15"].verdict is not None
    assert before.pending == after.pending == 1
    assert after.value.value.n == before.value.value.n == 2


def test_requests_and_scores_survive_their_journey_to_the_owner(tmp_path: Path) -> None:
    request = ScoreRequest(("n3",), captured=True, verifier=str(tmp_path))
    assert ScoreRequest.from_json(request.to_json()) == request
    score = NodeScore("r1", "n3", 0, True, None, 0.5, 1, None, 0.25)
    assert NodeScore.from_json(score.to_json()) == score


def test_a_relative_verifier_means_the_senders_folder() -> None:
    assert ScoreRequest(verifier="v").to_json()["verifier"] == str(Path.cwd() / "v")


# -- the verifier --------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return load_task(write_task(tmp_path / "colour"))


def test_a_folder_takes_the_place_of_the_tasks_own(task: Task, tmp_path: Path) -> None:
    other = tmp_path / "stricter"
    other.mkdir()
    (other / "test.sh").write_text("true\n")
    changed = with_verifier(task, str(other))
    assert verifier_folder(changed) == other
    assert changed.verifier.script == "stricter/test.sh"
    assert with_verifier(task, "") is task


def test_one_script_takes_the_place_of_the_tasks_own(task: Task, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "check.sh").write_text("true\n")
    changed = with_verifier(task, str(other / "check.sh"))
    assert verifier_folder(changed) == other
    assert changed.verifier.script == "mine/check.sh"


def test_a_verifier_that_is_not_there_is_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no verifier at"):
        with_verifier(task, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no verifier at"):
        with_verifier(task, str(tmp_path))


# -- what changed --------------------------------------------------------------


def moved(before: float | None, after: float | None) -> NodeScore:
    return NodeScore("r1", "n1", 0, True, before, after, 1, None if after is not None else "broke")


def test_changes_are_counted_and_means_are_over_leaves_that_have_both() -> None:
    changes = Changes(
        (moved(0.0, 1.0), moved(1.0, 0.5), moved(0.5, 0.5), moved(None, 1.0), moved(1.0, None))
    )
    kinds = [change_of(item) for item in changes.scores]
    assert kinds == ["up", "down", "same", "new", "failed"]
    assert all(changes.count(kind) == 1 for kind in kinds)
    assert changes.means == pytest.approx((0.5, 2 / 3))


def test_there_is_no_mean_of_nothing() -> None:
    assert Changes((moved(None, 1.0),)).means is None
    assert Changes(()).to_json()["mean_after"] is None


def test_a_save_is_seen_once_it_has_settled_even_one_made_meanwhile(tmp_path: Path) -> None:
    script = tmp_path / "test.sh"
    script.write_text("one")

    async def watch() -> int:
        times = 0
        async with asyncio.timeout(30):
            async for _ in saved_verifiers([tmp_path]):
                times += 1
                if times == 2:
                    return times
                # Saved while the caller still works on the first.
                script.write_text("another")
        return times

    assert asyncio.run(watch()) == 2
