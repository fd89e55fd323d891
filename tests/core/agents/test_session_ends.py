"""Every turn ends: by cancel, by death, by deadline, and nothing of the agent stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from core.agents.acp.turn import Deadlines
from core.contracts.agent import Answer, AskUser, Role
from core.contracts.errors import (
    AgentCrashed,
    AgentError,
    AgentProtocolError,
    AgentTimeout,
    CheckpointError,
    StoreFull,
    UsageError,
)
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import StopReason
from tests.core.agents.helpers import Asked, rogue, talking_to
from tests.fakes.host_sandbox import HostSandbox, group_lives

PATIENT = Deadlines(cancel=30.0)


async def both_open(turn: asyncio.Task[StopReason], asked: Asked) -> None:
    """Wait until the question and the permission are both open."""
    async with asyncio.timeout(10):
        await asked.questions.get()
        await asked.permissions.get()
    assert not turn.done()


async def test_cancel_settles_what_is_open_before_the_agent_is_told(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "open_asks_then_cancel", deadlines=PATIENT) as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        seen.session.on_permission(asked.on_permission)
        turn = asyncio.create_task(seen.session.prompt("go"))
        await both_open(turn, asked)
        await seen.session.cancel()
        assert await turn is StopReason.CANCELLED
        await seen.session.settle()
        *answers, last = json.loads(seen.texts[0])
        assert sorted(map(str, answers)) == sorted(
            ['{"action": "cancel"}', '{"outcome": {"outcome": "cancelled"}}']
        )
        assert last == "session/cancel"
        assert asked.cancelled == 2


@pytest.mark.parametrize("mode", ["cancel_says_end_turn", "cancel_says_error"])
async def test_a_cancelled_turn_is_cancelled_whatever_the_agent_calls_it(
    tmp_path: Path, mode: str
) -> None:
    async with talking_to(tmp_path, mode, deadlines=PATIENT) as seen:
        turn = asyncio.create_task(seen.session.prompt("go"))
        await seen.spoken()
        await seen.session.cancel()
        assert await turn is StopReason.CANCELLED


async def test_an_agent_that_ignores_cancel_is_killed(tmp_path: Path) -> None:
    hurry = Deadlines(cancel=0.2, close=0.1)
    async with talking_to(tmp_path, "ignores_cancel", deadlines=hurry) as seen:
        turn = asyncio.create_task(seen.session.prompt("go"))
        await seen.spoken()
        await seen.session.cancel()
        assert await turn is StopReason.CANCELLED
        assert not group_lives(seen.sandbox.processes[0].pid)
        with pytest.raises(AgentCrashed):
            await seen.session.prompt("again")


async def test_stop_reasons_of_other_turns_are_ignored(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "second_stop_reason", deadlines=PATIENT) as seen:
        turn = asyncio.create_task(seen.session.prompt("first"))
        await seen.spoken()
        await seen.session.cancel()
        assert await turn is StopReason.CANCELLED
        assert await seen.session.prompt("second") is StopReason.MAX_TOKENS


async def test_a_prompt_that_is_itself_cancelled_tells_the_agent(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "open_asks_then_cancel", deadlines=PATIENT) as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        seen.session.on_permission(asked.on_permission)
        turn = asyncio.create_task(seen.session.prompt("go"))
        await both_open(turn, asked)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await seen.spoken()
        assert json.loads(seen.texts[0])[-1] == "session/cancel"


async def test_cancel_without_a_turn_does_nothing(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "plain") as seen:
        await seen.session.cancel()
        assert await seen.session.prompt("hello") is StopReason.END_TURN


async def test_two_turns_at_once_are_refused(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "ignores_cancel", deadlines=Deadlines(cancel=0.1)) as seen:
        turn = asyncio.create_task(seen.session.prompt("go"))
        await seen.spoken()
        with pytest.raises(UsageError, match="still running"):
            await seen.session.prompt("and this")
        await seen.session.cancel()
        await turn


async def test_death_in_a_turn_names_exit_code_and_last_words(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "dies") as seen:
        with pytest.raises(AgentCrashed, match=r"exit code 137.*out of memory"):
            await seen.session.prompt("go")
        await seen.session.settle()
        assert seen.texts == ["about to die"]
        assert (await seen.session.close()).code == 137


async def test_death_settles_every_open_question(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "open_asks_then_cancel") as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        seen.session.on_permission(asked.on_permission)
        turn = asyncio.create_task(seen.session.prompt("go"))
        await both_open(turn, asked)
        os.kill(seen.sandbox.processes[0].pid, signal.SIGKILL)
        with pytest.raises(AgentCrashed, match="exit code -9"):
            await turn
        assert asked.cancelled == 2


async def test_an_agent_that_closed_its_stdin_is_noticed_at_the_next_prompt(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "closes_stdin", deadlines=Deadlines(close=0.1)) as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        with pytest.raises(AgentProtocolError, match="no longer reads its stdin"):
            await seen.session.prompt("again")


async def test_a_turn_without_any_sign_of_life_times_out(tmp_path: Path) -> None:
    hurry = Deadlines(first_update=0.2)
    async with talking_to(tmp_path, "silent", deadlines=hurry) as seen:
        with pytest.raises(AgentTimeout, match="no sign of life"):
            await seen.session.prompt("go")


async def test_a_turn_that_goes_silent_half_way_times_out(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "ignores_cancel", deadlines=Deadlines(idle=0.3)) as seen:
        with pytest.raises(AgentTimeout, match=r"did nothing for 0\.3 s, with no tool call"):
            await seen.session.prompt("go")
        await seen.session.settle()
        assert len(seen.texts) == 1


async def test_a_person_who_thinks_does_not_run_into_the_deadlines_of_silence(
    tmp_path: Path,
) -> None:
    strict = Deadlines(first_update=1.0, idle=1.0)
    async with talking_to(tmp_path, "asks", deadlines=strict) as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        turn = asyncio.create_task(seen.session.prompt("Which?"))
        await asked.questions.get()
        await asyncio.sleep(1.2)
        asked.answer.set_result(Answer("accept", {"q": "b"}))
        assert await turn is StopReason.END_TURN
        await seen.session.settle()
        assert json.loads(seen.texts[0]) == {"action": "accept", "content": {"q": "b"}}


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("mute_initialize", AgentTimeout, "did not answer initialize within 0.3 s"),
        ("mute_new", AgentTimeout, "did not answer session/new within 0.3 s"),
        ("version_two", AgentProtocolError, "protocol version 2, not 1"),
        ("bad_initialize", AgentProtocolError, "protocol version None, not 1"),
        ("no_session_id", AgentProtocolError, "without a session id"),
        ("refuses_session", AgentProtocolError, "Authentication required"),
        ("banner", AgentCrashed, "exit code 0.*kimi has retired"),
        ("dies_at_start", AgentCrashed, "exit code 1.*unknown approval_policy"),
    ],
)
async def test_a_failed_start_says_why_and_leaves_no_process(
    tmp_path: Path, mode: str, error: type[AgentError], words: str
) -> None:
    deadlines = Deadlines(
        initialize=0.3 if mode == "mute_initialize" else 20.0,
        new_session=0.3 if mode == "mute_new" else 20.0,
        close=0.1,
    )
    sandbox = HostSandbox(tmp_path, SandboxSpec("start"))
    with pytest.raises(error, match=words):
        await rogue(mode, deadlines=deadlines).connect(sandbox, Role())
    assert not group_lives(sandbox.processes[0].pid)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("refuses", "auth required: log in"), ("no_stop_reason", "without a stop reason")],
)
async def test_a_prompt_that_the_agent_cannot_serve_is_a_protocol_error(
    tmp_path: Path, mode: str, words: str
) -> None:
    async with talking_to(tmp_path, mode) as seen:
        with pytest.raises(AgentProtocolError, match=words):
            await seen.session.prompt("go")


async def test_an_unknown_stop_reason_ends_the_turn_and_is_shown(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "strange_stop_reason") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.noise[0].sample == "unknown stop reason 'coffee_break'"


async def test_an_error_of_our_own_answerer_ends_the_turn_with_that_error(tmp_path: Path) -> None:
    async def full(ask: AskUser) -> Answer:
        raise StoreFull("no space left")

    async with talking_to(tmp_path, "asks") as seen:
        seen.session.on_ask_user(full)
        with pytest.raises(StoreFull):
            await seen.session.prompt("go")


@pytest.mark.parametrize("when", ["at once", "late"])
async def test_a_question_the_agent_withdraws_is_settled(tmp_path: Path, when: str) -> None:
    async with talking_to(tmp_path, "withdraws_ask") as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        assert await seen.session.prompt(when) is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["[-32800, -32800]"]
        assert asked.cancelled == asked.questions.qsize()


async def test_permissions_are_questions_only_for_agents_that_ask_so(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "open_asks_then_cancel", asks_by="permission") as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        turn = asyncio.create_task(seen.session.prompt("go"))
        sources = {(await asked.questions.get()).source for _ in range(2)}
        assert sources == {"elicitation", "permission"}
        await seen.session.cancel()
        await turn


async def test_close_kills_an_agent_that_outlives_its_stdin_and_ignores_term(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "survives_eof", deadlines=Deadlines(close=0.1)) as seen:
        await seen.session.prompt("go")
        first = await seen.session.close()
        assert first.code == -9
        assert await seen.session.close() == first
        assert not group_lives(seen.sandbox.processes[0].pid)


async def test_close_ends_what_the_agent_started(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "grandchild", deadlines=Deadlines(close=0.1)) as seen:
        await seen.session.prompt("go")
        await seen.session.settle()
        child = int(seen.texts[0])
        group = os.getpgid(child)
        assert group_lives(group)
        await seen.session.close()
        assert not group_lives(group)


async def test_close_in_a_turn_ends_the_turn_as_cancelled(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "asks", deadlines=Deadlines(close=0.1)) as seen:
        asked = Asked()
        seen.session.on_ask_user(asked.on_ask)
        turn = asyncio.create_task(seen.session.prompt("go"))
        await asked.questions.get()
        await seen.session.close()
        assert await turn is StopReason.CANCELLED
        assert asked.cancelled == 1


async def test_an_agent_without_state_calls_says_so(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "plain") as seen:
        with pytest.raises(CheckpointError, match="can neither resume nor load a session"):
            await seen.session.snapshot()
        with pytest.raises(CheckpointError, match="interrupted turn"):
            await seen.session.resume_turn()
