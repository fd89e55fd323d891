"""Every agent of ours through the one contract suite, on plain host processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.agents.bench_agent.agent import BenchAgent
from core.agents.nop import NopAgent
from core.agents.oracle import OracleAgent, OracleScript
from core.contracts.agent import Agent
from core.contracts.sandbox import Sandbox, SandboxSpec
from tests.contracts.agent_suite import AgentSuite, SlowTurnSuite
from tests.core.agents.helpers import rogue
from tests.core.agents.home_sessions import home_agent
from tests.fakes.host_sandbox import HostSandbox

SCRIPT = """
[[turn]]
[[turn.step]]
say = "tag {tag}"
[[turn.step]]
when = "prompt == 'slow'"
run = "sleep 1000"
[[turn.step]]
ask = { question = "Which?", options = ["a", "b"] }
save = "answer"
[[turn.step]]
say = "{answer.value}"
"""


class OnHost(AgentSuite):
    @pytest.fixture
    def sandbox(self, agent: Agent, tmp_path: Path) -> Sandbox:
        return HostSandbox(tmp_path, SandboxSpec("suite", mounts=agent.mounts()))


class TestNop(OnHost):
    silent = True

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return NopAgent()


class TestOracle(OnHost):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        script = tmp_path / "oracle" / "solve.sh"
        script.parent.mkdir()
        script.write_text("echo solved > answer.txt\n")
        return OracleAgent(OracleScript(script))


class TestSlowOracle(OnHost, SlowTurnSuite):
    slow_prompt = "anything"

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        script = tmp_path / "oracle" / "solve.sh"
        script.parent.mkdir()
        script.write_text("test -e again || { touch again; sleep 1000; }\n")
        (tmp_path / "workspace").mkdir()
        (tmp_path / "workspace" / "again").touch()
        return OracleAgent(OracleScript(script))

    @pytest.fixture
    def sandbox(self, agent: Agent, tmp_path: Path, request: pytest.FixtureRequest) -> Sandbox:
        if "cancel_ends" in request.node.name:
            (tmp_path / "workspace" / "again").unlink()
        return HostSandbox(tmp_path, SandboxSpec("suite", mounts=agent.mounts()))


class TestBenchAgent(OnHost, SlowTurnSuite):
    slow_prompt = "slow"

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        script = tmp_path / "script.toml"
        script.write_text(SCRIPT)
        return BenchAgent(script)


class TestAcpCommand(OnHost):
    captured = False

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return rogue("plain")


class TestAcpCommandThatWaits(OnHost, SlowTurnSuite):
    slow_prompt = "wait"
    captured = False

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return rogue("waits_for_cancel")


class TestAcpCommandThatResumes(OnHost):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return home_agent("resume")


class TestAcpCommandThatLoads(OnHost):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        return home_agent("load")
