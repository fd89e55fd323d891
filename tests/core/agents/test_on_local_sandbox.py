"""The same contract, and a fork at a question, in the real local sandbox."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.agents.bench_agent.agent import BenchAgent
from core.agents.oracle import OracleAgent, OracleScript
from core.agents.registry import resolve
from core.contracts.agent import (
    Agent,
    Answer,
    AskUser,
    MessageText,
    Role,
    SessionSnapshot,
    SessionUpdate,
    ToolUpdate,
)
from core.contracts.sandbox import Mount, Sandbox, SandboxImage, SandboxSpec
from core.contracts.values import StopReason
from core.sandboxes.local import LocalProvider
from tests.contracts.agent_suite import AgentSuite, SlowTurnSuite
from tests.core.agents.helpers import ROGUE
from tests.core.agents.test_agent_contract import SCRIPT

pytestmark = [pytest.mark.sandbox]


def spec(agent: Agent) -> SandboxSpec:
    return SandboxSpec("agents", mounts=(*agent.mounts(), Mount("/workspace")))


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path / "sandboxes") as provider:
        found = await provider.probe()
        if not found.available:
            pytest.skip("; ".join(found.reasons))
        yield provider


class InLocalSandbox(AgentSuite):
    @pytest.fixture
    async def sandbox(self, agent: Agent, provider: LocalProvider) -> AsyncIterator[Sandbox]:
        sandbox = await provider.start(spec(agent))
        yield sandbox
        await sandbox.teardown()


class TestBenchAgentInside(InLocalSandbox, SlowTurnSuite):
    slow_prompt = "slow"

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        script = tmp_path / "script.toml"
        script.write_text(SCRIPT)
        return BenchAgent(script)


class TestAnyCommandInside(InLocalSandbox):
    captured = False

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return resolve(f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(ROGUE))} plain")


class TestOracleInside(InLocalSandbox):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        script = tmp_path / "oracle" / "solve.sh"
        script.parent.mkdir()
        script.write_text('echo solved > answer.txt; test -e "$(dirname "$0")/solve.sh"\n')
        return OracleAgent(OracleScript(script))


FORK = """
[[turn]]
[[turn.step]]
run = "echo before > world.txt"
[[turn.step]]
ask = { question = "Which?", options = ["a", "b"] }
save = "answer"
[[turn.step]]
run = "echo {answer.value} >> world.txt; cat world.txt"
save = "world"
[[turn.step]]
say = "{tag} {world.stdout}"
"""


async def test_world_and_session_fork_together_at_a_question(
    provider: LocalProvider, tmp_path: Path
) -> None:
    play = tmp_path / "play.toml"
    play.write_text(FORK)
    agent = BenchAgent(play)
    parent_box = await provider.start(spec(agent))
    parent = await agent.connect(parent_box, Role())
    captured: list[tuple[SandboxImage, SessionSnapshot]] = []

    async def capture(ask: AskUser) -> Answer:
        session_state = await parent.snapshot()
        captured.append((await parent_box.snapshot(), session_state))
        return Answer("accept", {"answer": "a"})

    parent.on_ask_user(capture)
    assert await parent.prompt("go") is StopReason.END_TURN
    await parent.close()
    said = [await last_words(parent.updates())]
    image, state = captured[0]

    async def answer_b(ask: AskUser) -> Answer:
        return Answer("accept", {"answer": "b"})

    async def child(box: Sandbox) -> str:
        session = await agent.restore(box, Role(seed=1), state)
        session.on_ask_user(answer_b)
        assert await session.resume_turn() is StopReason.END_TURN
        await session.close()
        return await last_words(session.updates())

    boxes = await provider.fork(image, 2)
    said += await asyncio.gather(*map(child, boxes))
    for box in (parent_box, *boxes):
        await box.teardown()
    tag = said[0].split()[0]
    assert said == [f"{tag} before\na\n", f"{tag} before\nb\n", f"{tag} before\nb\n"]


async def last_words(updates: AsyncIterator[SessionUpdate]) -> str:
    return [item.text async for item in updates if isinstance(item, MessageText)][-1]


async def test_the_agent_sees_its_script_read_only_and_nothing_beside_it(
    provider: LocalProvider, tmp_path: Path
) -> None:
    play = tmp_path / "play.toml"
    (tmp_path / "canary").write_text("secret")
    play.write_text(
        f"""
[[turn]]
[[turn.step]]
run = "cat {tmp_path}/canary"
[[turn.step]]
run = "echo x >> /opt/bench-agent/script.toml"
[[turn.step]]
run = "cat /opt/bench-agent/script.toml > /dev/null"
"""
    )
    agent = BenchAgent(play)
    box = await provider.start(spec(agent))
    session = await agent.connect(box, Role())
    await session.prompt("go")
    await session.close()
    updates = [item async for item in session.updates() if isinstance(item, ToolUpdate)]
    await box.teardown()
    assert [item.status for item in updates][1::2] == ["failed", "failed", "completed"]
