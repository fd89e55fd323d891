"""Branches of real rollouts: their values, their ends, and who may start them when."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.contracts.errors import BenchFlowError, CheckpointError, Conflict, UsageError
from core.contracts.store import RolloutRecord
from core.kernel.backup import Decision, decisions
from core.kernel.branch import checkpoint_of
from core.kernel.tree import Node, Tree
from core.kernel.world import scratch_world
from core.services import acts
from core.services.branching import BranchRequest
from core.services.config import RolloutConfig
from core.services.jobs import plan, run_job
from core.services.looking import find_stored
from tests.branch.bench import HERE, Bench, bench
from tests.branch.frozen import workspace_of

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(300)]

WAYS = HERE / "ways"
DESK = HERE.parents[1] / "examples" / "support-desk"
ROOT = HERE.parents[1]


def asks(tree: Tree) -> list[Node]:
    return [node for node in tree.nodes.values() if node.kind == "ask"]


def rewards(tree: Tree) -> dict[int, float | None]:
    """Line number to the reward of its leaf."""
    return {
        line.number: leaf.verdict.result.reward if leaf.verdict else None
        for line in tree.lines.values()
        for leaf in [tree.nodes[line.leaf_id]]
    }


def labels(tree: Tree) -> dict[int, str]:
    return {number: str(line.continuation.get("label", "")) for number, line in tree.lines.items()}


def decided(tree: Tree, node: Node) -> Decision:
    return decisions(tree)[node.id]


async def trail(made: Bench, tree: Tree, leaf: Node) -> list[str]:
    """What a line wrote down, from its frozen end."""
    files = await workspace_of(made.provider, checkpoint_of(tree, leaf.id).image)
    return (files["trail"][1] or "").splitlines()


async def branch(made: Bench, record: RolloutRecord, node: str = "", **ways: Any) -> list[int]:
    request = BranchRequest(node, **ways)
    done = await acts.branch(made.engine, record.id, request, actor="ann", via="test")
    lines = done["lines"]
    assert isinstance(lines, list)
    return [int(str(number)) for number in lines]


async def test_children_of_an_ended_rollout_are_scored_and_see_nothing_of_each_other(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as made:
        record, before = await made.run(WAYS, answers=("y",))
        assert rewards(before) == {0: 0.25}
        lines = await branch(made, record, answers=("0.9", "0.1"))
        tree = await made.tree(record)
        assert lines == [1, 2]
        assert rewards(tree) == {0: 0.25, 1: 0.9, 2: 0.1}
        for number, said in ((0, "y"), (1, "0.9"), (2, "0.1")):
            leaf = tree.nodes[tree.lines[number].leaf_id]
            assert await trail(made, tree, leaf) == ["begun", f"way accept {said}"]
        after = await made.tools.store.rollouts.get(record.id)
        assert (after.reward, after.state.value) == (0.25, "scored")


async def test_the_support_desk_forked_at_its_question_is_scored_in_every_child(
    tmp_path: Path,
) -> None:
    """Two children of one question: each acts on the database of its own world."""
    async with bench(tmp_path) as made:
        _, tree = await made.run(DESK, answers=("5518",), branch="asks=all")
        assert rewards(tree) == {0: 1.0, 1: 0.0}
        (asked,) = asks(tree)
        value = decided(tree, asked).value
        assert value.value.mean == 0.5
        assert value.value.n == 2


async def test_nested_branches_are_backed_up_decision_by_decision(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        policy = "asks=all,depth=2,children=2"
        _, tree = await made.run(WAYS, answers=("x", "p"), branch=policy)
        first = next(node for node in asks(tree) if node.ask_index == 0)
        second = next(node for node in asks(tree) if node.ask_index == 1)
        # At the first question the main line took x; its children took y and boom.
        assert sorted(labels(tree).values()) == ["", "boom", "q", "r", "y"]
        below, above = decided(tree, second), decided(tree, first)
        assert below.value.value.mean == pytest.approx((1 + 0 + 0.5) / 3)
        # Pooling the four leaves would give 0.4375.
        assert above.value.value.mean == pytest.approx((0.5 + 0.25) / 2)
        assert above.value.value.n == 4


async def test_a_failed_child_is_excluded_and_counted_never_a_zero(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, _ = await made.run(WAYS, answers=("y",))
        await branch(made, record, answers=("boom", "0.75"))
        tree = await made.tree(record)
        died = tree.lines[1]
        assert (died.outcome, died.error_category) == ("failed", "agent_crashed")
        assert rewards(tree)[1] is None
        value = decided(tree, asks(tree)[0]).value.value
        assert value.excluded >= 1


async def test_declining_and_cancelling_are_ways_on_when_they_are_named(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, _ = await made.run(WAYS, answers=("y",))
        await branch(made, record, answers=("decline", "cancel"))
        tree = await made.tree(record)
        assert rewards(tree) == {0: 0.25, 1: 0.75, 2: 0.0}
        for number, said in ((1, "way decline"), (2, "way cancel")):
            leaf = tree.nodes[tree.lines[number].leaf_id]
            assert [line.strip() for line in await trail(made, tree, leaf)] == ["begun", said]
        # Among all options neither is one.
        plan = await acts.branch(
            made.engine,
            record.id,
            BranchRequest(asks(tree)[0].id, all_options=True),
            actor="ann",
            via="test",
            dry=True,
        )
        assert plan["children"] == ["x", "y", "boom", "slow"]


async def test_a_resampled_question_joins_the_group_of_the_same_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, _ = await made.run(WAYS, answers=("y",))
        assert await branch(made, record, resample=2) == [1, 2]
        tree = await made.tree(record)
        decision = decided(tree, asks(tree)[0])
        (group,) = decision.value.groups
        assert (group.value.n, group.value.mean) == (3, 0.25)
        assert len({line.seed for line in tree.lines.values()}) == 3


async def test_a_nudge_and_a_resample_go_on_from_the_end_of_a_turn(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, tree = await made.run(WAYS, answers=("y",))
        leaf = tree.main_leaf
        assert leaf is not None
        await branch(made, record, leaf.id, nudge="and now")
        tree = await made.tree(record)
        end = tree.nodes[tree.lines[1].leaf_id]
        assert await trail(made, tree, end) == ["begun", "way accept y", "nudged and now"]
        assert tree.lines[1].assisted
        with pytest.raises(UsageError, match="asks nothing"):
            await branch(made, record, leaf.id, answers=("y",))
        with pytest.raises(CheckpointError, match="nothing was captured"):
            await branch(made, record, tree.nodes[leaf.id].path[1].id, resample=1)


async def test_who_stops_where_it_was_forked_leaves_the_fork_as_it_was(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, before = await made.run(WAYS, answers=("y",))
        leaf = before.main_leaf
        assert leaf is not None
        assert leaf.checkpoint is not None
        await branch(made, record, leaf.id, resample=1)
        tree = await made.tree(record)
        assert tree.nodes[leaf.id].state == leaf.state
        decision = decided(tree, tree.nodes[leaf.id])
        assert (decision.value.value.mean, decision.value.value.n) == (0.25, 2)
        await branch(made, record, leaf.id, nudge="and now", main=True)
        await branch(made, record, leaf.id, resample=1, main=True)
        after = await made.tools.store.rollouts.get(record.id)
        assert (after.reward, after.state.value) == (0.25, "scored")


async def test_a_known_key_starts_its_children_once_on_an_ended_rollout(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, _ = await made.run(WAYS, answers=("y",))
        request = BranchRequest("", answers=("0.9",))
        first, again = [
            await acts.branch(
                made.engine, record.id, request, actor="ann", via="test", idem_key="one"
            )
            for _ in range(2)
        ]
        assert first == again
        assert first["lines"] == [1]
        assert sorted((await made.tree(record)).lines) == [0, 1]


async def test_a_fork_has_the_tasks_variables_and_no_folder_holds_their_values(
    tmp_path: Path,
) -> None:
    task = tmp_path / "ways"
    shutil.copytree(WAYS, task)
    text = (
        (task / "task.md")
        .read_text()
        .replace("verifier:", "sandbox:\n  env:\n    KEY: ${HOME}-hush\nverifier:", 1)
    )
    (task / "task.md").write_text(text)
    async with bench(tmp_path) as made:
        record, tree = await made.run(task, answers=("y",))
        await branch(made, record, answers=("0.9",))
        for path in (tmp_path / "jobs").rglob("*"):
            assert not path.is_file() or b"-hush" not in path.read_bytes(), path
        stored = await find_stored(made.engine, f"{record.id}:{asks(tree)[0].id}")
        async with scratch_world(stored.plan, stored.checkpoint.image, _no_problem) as world:
            said = await world.sandbox.exec(["sh", "-c", "echo $KEY"], timeout=10)
        assert said.stdout.decode().strip().endswith("-hush")


async def _no_problem(error: BenchFlowError) -> None:
    raise error


async def test_two_branches_at_once_both_happen(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, _ = await made.run(WAYS, answers=("y",))
        given = [branch(made, record, answers=(text,)) for text in ("0.1", "0.2")]
        started = await asyncio.gather(*given)
        assert sorted(number for lines in started for number in lines) == [1, 2]
        tree = await made.tree(record)
        assert sorted(value or 0 for value in rewards(tree).values()) == [0.1, 0.2, 0.25]


@asynccontextmanager
async def waiting_for_a_person(made: Bench) -> AsyncIterator[tuple[str, asyncio.Task[Any]]]:
    """A live rollout whose question waits in the inbox, captured already."""
    config = RolloutConfig(
        path=str(WAYS),
        jobs_dir=str(made.root / "jobs"),
        agent="bench-agent",
        user="human",
        turn_end_timeout=0,
    )
    job = plan(made.tools, config)
    rollout = job.rollouts[0].id
    running = asyncio.create_task(run_job(made.engine, job))
    try:
        await happens(lambda: captured_question(made, rollout))
        yield rollout, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def happens(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something in the store; fails the test when it never comes."""
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 (several processes, no one event)
            await asyncio.sleep(0.05)


