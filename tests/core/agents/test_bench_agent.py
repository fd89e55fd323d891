"""bench-agent over real ACP: it does what its script says, and its whole session forks."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from core.agents.bench_agent import program
from core.agents.bench_agent.agent import BenchAgent
from core.contracts.agent import (
    Answer,
    AskUser,
    MessageText,
    Role,
    Session,
    SessionSnapshot,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
)
from core.contracts.errors import AgentCrashed, AgentProtocolError, CheckpointError
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import Fidelity, StopReason
from tests.fakes.host_sandbox import HostSandbox

ASK = """
[[turn]]
[[turn.step]]
think = "hm"
[[turn.step]]
say = "first {tag} {prompt}"
[[turn.step]]
run = "echo out; echo err >&2; exit 3"
save = "ran"
[[turn.step]]
ask = { question = "Which?", free_text = "Other", options = [
  "a", { value = "b", label = "B", description = "bee" }
] }
save = "answer"
[[turn.step]]
when = "answer.value == 'b'"
write = { path = "sub/got.txt", text = "{answer.value} {ran.exit_code} {ran.stdout}" }
[[turn.step]]
say = "{tag} {seed} {answer.action} {answer.value}"
[[turn]]
[[turn.step]]
say = "turn {turn} {tag} {prompt}"
"""


class Box:
    """A host sandbox for one script, and what its sessions said."""

    def __init__(self, folder: Path, script: str) -> None:
        path = folder / "play.toml"
        path.write_text(script)
        self.agent = BenchAgent(path)
        self.sandbox = HostSandbox(folder, SandboxSpec("bench", mounts=self.agent.mounts()))

    @asynccontextmanager
    async def reading(self, session: Session) -> AsyncIterator[list[SessionUpdate]]:
        seen: list[SessionUpdate] = []

        async def read() -> None:
            async for update in session.updates():
                seen.append(update)

        reader = asyncio.create_task(read())
        try:
            yield seen
        finally:
            await session.close()
            await reader


def texts(seen: list[SessionUpdate]) -> list[str]:
    return [item.text for item in seen if isinstance(item, MessageText)]


def tools(seen: list[SessionUpdate]) -> list[ToolUpdate]:
    return [item for item in seen if isinstance(item, ToolUpdate)]


async def answer_b(ask: AskUser) -> Answer:
    return Answer("accept", {"answer": "b"})


async def answer_other(ask: AskUser) -> Answer:
    return Answer("accept", {"other": "neither"})


async def test_each_step_is_reported_as_what_it_is(tmp_path: Path) -> None:
    box = Box(tmp_path, ASK)
    session = await box.agent.connect(box.sandbox, Role(seed=3))
    questions: list[AskUser] = []

    async def on_ask(ask: AskUser) -> Answer:
        questions.append(ask)
        return await answer_b(ask)

    async with box.reading(session) as seen:
        session.on_ask_user(on_ask)
        assert await session.prompt("hello") is StopReason.END_TURN
        await session.settle()
    assert isinstance(seen[0], ThoughtText)
    tag = texts(seen)[0].split()[1]
    assert texts(seen) == [f"first {tag} hello", f"{tag} 3 accept b"]
    assert [(item.kind, item.status) for item in tools(seen)] == [
        ("execute", "in_progress"),
        (None, "failed"),
        ("other", "in_progress"),
        (None, "completed"),
        ("edit", "in_progress"),
        (None, "completed"),
    ]
    assert tools(seen)[1].raw_output == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    assert (box.sandbox.workdir / "sub" / "got.txt").read_text() == "b 3 out\n"
    (ask,) = questions
    assert (ask.question, ask.source, ask.tool_call_id) == ("Which?", "elicitation", "call-2")
    assert [(item.value, item.label, item.description) for item in ask.options] == [
        ("a", "a", ""),
        ("b", "B", "bee"),
    ]
    assert ask.fields[1].kind == "text"


async def test_a_pending_question_forks_exactly_and_each_child_goes_its_own_way(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path, ASK)
    parent = await box.agent.connect(box.sandbox, Role())
    captured: list[SessionSnapshot] = []

    async def capture(ask: AskUser) -> Answer:
        captured.append(await parent.snapshot())
        return Answer("accept", {"answer": "a"})

    async with box.reading(parent) as seen:
        parent.on_ask_user(capture)
        await parent.prompt("hello")
        await parent.settle()
    (snapshot,) = captured
    assert (snapshot.pending_ask, snapshot.fidelity) == (True, Fidelity.EXACT)
    json.dumps(snapshot.state)
    tag = texts(seen)[0].split()[1]
    assert texts(seen)[-1] == f"{tag} 0 accept a"

    said: list[str] = []
    for seed, answer in ((5, answer_b), (6, answer_other)):
        child = await box.agent.restore(box.sandbox, Role(seed=seed), snapshot)
        async with box.reading(child) as heard:
            child.on_ask_user(answer)
            assert await child.resume_turn() is StopReason.END_TURN
            await child.settle()
        said += texts(heard)
        assert tools(heard)[0].tool_call_id == "call-2"
    assert said == [f"{tag} 5 accept b", f"{tag} 6 accept neither"]


async def test_a_restored_child_asks_the_same_question_and_can_be_captured_again(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path, ASK)
    parent = await box.agent.connect(box.sandbox, Role())
    snapshots: list[SessionSnapshot] = []
    asks: list[AskUser] = []

    async def capture(ask: AskUser) -> Answer:
        asks.append(ask)
        snapshots.append(await parent.snapshot())
        return Answer("cancel")

    async with box.reading(parent):
        parent.on_ask_user(capture)
        await parent.prompt("hello")
    child = await box.agent.restore(box.sandbox, Role(), snapshots[0])

    async def again(ask: AskUser) -> Answer:
        asks.append(ask)
        snapshots.append(await child.snapshot())
        return await answer_b(ask)

    async with box.reading(child):
        child.on_ask_user(again)
        await child.resume_turn()
    assert asks[0] == asks[1]
    assert snapshots[0] == snapshots[1]


async def test_a_session_at_rest_goes_on_with_the_next_turn_after_a_restore(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path, ASK)
    parent = await box.agent.connect(box.sandbox, Role())
    async with box.reading(parent) as seen:
        parent.on_ask_user(answer_b)
        await parent.prompt("hello")
        await parent.settle()
        snapshot = await parent.snapshot()
    tag = texts(seen)[0].split()[1]
    child = await box.agent.restore(box.sandbox, Role(), snapshot)
    async with box.reading(child) as heard:
        with pytest.raises(AgentProtocolError, match="no question is pending"):
            await child.resume_turn()
        await child.prompt("nudge")
        await child.prompt("more")
        await child.settle()
    assert texts(heard) == [f"turn 2 {tag} nudge", f"turn 3 {tag} more"]


async def test_two_sessions_have_different_tags(tmp_path: Path) -> None:
    box = Box(tmp_path, '[[turn]]\n[[turn.step]]\nsay = "{tag}"\n')
    said: list[str] = []
    for _ in range(2):
        session = await box.agent.connect(box.sandbox, Role())
        async with box.reading(session) as seen:
            await session.prompt("x")
            await session.settle()
        said += texts(seen)
    assert len(set(said)) == 2


async def test_a_running_tool_refuses_the_snapshot_and_dies_with_a_cancel(tmp_path: Path) -> None:
    script = '[[turn]]\n[[turn.step]]\nrun = "echo $$ > pid; exec sleep 1000"\n'
    box = Box(tmp_path, script)
    session = await box.agent.connect(box.sandbox, Role())
    async with box.reading(session) as seen:
        turn = asyncio.create_task(session.prompt("x"))
        pid = await _content(box.sandbox.workdir / "pid")
        with pytest.raises(CheckpointError, match="a tool is running"):
            await session.snapshot()
        await session.cancel()
        assert await turn is StopReason.CANCELLED
        await session.settle()
        assert tools(seen)[-1].status == "failed"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def _content(path: Path) -> str:
    async with asyncio.timeout(20):
        text = ""
        while not text.endswith("\n"):
            await asyncio.sleep(0.02)
            text = await asyncio.to_thread(lambda: path.read_text() if path.exists() else "")
    return text


async def test_a_command_past_its_time_is_killed_and_reported(tmp_path: Path) -> None:
    script = '[[turn]]\n[[turn.step]]\nrun = "echo a; sleep 1000"\ntimeout = 0.3\n'
    box = Box(tmp_path, script)
    session = await box.agent.connect(box.sandbox, Role())
    async with box.reading(session) as seen:
        assert await session.prompt("x") is StopReason.END_TURN
        await session.settle()
    assert tools(seen)[-1].status == "failed"
    assert tools(seen)[-1].raw_output == {
        "exit_code": -signal.SIGKILL,
        "stdout": "a\n",
        "stderr": "",
        "timed_out": True,
    }


async def test_http_calls_are_made_saved_and_reported(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line[15:])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        got.append(head.split(b"\r\n")[0] + b" " + await reader.readexactly(length))
        body = b'{"id": 7, "name": "x"}'
        writer.write(b"HTTP/1.0 201 Created\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script = f"""
