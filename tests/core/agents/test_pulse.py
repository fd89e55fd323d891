"""The silence of a turn: what counts as life, and what is never held against the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.agents.acp.pulse import Pulse
from core.contracts.agent import MessageText, OtherUpdate, SessionUpdate, ToolUpdate, UsageUpdate
from core.contracts.errors import AgentTimeout, CheckpointError
from tests.fakes.instant_loop import now, run

Play = Callable[[Pulse], Awaitable[None]]


def lost_after(
    play: Play, *, first: float = 300, idle: float | None = 600, own_acts: bool = False
) -> float:
    """The second at which a turn that does this is given up; 100,000 when it never is."""
    ended: list[float] = []

    async def body() -> None:
        pulse = Pulse(first, idle, own_acts=own_acts)
        playing = asyncio.ensure_future(play(pulse))
        try:
            async with asyncio.timeout(100_000):
                await pulse.lost()
        except TimeoutError:
            pass
        ended.append(round(now(), 3))
        await playing

    run(body())
    return ended[0]


def after(seconds: float, update: SessionUpdate) -> Play:
    async def play(pulse: Pulse) -> None:
        await asyncio.sleep(seconds)
        pulse.heard(update)

    return play


async def nothing(pulse: Pulse) -> None:
    return


TEXT = MessageText("x")
RUNNING = ToolUpdate("t", status="in_progress")
DONE = ToolUpdate("t", status="completed")


def test_the_first_sign_and_the_next_have_limits_of_their_own() -> None:
    assert lost_after(nothing) == 300
    assert lost_after(after(100, TEXT)) == 700
    assert lost_after(after(100, TEXT), first=5000, idle=10) == 110


def test_every_update_is_a_sign_of_life() -> None:
    async def play(pulse: Pulse) -> None:
        for update in (TEXT, UsageUpdate(used=1), OtherUpdate("plan", {}), TEXT):
            await asyncio.sleep(250)
            pulse.heard(update)

    assert lost_after(play) == 1600


def test_without_an_idle_limit_only_the_first_sign_is_waited_for() -> None:
    assert lost_after(nothing, idle=None) == 300
    assert lost_after(after(1, TEXT), idle=None) == 100_000


def test_a_tool_may_run_for_hours() -> None:
    async def play(pulse: Pulse) -> None:
        pulse.heard(RUNNING)
        await asyncio.sleep(50_000)
        pulse.heard(DONE)

    assert lost_after(play) == 50_600


def test_one_of_two_tools_that_runs_is_enough() -> None:
    async def play(pulse: Pulse) -> None:
        pulse.heard(RUNNING)
        pulse.heard(ToolUpdate("other", status="pending"))
        await asyncio.sleep(1000)
        pulse.heard(DONE)
        await asyncio.sleep(1000)
        pulse.heard(ToolUpdate("other", status="failed"))

    assert lost_after(play) == 2600


@pytest.mark.parametrize("update", [DONE, ToolUpdate("t", title="only a title")])
def test_a_tool_that_does_not_run_holds_nothing(update: ToolUpdate) -> None:
    assert lost_after(after(0, update)) == 600


def test_a_person_may_think_for_hours() -> None:
    async def play(pulse: Pulse) -> None:
        await asyncio.sleep(200)
        with pulse.asked():
            await asyncio.sleep(40_000)
            with pulse.asked():
                await asyncio.sleep(5_000)
            await asyncio.sleep(5_000)

    assert lost_after(play) == 50_800


def test_a_wait_that_is_cancelled_holds_no_longer() -> None:
    async def play(pulse: Pulse) -> None:
        with pulse.asked():
            await asyncio.sleep(1000)
            raise asyncio.CancelledError

    async def body() -> None:
        pulse = Pulse(300, 600)
        asked = asyncio.ensure_future(play(pulse))
        await pulse.lost()
        assert now() == pytest.approx(1600)
        assert asked.cancelled()

    run(body())


@pytest.mark.parametrize(("before", "given_up"), [(nothing, 5300), (after(0, TEXT), 5600)])
def test_a_line_that_is_paused_is_not_silent_and_no_sign_of_life(
    before: Play, given_up: float
) -> None:
    async def play(pulse: Pulse) -> None:
        await before(pulse)
        with pulse.held():
            await asyncio.sleep(5000)

    assert lost_after(play) == given_up


@pytest.mark.parametrize("update", [OtherUpdate("user_message_chunk", {}), UsageUpdate(used=1)])
def test_in_a_fork_only_an_act_of_the_agent_is_a_first_sign(update: SessionUpdate) -> None:
    assert lost_after(after(100, update), own_acts=True) == 300
    assert lost_after(after(100, TEXT), own_acts=True) == 700


def test_its_error_says_which_silence_it_was() -> None:
    async def body() -> None:
        usual, fork = Pulse(300, 600), Pulse(180, 600, own_acts=True)
        assert isinstance(usual.error("a", ""), AgentTimeout)
        assert isinstance(fork.error("a", ""), CheckpointError)
        assert "180 s" in str(fork.error("a", ""))
        for pulse in (usual, fork):
            pulse.heard(TEXT)
            error = pulse.error("a", "last words")
            assert isinstance(error, AgentTimeout)
            assert "did nothing for 600 s" in str(error)
            assert "last words" in str(error)

    run(body())
