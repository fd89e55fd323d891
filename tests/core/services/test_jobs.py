"""Jobs: rollouts side by side, none of which takes another down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from core.contracts.errors import (
    ConfigError,
    Conflict,
    SandboxUnavailable,
    TaskError,
    UsageError,
)
from core.contracts.store import RolloutState
from core.contracts.user import Nudge
from core.contracts.values import Outcome, StopReason
from core.kernel import events as ev
from core.services import acts, reaping
from core.services.assemble import load_tree
from core.services.jobs import Planned, RolloutReport, rerun, run_job
from tests.core.services.helpers import bench
from tests.e2e.packages import write_task
from tests.fakes.kernel_agent import FakeSession, endless, helpful
from tests.fakes.kernel_points import Points


async def broken(session: FakeSession, prompt: str) -> StopReason:
    raise RuntimeError("a fault of ours")


async def test_a_job_runs_every_repeat_with_a_seed_of_its_own(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        job = it.plan(repeats=3, concurrency=2, seed=5)
        seen: list[Planned] = []
        told: list[RolloutReport] = []
        report = await run_job(it.host, job, started=seen.append, ended=told.append)
        assert [item.config.seed for item in job.rollouts] == [5, 6, 7]
        assert {item.id for item in seen} == {item.id for item in told}
        assert report.mean_reward == 1.0
        assert [item.id for item in report.rollouts] == [item.id for item in job.rollouts]
        summary = json.loads((job.folder / "summary.json").read_text())
        assert (summary["total"], summary["passed"]) == (3, 3)


async def test_a_folder_that_takes_no_results_is_found_out_before_anything_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    async with bench(tmp_path) as it:
        job = it.plan(jobs_dir=str(tmp_path / "file" / "jobs"))
        with pytest.raises(ConfigError, match="cannot be written"):
            await run_job(it.host, job)
        assert it.points.seen == ["sandbox.require"]
        assert await it.tools.store.rollouts.select() == []


async def test_no_more_run_at_once_than_were_asked_for(tmp_path: Path) -> None:
    points = Points(hold=["prompt"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan(repeats=4, concurrency=2)
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("prompt", times=2)
        records = await it.tools.store.rollouts.select(states=[RolloutState.QUEUED])
        assert len(records) == 2
        points.release("prompt")
        assert len((await running).scored) == 4


async def test_a_fault_of_ours_in_one_rollout_is_raised_after_its_siblings_ended(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, [broken], [helpful]) as it:
        job = it.plan(repeats=2, concurrency=2)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await run_job(it.host, job)
        records = await it.tools.store.rollouts.select(job=job.id)
        assert {record.state for record in records} == {RolloutState.FAILED, RolloutState.SCORED}


async def test_a_rollout_that_is_fenced_off_does_not_stop_its_siblings(tmp_path: Path) -> None:
    points = Points(hold=["prompt"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan(repeats=2, concurrency=2)
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("prompt", times=2)
        lost, kept = job.rollouts
        own = await it.tools.store.rollouts.claim(it.host.id, lost.id, new_attempt=True)
        points.release("prompt")
        report = await running
        outcomes = {item.id: item.result for item in report.rollouts}
        assert outcomes[kept.id].outcome is Outcome.SCORED
        assert outcomes[lost.id].error_category == "fenced"
        await it.tools.store.rollouts.release(own)


async def test_a_queued_rollout_is_cancelled_before_its_turn(tmp_path: Path) -> None:
    points = Points(hold=["prompt"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan(repeats=2)
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("prompt")
        (queued,) = await it.tools.store.rollouts.select(states=[RolloutState.QUEUED])
        with pytest.raises(Conflict, match="waits for its slot"):
            await acts.nudge(it.host, queued.id, "Hello?", actor="ann", via="test")
        await acts.cancel(it.host, queued.id, scope="run", actor="ann", via="test")
        record = await reaping.final_record(it.tools, queued.id)
        assert record.state is RolloutState.CANCELLED
        assert record.sealed is not None
        assert points.seen.count("prompt") == 1
        points.release("prompt")
        report = await running
        assert sorted(item.result.outcome.value for item in report.rollouts) == [
            "cancelled",
            "scored",
        ]
        assert await it.tools.fsck() == []


async def test_an_interrupt_leaves_queued_and_running_rollouts_that_run_again(
    tmp_path: Path,
) -> None:
    points = Points(hold=["prompt"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan(repeats=2)
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("prompt")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        records = await it.tools.store.rollouts.select(job=job.id)
        assert [record.state for record in records] == [RolloutState.INTERRUPTED] * 2
        assert [record.owner for record in records] == [None, None]
        points.release("prompt")
        for record in records:
            assert (await rerun(it.host, record, "again")).outcome is Outcome.SCORED


async def test_a_machine_that_cannot_is_told_before_anything_is_created(tmp_path: Path) -> None:
    points = Points(fail={"sandbox.require": SandboxUnavailable("no overlay here")})
    async with bench(tmp_path, points=points) as it:
        with pytest.raises(SandboxUnavailable):
            await run_job(it.host, it.plan())
        assert await it.tools.store.rollouts.select() == []
        assert await it.tools.store.jobs.select() == []


async def test_what_cannot_be_planned_is_refused_with_every_fault(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        with pytest.raises(UsageError, match="is no folder"):
            it.plan(path=str(tmp_path / "nowhere"))
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"holds no task\.md"):
            it.plan(path=str(tmp_path / "empty"))
        for name in ("a", "b"):
            write_task(tmp_path / "bad" / name, front="colour: red\n")
        with pytest.raises(TaskError) as raised:
            it.plan(path=str(tmp_path / "bad"))
        assert len({fault.file for fault in raised.value.faults}) == 2


async def test_a_task_that_asks_for_what_is_not_given_does_not_start(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        task = write_task(tmp_path / "needs", front="sandbox:\n  setup_commands: [make]\n")
        with pytest.raises(ConfigError, match=r"sandbox\.setup_commands"):
            await run_job(it.host, it.plan(path=str(task)))
        assert await it.tools.store.rollouts.select() == []


@pytest.mark.parametrize(
    ("front", "agent", "refused"),
    [
        ("verifier:\n  env:\n    KEY: ${BENCH_TEST_UNSET}\n", "fake", True),
        ("verifier:\n  env:\n    KEY: ${BENCH_TEST_UNSET:-x}\n", "fake", False),
        ("sandbox:\n  env:\n    KEY: ${BENCH_TEST_UNSET}\n", "fake", True),
        ("oracle:\n  env:\n    KEY: ${BENCH_TEST_UNSET}\n", "oracle", True),
        ("oracle:\n  env:\n    KEY: ${BENCH_TEST_UNSET}\n", "fake", False),
    ],
    ids=["verifier", "default", "sandbox", "oracle that runs", "oracle that does not"],
)
async def test_a_variable_that_is_needed_and_not_set_is_named(
    tmp_path: Path, front: str, agent: str, refused: bool
) -> None:
    async with bench(tmp_path) as it:
        job = it.plan(path=str(write_task(tmp_path / "needs", front=front)), agent=agent)
        if refused:
            with pytest.raises(ConfigError, match="BENCH_TEST_UNSET"):
                await run_job(it.host, job)
        else:
            assert (await run_job(it.host, job)).mean_reward == 1.0


async def test_only_what_has_no_reward_is_run_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        report = await run_job(it.host, it.plan())
        record = await it.tools.store.rollouts.get(report.rollouts[0].id)
        with pytest.raises(Conflict, match="nothing to resume"):
            await rerun(it.host, record, "again")


async def test_a_nudge_that_a_dead_owner_had_accepted_is_given_by_the_next(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        given = ev.Prompted("Given already.", "nudge", "ann", "test", turn=2, nudge="c1")
        rollout = await it.orphan(
            ev.NudgeAccepted("c1", "Given already.", "ann", "test"),
            given,
            ev.NudgeAccepted("c2", "Owed.", "bob", "test"),
        )
        assert (await load_tree(it.tools, rollout)).nudges == {
            "c2": Nudge("Owed.", "bob", "test", id="c2")
        }
        record = await it.tools.store.rollouts.get(rollout)
        result = await rerun(it.host, record, "again")
        assert result.outcome is Outcome.SCORED
        tree = await load_tree(it.tools, rollout)
        assert [node.text for node in tree.nodes.values() if node.actor in ("ann", "bob")] == [
            "Given already.",
            "Owed.",
        ]
        assert tree.nudges == {}


async def test_a_plan_names_folders_after_the_task(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        first, second = it.plan(repeats=2).rollouts
        assert first.name.startswith("task__")
        assert first.folder.name == first.name
        assert first.name != second.name


async def test_an_endless_rollout_is_cancelled_by_its_owner(tmp_path: Path) -> None:
    async with bench(tmp_path, [endless]) as it:
        job = it.plan()
        running = asyncio.create_task(run_job(it.host, job))
        await it.points.reached("prompt")
        await acts.cancel(it.host, job.rollouts[0].id, scope="run", actor="ann", via="test")
        (report,) = (await running).rollouts
        assert report.result.outcome is Outcome.CANCELLED
        tree = await load_tree(it.tools, report.id)
        assert tree.stop == "ann"


async def test_an_interrupt_while_tearing_down_keeps_the_reward(tmp_path: Path) -> None:
    points = Points(hold=["sandbox.teardown"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan()
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("sandbox.teardown")
        running.cancel()
        await asyncio.sleep(0)
        points.release("sandbox.teardown")
        with pytest.raises(asyncio.CancelledError):
            await running
        record = await it.tools.store.rollouts.get(job.rollouts[0].id)
        assert (record.state, record.reward) == (RolloutState.SCORED, 1.0)
        assert await it.tools.fsck() == []