[[turn]]
[[turn.step]]
save = "made"
[turn.step.call]
method = "post"
url = "http://127.0.0.1:{port}/items?x=1"
json = {{ seed = "{{seed}}" }}
[[turn.step]]
when = "made.status == 201"
say = "made {{made.body.id}}"
[[turn.step]]
call = {{ method = "GET", url = "http://127.0.0.1:1/nothing" }}
save = "gone"
[[turn.step]]
say = "gone {{gone.status}}"
"""
    box = Box(tmp_path, script)
    session = await box.agent.connect(box.sandbox, Role(seed=4))
    async with server, box.reading(session) as seen:
        await session.prompt("x")
        await session.settle()
    assert got == [b'POST /items?x=1 HTTP/1.1 {"seed": 4}']
    assert texts(seen) == ["made 7", "gone 0"]
    assert [item.status for item in tools(seen)][1::2] == ["completed", "failed"]
    assert tools(seen)[0].kind == "fetch"


async def test_a_script_fault_while_playing_fails_the_turn_with_the_reason(tmp_path: Path) -> None:
    script = """
[[turn]]
[[turn.step]]
when = "prompt == 'never'"
run = "true"
save = "later"
[[turn.step]]
say = "{later.stdout}"
"""
    box = Box(tmp_path, script)
    session = await box.agent.connect(box.sandbox, Role())
    async with box.reading(session):
        with pytest.raises(AgentProtocolError, match=r"nothing is saved as 'later\.stdout'"):
            await session.prompt("x")


async def test_declined_and_cancelled_questions_are_told_to_the_script(tmp_path: Path) -> None:
    script = """
