"""A tool that runs beside a question defers the capture, and is named when it will not end."""

from __future__ import annotations

import asyncio

import pytest

from core.contracts.agent import MessageText, ToolUpdate
from core.contracts.values import Outcome, StopReason
from core.kernel import events as ev
from core.kernel.running import RunningTools
from tests.fakes.instant_loop import now, run
from tests.fakes.kernel_agent import FakeSession, Turn, question
from tests.fakes.kernel_rollout import make_case


def opened(call: str, title: str | None = None) -> ToolUpdate:
    return ToolUpdate(call, title=title, status="in_progress")


def ended(call: str, status: str = "completed") -> ToolUpdate:
    return ToolUpdate(call, status=status)


def test_a_call_runs_from_its_announcement_to_its_end() -> None:
    tools = RunningTools()
    tools.feed(MessageText("x"))
    assert tools.busy == ""
    tools.feed(ToolUpdate("a", title="ls", status="pending"))
    tools.feed(opened("b"))
    tools.feed(ToolUpdate("a", title="ls -l"))
    assert tools.busy == "tool calls that still ran: 'a' (ls -l), 'b'"
    tools.feed(ended("a"))
    tools.feed(ended("b", "failed"))
    tools.feed(ToolUpdate("b", title="a late title"))
    assert tools.busy == ""


def test_a_call_that_is_never_ended_is_over_with_its_turn() -> None:
    tools = RunningTools()
    tools.feed(opened("a"))
    tools.turn_ended()
    assert not tools.busy


def test_calls_that_wait_for_the_user_do_not_run() -> None:
    tools = RunningTools()
    for call in ("a", "ask-1", "ask-2"):
        tools.feed(opened(call))
    with tools.asking("ask-1"), tools.asking("ask-2"):
        assert tools.busy == "tool calls that still ran: 'a'"
    assert "ask-1" in tools.busy


def test_a_question_of_no_named_call_is_the_newest_ones() -> None:
    tools = RunningTools()
    for call in ("a", "b"):
        tools.feed(opened(call))
    with tools.asking(None):
        assert tools.busy == "tool calls that still ran: 'a'"
        with tools.asking(None):
            assert not tools.busy
            with tools.asking(None):
                assert not tools.busy


@pytest.mark.parametrize(
    ("ends_at", "waited", "busy"),
    [(1.5, 1.5, ""), (60.0, 2.0, "tool calls that still ran: 'a'")],
)
def test_the_wait_is_as_long_as_the_tool_and_bounded(
    ends_at: float, waited: float, busy: str
) -> None:
    async def body() -> None:
        tools = RunningTools()
        tools.feed(opened("a"))
        asyncio.get_running_loop().call_later(ends_at, tools.feed, ended("a"))
        asyncio.get_running_loop().call_later(0.5, tools.feed, opened("a", None))
        assert await tools.finished(2.0) == busy
        assert now() == pytest.approx(waited)

    run(body())


def beside(seconds: float) -> Turn:
    """A turn that asks while another of its tools runs for so long."""

    async def turn(session: FakeSession, prompt: str) -> StopReason:
        await session.emit(opened("long", "make all"), opened("ask"))
        ended_later = asyncio.create_task(_end_after(session, seconds))
        await session.ask(question(call="ask"))
        await session.emit(ended("ask"))
        await ended_later
        return StopReason.END_TURN

    return turn


async def _end_after(session: FakeSession, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await session.emit(ended("long"))


@pytest.mark.parametrize(
    ("seconds", "consistency", "missing"),
    [
        (1.0, "quiesced", []),
        (30.0, "crash-consistent", ["tool calls that still ran: 'long' (make all)"]),
    ],
)
def test_a_tool_beside_the_question_defers_the_capture(
    seconds: float, consistency: str, missing: list[str]
) -> None:
    async def body() -> None:
        case = make_case(beside(seconds), at_questions=True)
        result = await case.run.run()
        assert result.outcome is Outcome.SCORED
        checkpoint = case.bodies("checkpointed")[0]
        assert isinstance(checkpoint, ev.Checkpointed)
        assert checkpoint.consistency == consistency
        named = checkpoint.record["not_captured"]
        assert isinstance(named, list)
        assert [item for item in named if "session" not in str(item)] == missing
        answered = case.kinds().index("answered")
        assert case.kinds().index("checkpointed") < answered
        assert now() == pytest.approx(max(seconds, 1.0), abs=0.5)

    run(body())
