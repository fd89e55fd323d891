"""Agents that others wrote, where they are installed: forked at a turn's end for real.

``fast-agent`` needs no model: its ``passthrough`` one runs the tool that a prompt names.
"""

from __future__ import annotations

import shlex
import shutil

import pytest

from tests.e2e.machine import Machine
from tests.e2e.packages import write_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(400)]


def call(word: str) -> str:
    return f'***CALL_TOOL bash {{"command":"echo {word} >> log.txt; cat log.txt"}}'


def test_fast_agent_goes_on_in_two_forks(bench: Machine) -> None:
    command = shutil.which("fast-agent")
    if command is None:
        pytest.skip("fast-agent is not installed: pip install fast-agent-mcp (Python 3.12)")
    task = write_task(bench.folder / "task", instruction=call("one"))
    agent = shlex.join([command, "acp", "--model", "passthrough", "--shell"])
    done = bench.run("run", str(task), "--agent", agent)
    assert done.returncode == 0, done.stderr.decode()
    node = bench.events("checkpointed")[-1]["node"]
    for word in ("left", "right"):
        bench.json("branch", "last", node, "--nudge", call(word))
    # It replays on resume, which the protocol forbids: none of that may become a message.
    said = [item["text"].split("process_id")[0] for item in bench.events("said")]
    assert said == ["one\n", "one\nleft\n", "one\nright\n"]
    assert [line["outcome"] for line in bench.events("line_ended")] == ["scored"] * 3
    assert bench.left_behind() == []