[[turn]]
[[turn.step]]
ask = { question = "Sure?" }
save = "answer"
[[turn.step]]
say = "{answer.action}|{answer.value}"
"""
    for action in ("decline", "cancel"):
        box = Box(tmp_path, script)
        session = await box.agent.connect(box.sandbox, Role())

        async def refuse(ask: AskUser, action: str = action) -> Answer:
            return Answer("decline" if action == "decline" else "cancel")

        async with box.reading(session) as seen:
            session.on_ask_user(refuse)
            assert await session.prompt("x") is StopReason.END_TURN
            await session.settle()
        assert texts(seen) == [f"{action}|"]


async def _talk(box: Box, *messages: dict[str, object]) -> list[dict[str, object]]:
    """Speak raw JSON-RPC with the program; every line it answered."""
    agent = box.agent
    process = await box.sandbox.spawn(agent.command(), env={})
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    lines: list[dict[str, object]] = []
    wanted = {message["id"] for message in messages if "id" in message and "method" in message}
    async with asyncio.timeout(20):
        while wanted:
            line = json.loads(await process.stdout.readline())
            lines.append(line)
            if "method" not in line:
                wanted.discard(line["id"])
    await process.kill(grace=0.1)
    return lines


INITIALIZE: dict[str, object] = {
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}},
}


async def test_without_forms_it_asks_by_permission(tmp_path: Path) -> None:
    script = """
