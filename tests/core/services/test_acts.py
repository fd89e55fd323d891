"""Acts of people: acknowledged once, carried out once, refused in words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.contracts.errors import Conflict, NotFound, UsageError
from core.contracts.store import RolloutState
from core.contracts.values import StopReason
from core.kernel import events as ev
from core.services import acts, reaping
from core.services.assemble import load_tree
from core.services.jobs import run_job
from tests.core.services.helpers import Bench, bench
from tests.fakes.kernel_agent import FakeSession, endless, helpful

WHO = {"actor": "ann", "via": "test"}


async def slow(session: FakeSession, prompt: str) -> StopReason:
    await session.say("Working.")
    await session._points.reach("working")
    return StopReason.END_TURN


async def start(it: Bench, point: str = "prompt") -> tuple[str, asyncio.Task[object]]:
    job = it.plan()
    running: asyncio.Task[object] = asyncio.create_task(run_job(it.host, job))
    await it.points.reached(point)
    return job.rollouts[0].id, running


async def test_a_nudge_is_in_the_log_when_it_is_acknowledged_and_prompts_once(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, [endless, helpful]) as it:
        rollout, running = await start(it)
        for _ in range(2):
            queued = await acts.nudge(it.host, rollout, "Be quick.", **WHO, idem_key="n1")
            assert queued == {"queued": True}
        tree = await load_tree(it.tools, rollout)
        assert [nudge.text for nudge in tree.nudges.values()] == ["Be quick."]
        await acts.cancel(it.host, rollout, scope="turn", **WHO)
        await running
        tree = await load_tree(it.tools, rollout)
        assert tree.nudges == {}
        assert [node.text for node in tree.nodes.values() if node.origin == "nudge"] == [
            "Be quick."
        ]
        assert tree.main_line is not None
        assert tree.main_line.assisted


async def test_a_known_key_gives_its_result_after_the_end_and_a_new_act_is_refused(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, [endless]) as it:
        rollout, running = await start(it)
        await acts.cancel(it.host, rollout, scope="run", **WHO, idem_key="c1")
        await running
        again = await acts.cancel(it.host, rollout, scope="run", **WHO, idem_key="c1")
        assert again == {"cancelled": "run"}
        with pytest.raises(Conflict, match="has ended"):
            await acts.cancel(it.host, rollout, scope="run", **WHO, idem_key="c2")
        assert await it.tools.store.commands.find("c2") is None


async def test_a_nudge_without_words_or_before_there_is_an_agent_is_refused(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        with pytest.raises(NotFound):
            await acts.nudge(it.host, "nobody", "Hello", **WHO)
        with pytest.raises(UsageError, match="needs words"):
            await acts.nudge(it.host, "nobody", "  ", **WHO)


async def test_whoever_cancels_an_orphan_ends_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan()
        assert await acts.cancel(it.host, rollout, scope="run", **WHO) == {"cancelled": "run"}
        record = await it.tools.store.rollouts.get(rollout)
        assert (record.state, record.owner) == (RolloutState.CANCELLED, None)
        assert record.sealed is not None
        assert await it.tools.fsck() == []


async def test_a_nudge_to_an_orphan_is_refused_and_the_orphan_interrupted(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan()
        with pytest.raises(Conflict, match="had died"):
            await acts.nudge(it.host, rollout, "Hello", **WHO)
        record = await it.tools.store.rollouts.get(rollout)
        assert record.state is RolloutState.INTERRUPTED


async def test_an_orphan_that_was_cancelled_by_its_log_is_reaped_as_cancelled(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan(ev.CancelRequested("run", "ann", "test"))
        (line,) = [text for text in await reaping.reap(it.host) if rollout in text]
        assert line.endswith("now cancelled")


async def test_an_orphan_whose_turn_was_cancelled_is_reaped_as_interrupted(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan(ev.CancelRequested("turn", "ann", "test"))
        await reaping.reap(it.host)
        record = await it.tools.store.rollouts.get(rollout)
        assert record.state is RolloutState.INTERRUPTED


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_an_orphan_that_had_ended_keeps_its_end(tmp_path: Path, outcome: str) -> None:
    async with bench(tmp_path) as it:
        why = "it broke" if outcome == "failed" else None
        rollout = await it.orphan(
            ev.LineEnded(outcome, why, "agent"), ev.RolloutEnded(outcome, why, "agent")
        )
        await reaping.reap(it.host)
        record = await it.tools.store.rollouts.get(rollout)
        assert (record.state.value, record.error) == (outcome, why)
        assert len(await it.tools.store.log.read(rollout)) == 4


async def test_an_orphan_with_a_verdict_is_scored(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        prompted = ev.Prompted("Do it.", "task")
        verdict = ev.Scored("n3", 0.5, {}, [], "output", "terminal", [0.0, 1.0], "d", True)
        rollout = await it.orphan(prompted, ev.PhaseStarted("verify"), verdict)
        await reaping.reap(it.host)
        record = await it.tools.store.rollouts.get(rollout)
        assert (record.state, record.reward) == (RolloutState.SCORED, 0.5)


async def test_an_orphan_that_never_began_gets_a_log_of_its_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        rollout = await it.orphan(root=False)
        await acts.cancel(it.host, rollout, scope="run", **WHO)
        events = await it.tools.store.log.read(rollout)
        assert [event.kind for event in events] == [
            "rollout_started",
            "cancel_requested",
            "owner_changed",
            "rollout_ended",
        ]
        assert await it.tools.fsck() == []


async def test_a_command_that_was_taken_and_cut_short_is_found_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        commands = it.tools.store.commands
        rollout = await it.orphan()
        own = await it.tools.store.rollouts.claim(it.host.id, rollout)
        sent = await commands.send(rollout, "nudge", {}, actor="ann", idem_key="k")
        assert (await commands.take(own)) is not None
        assert await commands.take(own) is None
        found = await anext(commands.pending(own))
        assert found.id == sent.id
        await it.host.refuse_late(own, "the rollout had ended")
        refused = await commands.wait(sent.id)
        assert refused.error is not None
        assert refused.error["what"] == "the rollout had ended"


async def test_the_reaper_says_what_it_did_and_leaves_the_living_alone(tmp_path: Path) -> None:
    async with bench(tmp_path, [endless]) as it:
        rollout, running = await start(it)
        orphan = await it.orphan()
        lines = await reaping.reap(it.host)
        assert [line for line in lines if orphan in line]
        assert not [line for line in lines if rollout in line]
        await acts.cancel(it.host, rollout, scope="run", **WHO)
        await running
