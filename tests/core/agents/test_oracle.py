from __future__ import annotations

from pathlib import Path

import pytest

from core.agents.oracle import OracleAgent, OracleScript
from core.contracts.agent import Role, SessionUpdate, ToolUpdate
from core.contracts.errors import AgentTimeout
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import StopReason
from tests.fakes.host_sandbox import HostSandbox


async def play(folder: Path, script: OracleScript) -> tuple[StopReason, list[ToolUpdate], Path]:
    """Run the oracle once; its stop reason, its tool updates, and the workdir."""
    agent = OracleAgent(script)
    sandbox = HostSandbox(folder / "box", SandboxSpec("oracle", mounts=agent.mounts()))
    session = await agent.connect(sandbox, Role(env={"FROM_ROLE": "r"}))
    try:
        stop = await session.prompt("solve it")
    finally:
        await session.close()
    seen: list[SessionUpdate] = [update async for update in session.updates()]
    return stop, [item for item in seen if isinstance(item, ToolUpdate)], sandbox.workdir


def solve(folder: Path, text: str) -> Path:
    script = folder / "oracle" / "solve.sh"
    script.parent.mkdir()
    script.write_text(text)
    return script


async def test_the_script_runs_in_the_workdir_with_its_files_and_environment(
    tmp_path: Path,
) -> None:
    path = solve(tmp_path, 'cat "$(dirname "$0")/part" > out; echo "$A$FROM_ROLE"; pwd >&2\n')
    (path.parent / "part").write_text("from beside")
    stop, updates, workdir = await play(tmp_path, OracleScript(path, env={"A": "a"}))
    assert stop is StopReason.END_TURN
    assert (workdir / "out").read_text() == "from beside"
    first, last = updates
    assert (first.kind, first.status) == ("execute", "in_progress")
    assert last.status == "completed"
    assert isinstance(last.raw_output, dict)
    assert last.raw_output["exit_code"] == 0
    assert last.raw_output["stdout"] == "ar\n"
    assert last.raw_output["stderr"] == f"{workdir}\n"


async def test_the_first_line_names_the_interpreter(tmp_path: Path) -> None:
    path = solve(tmp_path, "#!/usr/bin/env -S sh -e\nfalse\ntouch out\n")
    stop, updates, workdir = await play(tmp_path, OracleScript(path))
    assert stop is StopReason.END_TURN
    assert not (workdir / "out").exists()
    assert updates[-1].status == "failed"


async def test_a_failing_script_is_a_fact_about_the_task_not_an_error(tmp_path: Path) -> None:
    stop, updates, _ = await play(tmp_path, OracleScript(solve(tmp_path, "exit 7\n")))
    assert stop is StopReason.END_TURN
    assert updates[-1].status == "failed"
    assert isinstance(updates[-1].raw_output, dict)
    assert updates[-1].raw_output["exit_code"] == 7


async def test_a_script_that_is_too_slow_times_out_by_name(tmp_path: Path) -> None:
    with pytest.raises(AgentTimeout, match=r"longer than 0.2 s.*solve\.sh"):
        await play(tmp_path, OracleScript(solve(tmp_path, "sleep 1000\n"), timeout=0.2))
