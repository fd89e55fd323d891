"""What the owner of a live rollout does with commands, the odd ones too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.contracts.errors import BenchFlowError, Conflict
from core.contracts.sandbox import SandboxImage, SandboxSpec
from core.contracts.store import RolloutState
from core.contracts.values import JsonObject, Outcome, StopReason
from core.kernel import events as ev
from core.kernel.checkpoint import Checkpoint
from core.kernel.spec import checkpointed
from core.services import acts, mainline, reaping, rescoring
from core.services.assemble import load_tree
from core.services.branching import BranchRequest
from core.services.jobs import rerun, run_job
from core.services.scoring import ScoreRequest
from tests.core.services.helpers import bench
from tests.fakes.kernel_agent import FakeSession, asking, endless
from tests.fakes.kernel_points import Points

WHO = {"actor": "ann", "via": "test"}


async def test_an_unforeseen_error_of_one_command_does_not_silence_the_owner(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, [endless]) as it:
        job = it.plan()
        running = asyncio.create_task(run_job(it.host, job))
        await it.points.reached("prompt")
        rollout = job.rollouts[0].id
        request = ScoreRequest(captured=True, verifier="/" + "a" * 5000)
        record = await it.tools.store.rollouts.get(rollout)
        async with asyncio.timeout(20):
            with pytest.raises(Conflict, match="File name too long"):
                await acts.act(it.host, record, "score", request.to_json(), actor="ann")
            await acts.cancel(it.host, rollout, scope="run", **WHO)
            await running


async def test_a_branch_that_comes_while_the_rollout_is_torn_down_is_refused(
    tmp_path: Path,
) -> None:
    points = Points(hold=["sandbox.teardown"])
    async with bench(tmp_path, points=points) as it:
        # The root is captured, and no child starts by itself.
        job = it.plan(branch="root=2,budget=1")
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("sandbox.teardown")
        rollout = job.rollouts[0].id
        root = (await load_tree(it.tools, rollout)).root_id
        request = BranchRequest(root, resample=1)
        with pytest.raises(Conflict, match="ending"):
            await acts.branch(it.host, rollout, request, actor="ann", via="cli")
        points.release("sandbox.teardown")
        await running
        assert list((await load_tree(it.tools, rollout)).lines) == [0]


async def test_lines_of_a_dead_owner_have_ended_once_the_rollout_runs_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan(ev.Prompted("x", "task"), ev.Asked(0, {"question": "?"}))
        record = await it.tools.store.rollouts.get(rollout)
        await rerun(it.host, record, "again")
        tree = await load_tree(it.tools, rollout)
        assert [line.outcome for line in tree.lines.values()] == ["interrupted", "scored"]
        assert not any(node.open for node in tree.nodes.values())


async def test_a_cancel_lets_a_paused_rollout_go_and_says_so(tmp_path: Path) -> None:
    points = Points(hold=["connect"])
    async with bench(tmp_path, points=points) as it:
        job = it.plan()
        running = asyncio.create_task(run_job(it.host, job))
        await points.reached("connect")
        rollout = job.rollouts[0].id
        await mainline.pause(it.host, rollout, **WHO)
        assert (await load_tree(it.tools, rollout)).paused
        await acts.cancel(it.host, rollout, scope="run", **WHO)
        await running
        assert not (await load_tree(it.tools, rollout)).paused
        assert (await it.tools.store.rollouts.get(rollout)).phase != "paused"


def stored(node: str) -> ev.Checkpointed:
    image = SandboxImage("i1", "fake", None, "fake", (), 0, 0.0, frozenset(), SandboxSpec("s"))
    return checkpointed(Checkpoint("i1", node, 1, "quiesced", image, None, None, (), 0.0, 0.0))


async def test_a_score_of_what_was_cut_short_is_kept_and_makes_no_result_of_it(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan(ev.Asked(0, {"question": "?"}), stored("n3"))
        await reaping.reap(it.host)
        (score,) = await rescoring.score(it.host, rollout, ScoreRequest(), **WHO)
        assert (score.node, score.after) == ("n3", 1.0)
        record = await it.tools.store.rollouts.get(rollout)
        assert (record.state, record.reward) == (RolloutState.INTERRUPTED, None)
        assert (await rerun(it.host, record, "again")).outcome is Outcome.SCORED


async def test_what_the_owner_refuses_is_told_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path, [endless]) as it:
        job = it.plan()
        running = asyncio.create_task(run_job(it.host, job))
        await it.points.reached("prompt")
        rollout = job.rollouts[0].id
        asked = asyncio.create_task(
            rescoring.score(it.host, rollout, ScoreRequest(("n99",)), **WHO)
        )
        done, _ = await asyncio.wait({asked}, timeout=5)
        assert done, "it waits for the end of a rollout that is endless"
        with pytest.raises(BenchFlowError, match="no node 'n99'"):
            await asked
        await acts.cancel(it.host, rollout, scope="run", **WHO)
        await running


async def test_a_score_of_a_waiting_question_is_not_how_its_dead_owners_run_ended(
    tmp_path: Path,
) -> None:
    early = ev.Scored("n3", 1.0, {}, [], "output", "terminal", [0.0, 1.0], "v", hardened=True)
    async with bench(tmp_path) as it:
        rollout = await it.orphan(ev.Asked(0, {"question": "?"}), early)
        await reaping.reap(it.host)
        record = await it.tools.store.rollouts.get(rollout)
        assert (record.state, record.reward) == (RolloutState.INTERRUPTED, None)


async def test_each_permission_is_asked_even_if_it_is_the_same_again_at_once(
    tmp_path: Path,
) -> None:
    async def twice(session: FakeSession, prompt: str) -> StopReason:
        await session.permit("Delete it all?")
        await session.permit("Delete it all?")
        return StopReason.END_TURN

    async with bench(tmp_path, [twice]) as it:
        job = it.plan(permissions="ask")
        running = asyncio.create_task(run_job(it.host, job))
        rollout = job.rollouts[0].id
        requests = it.tools.store.requests
        yes: JsonObject = {"action": "accept", "content": {"option": "yes"}}
        asked: set[str] = set()
        async with asyncio.timeout(20):
            revision = 0
            while not running.done() and len(asked) < 2:
                revision = await it.tools.store.changed(revision, timeout=0.5)
                for item in await requests.select(rollout=rollout):
                    asked.add(item.id)
                    await requests.answer(item.id, yes, actor="ann", via="t", idem_key=item.id)
            await running
        assert len(asked) == 2
        settled = (await load_tree(it.tools, rollout)).permissions
        assert [item.chosen for item in settled] == ["yes", "yes"]


async def test_a_policy_starts_nothing_at_a_question_whose_session_was_not_captured(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, [asking]) as it:
        job = it.plan(user="auto", branch="asks=all")
        await run_job(it.host, job)
        tree = await load_tree(it.tools, job.rollouts[0].id)
        asked = [node for node in tree.nodes.values() if node.kind == "ask"]
        assert [node.state is not None for node in asked] == [True]
        assert list(tree.lines) == [0]
