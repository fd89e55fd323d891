"""An agent that misbehaves on the wire costs noise, never the conversation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from core.agents.acp.turn import Deadlines
from core.contracts.agent import (
    Answer,
    AskUser,
    MessageText,
    OtherUpdate,
    PermissionAsked,
    PermissionDecision,
    Role,
    ToolUpdate,
    UsageUpdate,
)
from core.contracts.errors import AgentProtocolError
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import StopReason
from tests.core.agents.helpers import Seen, WireLog, rogue, talking_to
from tests.fakes.host_sandbox import HostSandbox


async def first_option(ask: AskUser) -> Answer:
    assert ask.choice is not None
    return Answer("accept", {ask.choice.name: ask.options[0].value}, actor="test")


async def test_garbage_on_stdout_is_counted_and_valid_messages_around_it_are_kept(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "garbage") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["before", "glued", "after"]
        assert [item.channel for item in seen.noise] == ["stdout"] * 4
        assert seen.noise[-1].sample == "progress 10% done"


async def test_json_that_is_no_object_does_not_end_the_conversation(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "not_objects") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["alive"]
        assert [item.channel for item in seen.noise] == ["protocol"] * 5 + ["stdout"] * 2


async def test_meta_keys_never_replace_the_real_fields(tmp_path: Path) -> None:
    questions: list[str] = []

    async def on_ask(ask: AskUser) -> Answer:
        questions.append(ask.question)
        return await first_option(ask)

    async with talking_to(tmp_path, "meta") as seen:
        seen.session.on_ask_user(on_ask)
        await seen.session.prompt("go")
        await seen.session.settle()
        assert seen.texts == ["the real text", "a"]
        assert questions == ["the real question"]


async def test_unknown_kinds_become_raw_records_and_unknown_permissions_are_answered(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "unknown_kinds") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        first, second, *rest = seen.updates
        assert first == OtherUpdate(
            "compaction_update", {"sessionUpdate": "compaction_update", "detail": {"tokens": 5}}
        )
        assert isinstance(second, ToolUpdate)
        assert second.kind == "teleport"
        assert [item.channel for item in seen.noise] == ["protocol", "protocol"]
        assert isinstance(rest[-1], MessageText)
        chosen = json.loads(rest[-1].text)["outcome"]
        assert chosen == {"outcome": "selected", "optionId": "allow_forever_and_ever"}


async def test_updates_arrive_in_the_agents_order_and_none_is_lost(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "many_updates") as seen:
        await seen.session.prompt("5000")
        await seen.session.settle()
        assert seen.texts == [str(i) for i in range(5000)]


async def test_an_agent_that_floods_is_held_back_until_the_reader_catches_up(
    tmp_path: Path,
) -> None:
    wire = WireLog()
    sandbox = HostSandbox(tmp_path, SandboxSpec("flood"))
    session = await rogue("many_updates", wire).connect(sandbox, Role())
    lines = 0
    turn = asyncio.create_task(session.prompt("20000"))
    try:
        while len(wire.lines) != lines or lines < 1000:
            lines = len(wire.lines)
            await asyncio.sleep(0.2)
        assert lines < 6000
        assert not turn.done()
        seen = Seen(session, sandbox, wire)
        reader = asyncio.create_task(seen.read())
        assert await turn is StopReason.END_TURN
        await session.settle()
        assert len(seen.texts) == 20000
    finally:
        await session.close()
    await reader


async def test_late_updates_belong_to_the_turn_that_the_agent_already_ended(
    tmp_path: Path,
) -> None:
    patient = Deadlines(silence=1.0, late=10.0)
    async with talking_to(tmp_path, "late_updates", deadlines=patient) as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["late 0", "late 1", "late 2"]


async def test_an_agent_that_never_falls_silent_does_not_keep_its_turn_open(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "chatters_after", deadlines=Deadlines(late=0.3)) as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN


async def test_a_ten_megabyte_line_passes(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "long_line") as seen:
        await seen.session.prompt(str(10 << 20))
        await seen.session.settle()
        assert [len(text) for text in seen.texts] == [10 << 20]


@pytest.mark.slow
async def test_a_line_without_end_ends_the_session_with_the_reason(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "endless_line") as seen:
        with pytest.raises(AgentProtocolError, match="line longer than 64 MiB"):
            await seen.session.prompt("go")
        with pytest.raises(AgentProtocolError, match="line longer than 64 MiB"):
            await seen.session.prompt("again")
        await seen.session.settle()
        assert seen.texts == ["before"]


async def test_a_megabyte_of_stderr_blocks_nobody_and_its_end_is_kept(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "much_stderr") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        exit_record = await seen.session.close()
        assert exit_record.stderr_tail.endswith("the end of it\n")
        assert len(exit_record.stderr_tail) <= 64 << 10


async def test_updates_before_the_session_is_known_are_kept_and_foreign_ones_set_aside(
    tmp_path: Path,
) -> None:
    async with talking_to(tmp_path, "early_updates") as seen:
        await seen.session.prompt("then")
        await seen.session.settle()
        assert seen.texts == ["early", "then"]
        assert [item.sample for item in seen.noise] == ["1 updates of session 'someone-else'"]


async def test_two_permissions_at_once_with_one_tool_call_are_answered_each(
    tmp_path: Path,
) -> None:
    async def allow(asked: PermissionAsked) -> PermissionDecision:
        allowed = [item.value for item in asked.options if item.kind.startswith("allow")]
        return PermissionDecision(allowed[0], policy="test")

    async with talking_to(tmp_path, "two_permissions") as seen:
        seen.session.on_permission(allow)
        await seen.session.prompt("go")
        await seen.session.settle()
        assert seen.texts == ['{"p1": "allow_once", "p2": "allow_always"}']


async def test_requests_we_do_not_serve_are_refused_at_once(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "private_method") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["[-32601, -32601, -32602]"]


async def test_an_agent_that_writes_before_it_reads_does_not_block_us(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "floods_requests") as seen:
        assert await seen.session.prompt("go") is StopReason.END_TURN
        await seen.session.settle()
        assert seen.texts == ["flooded"]


async def test_text_that_no_store_could_hold_is_made_storable(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "surrogates") as seen:
        await seen.session.prompt("go")
        await seen.session.settle()
        assert seen.texts == ["a\ufffdb"]
        assert seen.updates[-1] == UsageUpdate(used=None, size=10)


async def test_usage_of_updates_and_of_the_answer_is_reported(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "usage") as seen:
        await seen.session.prompt("go")
        await seen.session.settle()
        assert seen.updates == [
            UsageUpdate(used=10, size=100, cost=0.5, currency="USD"),
            UsageUpdate(input_tokens=7, output_tokens=3),
        ]


async def test_raw_traffic_is_kept_both_ways_as_it_was(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "garbage") as seen:
        await seen.session.prompt("go")
    sent = [json.loads(line)["method"] for way, line in seen.wire.lines if way == "out"]
    assert sent == ["initialize", "session/new", "session/prompt"]
    assert ("in", b"npm warn deprecated thing@1.0") in seen.wire.lines
    assert ("in", b"\xff\xfe\x00 not text") in seen.wire.lines
    assert seen.wire.closed
