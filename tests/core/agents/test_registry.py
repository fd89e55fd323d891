from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.agents.acp.agent import AcpAgent
from core.agents.bench_agent.agent import BenchAgent
from core.agents.oracle import OracleScript
from core.agents.registry import AgentContext, entries, resolve
from core.contracts.errors import AgentNotFound, ConfigError, TaskError, UsageError
from core.contracts.values import Fidelity


def test_every_entry_can_be_resolved_or_says_how_to_install_it(tmp_path: Path) -> None:
    script = tmp_path / "solve.sh"
    script.touch()
    play = tmp_path / "play.toml"
    play.write_text("[[turn]]\n[[turn.step]]\nsay = 'hi'\n")
    context = AgentContext(oracle=OracleScript(script), script=play)
    for name, entry in entries().items():
        if entry.kind != "acp" or shutil.which(entry.command.split()[0]):
            assert resolve(name, context).name == name
            continue
        with pytest.raises(AgentNotFound) as caught:
            resolve(name, context)
        assert entry.remedy
        assert entry.remedy in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AgentNotFound, match=r"'no-such-agent'.*oracle, nop, bench-agent"):
        resolve("no-such-agent")


def test_any_other_word_is_a_command_line(tmp_path: Path) -> None:
    script = tmp_path / "my agent.py"
    script.write_text("")
    agent = resolve(f"sh '{script}' --acp")
    assert isinstance(agent, AcpAgent)
    assert agent.name == f"sh '{script}' --acp"
    assert [mount.target for mount in agent.mounts()] == [str(script)]
    assert agent.capabilities().at_ask is Fidelity.NONE


def test_a_command_line_with_an_open_quote_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        resolve("sh 'oops")
    with pytest.raises(UsageError, match="no agent was given"):
        resolve("  ")


def test_bench_agent_takes_its_script_from_the_command_or_the_context(tmp_path: Path) -> None:
    play = tmp_path / "play.toml"
    play.write_text("[[turn]]\n[[turn.step]]\nsay = 'hi'\n")
    assert isinstance(resolve(f"bench-agent {play}"), BenchAgent)
    assert isinstance(resolve("bench-agent", AgentContext(script=play)), BenchAgent)
    with pytest.raises(UsageError, match="needs a script"):
        resolve("bench-agent")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[turn", "not TOML"),
        ("", r"no \[\[turn\]\]"),
        ("[[turn]]\n[[turn.step]]\nsing = 'la'\n", "turn 1 step 1: needs exactly one of"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused_before_anything_starts(
    tmp_path: Path, text: str, words: str
) -> None:
    play = tmp_path / "play.toml"
    play.write_text(text)
    with pytest.raises(ConfigError, match=words):
        resolve(f"bench-agent {play}")


def test_the_oracle_needs_a_script_that_exists(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no reference solution"):
        resolve("oracle")
    with pytest.raises(TaskError, match="does not exist"):
        resolve("oracle", AgentContext(oracle=OracleScript(tmp_path / "gone.sh")))


def test_resolving_a_built_in_agent_loads_no_heavy_library() -> None:
    code = (
        "import sys; from core.agents.registry import resolve; resolve('nop');"
        "print([m for m in ('acp', 'pydantic', 'sqlmodel', 'httpx') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
