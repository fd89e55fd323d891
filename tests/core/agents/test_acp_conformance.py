"""Every message of ours against the Python ACP SDK's models, which we did not write.

The engine itself does not import the SDK; here it is the yardstick, and one
agent made with it is the counterparty.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from acp import schema

from core.agents.acp.agent import AcpAgent, AcpCommand
from core.agents.acp.turn import Dialect
from core.agents.bench_agent.agent import BenchAgent
from core.contracts.agent import (
    Answer,
    AskUser,
    MessageText,
    PermissionAsked,
    PermissionDecision,
    Role,
    SessionUpdate,
)
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import StopReason
from tests.core.agents.helpers import WireLog, talking_to
from tests.fakes.host_sandbox import HostSandbox

if TYPE_CHECKING:
    from pydantic import BaseModel

SCRIPT = """
[[turn]]
[[turn.step]]
think = "hm"
[[turn.step]]
say = "hello"
[[turn.step]]
run = "echo hi"
[[turn.step]]
write = { path = "a.txt", text = "a" }
[[turn.step]]
call = { method = "GET", url = "http://127.0.0.1:1/" }
[[turn.step]]
ask = { question = "Which?", options = [{ value = "a", label = "A", description = "d" }] }
[[turn.step]]
ask = { question = "Name?", free_text = true }
"""


def checks() -> dict[str, tuple[type[BaseModel], type[BaseModel] | None]]:
    """Method to the models of its parameters and of its result."""
    return {
        "initialize": (schema.InitializeRequest, schema.InitializeResponse),
        "session/new": (schema.NewSessionRequest, schema.NewSessionResponse),
        "session/prompt": (schema.PromptRequest, schema.PromptResponse),
        "session/cancel": (schema.CancelNotification, None),
        "session/update": (schema.SessionNotification, None),
        "session/request_permission": (
            schema.RequestPermissionRequest,
            schema.RequestPermissionResponse,
        ),
        "elicitation/create": (schema.CreateFormSessionElicitationRequest, None),
    }


def check(wire: WireLog) -> set[str]:
    """Validate a whole conversation; the methods that were seen."""
    asked: dict[tuple[str, object], str] = {}
    seen: set[str] = set()
    for direction, line in wire.lines:
        message = json.loads(line)
        method = message.get("method")
        if method is not None:
            seen.add(method)
            checks()[method][0].model_validate(message["params"])
            if "id" in message:
                asked[("out" if direction == "in" else "in", message["id"])] = method
            continue
        method = asked.pop((direction, message["id"]))
        model = checks()[method][1]
        if model is not None:
            model.model_validate(message["result"])
    assert not asked
    return seen


async def test_both_sides_of_a_bench_agent_conversation_are_valid_acp(tmp_path: Path) -> None:
    wire = WireLog()
    play = tmp_path / "play.toml"
    play.write_text(SCRIPT)
    agent = BenchAgent(play, wire=lambda _: wire)
    sandbox = HostSandbox(tmp_path, SandboxSpec("acp", mounts=agent.mounts()))
    session = await agent.connect(sandbox, Role())

    async def answer(ask: AskUser) -> Answer:
        return Answer("accept", {ask.fields[0].name: "a"})

    session.on_ask_user(answer)
    assert await session.prompt("go") is StopReason.END_TURN
    await session.close()
    assert check(wire) == {
        "initialize",
        "session/new",
        "session/prompt",
        "session/update",
        "elicitation/create",
    }


async def test_cancel_and_permission_answers_are_valid_acp(tmp_path: Path) -> None:
    async with talking_to(tmp_path, "open_asks_then_cancel") as seen:
        permissions: asyncio.Queue[PermissionAsked] = asyncio.Queue()

        async def wait(asked: PermissionAsked) -> PermissionDecision:
            permissions.put_nowait(asked)
            await asyncio.sleep(1000)
            return PermissionDecision(None, policy="never")

        seen.session.on_permission(wait)
        turn = asyncio.create_task(seen.session.prompt("go"))
        await permissions.get()
        await seen.session.cancel()
        await turn
    assert {"session/cancel", "session/request_permission"} <= check(seen.wire)


async def test_an_agent_made_with_the_sdk_works_with_our_session(tmp_path: Path) -> None:
    script = Path(__file__).with_name("sdk_agent.py")
    agent = AcpAgent(Dialect("sdk"), AcpCommand((sys.executable, str(script))))
    sandbox = HostSandbox(tmp_path, SandboxSpec("sdk"))
    session = await agent.connect(sandbox, Role())
    assert session.id == "sdk-1"
    assert await session.prompt("hello") is StopReason.END_TURN
    await session.close()
    updates: list[SessionUpdate] = [item async for item in session.updates()]
    assert [item.text for item in updates if isinstance(item, MessageText)] == ["hello", "selected"]