async def captured_question(made: Bench, rollout: str) -> bool:
    if not await made.tools.store.requests.select(rollout=rollout):
        return False
    tree = await made.tree(await made.tools.store.rollouts.get(rollout))
    return any(node.checkpoint for node in asks(tree))


async def asked_on(made: Bench, rollout: str, line: int) -> bool:
    waiting = await made.tools.store.requests.select(rollout=rollout)
    return any(item.line == line for item in waiting)


async def all_execute(made: Bench, record: RolloutRecord, count: int) -> bool:
    lines = (await made.tree(record)).lines.values()
    return sum(line.phase == "execute" for line in lines) == count


async def ended(made: Bench, record: RolloutRecord, line: int) -> bool:
    return (await made.tree(record)).lines[line].outcome is not None


async def bench_command(root: Path, *words: str) -> Any:
    """What the command line prints in a process of its own, on the same store."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchflow_workbench", *words, "--json"),
        cwd=ROOT,
        env={**os.environ, "BENCH_HOME": str(root / "home"), "BENCH_ACTOR": "second"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, (out + said).decode()
    return json.loads(out)


async def test_a_second_process_branches_at_a_question_that_waits_for_a_person(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as made, waiting_for_a_person(made) as (rollout, running):
        words = ("branch", rollout, "--answer", "x", "--answer", "0.6")
        assert (await bench_command(tmp_path, *words))["lines"] == [1, 2]
        # The first child asks again: that is a question of its own in the inbox.
        await happens(lambda: asked_on(made, rollout, 1))
        waiting = await made.tools.store.requests.select(rollout=rollout)
        again = next(item for item in waiting if item.line == 1)
        await bench_command(tmp_path, "answer", again.id, "r")
        main = next(item for item in waiting if item.line == 0)
        await bench_command(tmp_path, "answer", main.id, "y")
        await running
        tree = await made.tree(await made.tools.store.rollouts.get(rollout))
        assert rewards(tree) == {0: 0.25, 1: 0.5, 2: 0.6}
        given = asks(tree)[0].answer
        assert given is not None
        assert (given.actor, given.via) == ("second", "cli")


async def test_cancelling_the_rollout_ends_its_children_too(tmp_path: Path) -> None:
    async with bench(tmp_path) as made, waiting_for_a_person(made) as (rollout, running):
        record = await made.tools.store.rollouts.get(rollout)
        assert await branch(made, record, answers=("slow", "slow")) == [1, 2]
        await happens(lambda: all_execute(made, record, 3))
        await acts.cancel(made.engine, rollout, scope="run", actor="ann", via="test")
        await running
        tree = await made.tree(record)
        assert {line.outcome for line in tree.lines.values()} == {"cancelled"}
        store = tmp_path / "home" / "sandboxes"
        assert list((store / "sandboxes").iterdir()) == []


async def test_a_child_that_runs_outlives_the_end_of_the_main_line(tmp_path: Path) -> None:
    """The main line is answered while its child still waits: the child is not cut off."""
    async with bench(tmp_path) as made, waiting_for_a_person(made) as (rollout, running):
        record = await made.tools.store.rollouts.get(rollout)
        (main,) = await made.tools.store.requests.select(rollout=rollout)
        assert await branch(made, record, answers=("x",)) == [1]
        await acts.answer(made.tools, main.id, "y", actor="ann", via="test")
        await happens(lambda: asked_on(made, rollout, 1))
        await happens(lambda: ended(made, record, 0))
        (child,) = await made.tools.store.requests.select(rollout=rollout)
        await acts.answer(made.tools, child.id, "p", actor="ann", via="test")
        await running
        assert rewards(await made.tree(record)) == {0: 0.25, 1: 1.0}


async def test_an_answer_that_the_question_does_not_take_starts_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        record, tree = await made.run(WAYS, answers=("y",))
        with pytest.raises(UsageError, match="one kind of way on"):
            await branch(made, record)
        with pytest.raises(UsageError, match="would start 9 children"):
            await branch(made, record, answers=tuple(f"0.{n}" for n in range(1, 10)))
        again = await made.tree(record)
        assert (list(again.lines), again.seq) == ([0], tree.seq)


async def test_a_task_that_was_edited_since_is_not_branched(tmp_path: Path) -> None:
    task = tmp_path / "ways"
    shutil.copytree(WAYS, task)
    async with bench(tmp_path) as made:
        record, _ = await made.run(task, answers=("y",))
        with (task / "task.md").open("a") as file:
            file.write("\nOne sentence more.\n")
        with pytest.raises(Conflict, match="changed since"):
            await branch(made, record, answers=("0.9",))