[[turn]]
[[turn.step]]
ask = { question = "Which?", options = ["a", "b"] }
"""
    box = Box(tmp_path, script)
    process = await box.sandbox.spawn(box.agent.command())

    async def call(message: dict[str, object]) -> dict[str, object]:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        while True:
            line: dict[str, object] = json.loads(await process.stdout.readline())
            if line.get("method") != "session/update":
                return line

    await call(INITIALIZE)
    made = await call({"id": 1, "method": "session/new", "params": {"cwd": "/tmp"}})
    result = made["result"]
    assert isinstance(result, dict)
    prompt = {"sessionId": result["sessionId"], "prompt": [{"type": "text", "text": "x"}]}
    asked = await call({"id": 2, "method": "session/prompt", "params": prompt})
    assert asked["method"] == "session/request_permission"
    params = asked["params"]
    assert isinstance(params, dict)
    assert [item["optionId"] for item in params["options"]] == ["a", "b"]
    chosen = {"outcome": {"outcome": "selected", "optionId": "b"}}
    assert (await call({"id": asked["id"], "result": chosen}))["result"] == {
        "stopReason": "end_turn"
    }
    await process.kill(grace=0.1)


async def test_a_session_is_resumed_from_its_file_with_a_new_tag(tmp_path: Path) -> None:
    box = Box(tmp_path, ASK)
    session = await box.agent.connect(box.sandbox, Role())
    async with box.reading(session) as seen:
        session.on_ask_user(answer_b)
        await session.prompt("hello")
        await session.settle()
    kept = (box.sandbox.home / ".bench-agent" / f"{session.id}.json").read_text()
    prompt = {"sessionId": session.id, "prompt": [{"type": "text", "text": "again"}]}
    lines = await _talk(
        box,
        INITIALIZE,
        {"id": 1, "method": "session/resume", "params": {"sessionId": session.id, "cwd": "/tmp"}},
        {"id": 2, "method": "session/prompt", "params": prompt},
    )
    (said,) = [str(line["params"]) for line in lines if "method" in line]
    tag = texts(seen)[0].split()[1]
    assert tag not in kept
    assert "turn 2" in said
    assert tag not in said


async def test_what_it_does_not_know_is_refused(tmp_path: Path) -> None:
    lines = await _talk(
        Box(tmp_path, ASK),
        INITIALIZE,
        {"id": 1, "method": "session/fork", "params": {}},
        {"id": 2, "method": "session/prompt", "params": {"sessionId": "no"}},
        {"id": 3, "method": "session/resume", "params": {"sessionId": "../../etc/passwd"}},
        {"id": 4, "method": "_bench/restore", "params": {"state": {"version": 99}}},
    )
    codes = [line["error"]["code"] for line in lines if isinstance(line.get("error"), dict)]  # type: ignore[index]
    assert codes == [-32601, -32602, -32602, -32602]


LONG = f"""
[[turn]]
[[turn.step]]
say = "{"x" * 120_000}"
"""


async def test_a_script_too_long_for_an_argument_is_read_in_the_sandbox(tmp_path: Path) -> None:
    box = Box(tmp_path, LONG)
    session = await box.agent.connect(box.sandbox, Role())
    async with box.reading(session) as seen:
        assert await session.prompt("go") is StopReason.END_TURN
        await session.settle()
        assert texts(seen) == ["x" * 120_000]


async def test_a_script_missing_in_the_sandbox_is_a_crash_with_the_reason(tmp_path: Path) -> None:
    box = Box(tmp_path, LONG)
    (tmp_path / "play.toml").unlink()
    with pytest.raises(AgentCrashed, match=r"exit code 2.*No such file"):
        await box.agent.connect(box.sandbox, Role())


async def test_a_date_in_a_script_is_its_text(tmp_path: Path) -> None:
    box = Box(tmp_path, LONG.replace("x" * 120_000, "short") + DATED)
    assert '"1979-05-27"' in box.agent.command()[-1]


DATED = """
[[turn]]
[[turn.step]]
call = { method = "POST", url = "http://localhost:1", json = { day = 1979-05-27 } }
"""


def test_the_program_needs_the_standard_library_only() -> None:
    folder = Path(program.__file__).parent
    own = program.__name__.rpartition(".")[0]
    for name in ("program", "conversation", "script", "tools"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                assert module.startswith(own) or module.split(".")[0] in sys.stdlib_module_names
