"""``bench branch`` at a turn's end with an agent that is not ours, through the whole program."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest

from tests.e2e.machine import ROOT, Machine
from tests.e2e.packages import write_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

AGENT = ROOT / "tests" / "data" / "agents" / "home_agent.py"


def run_with(bench: Machine, *switches: str) -> str:
    """A finished rollout with the agent; the node of its turn's end."""
    task = write_task(bench.folder / "task", instruction="The code is 7.")
    agent = shlex.join([sys.executable, "-I", "-S", str(AGENT), *switches])
    done = bench.run("run", str(task), "--agent", agent)
    assert done.returncode == 0, done.stderr.decode()
    return str(bench.events("checkpointed")[-1]["node"])


def facts(bench: Machine) -> list[dict[str, Any]]:
    """What the agent knew at each of its answers, in the order of the log."""
    return [json.loads(item["text"]) for item in bench.events("said")]


@pytest.mark.parametrize("way", ["resume", "load"])
def test_two_nudges_from_one_turns_end(bench: Machine, way: str) -> None:
    node = run_with(bench, way)
    for text in ("left", "right"):
        bench.json("branch", "last", node, "--nudge", text)
    parent, left, right = facts(bench)
    assert parent["history"] == ["The code is 7."]
    assert left["history"] == ["The code is 7.", "left"]
    assert right["history"] == ["The code is 7.", "right"]
    assert left["notes"] == {"note-1.txt": "The code is 7.", "note-2.txt": "left"}
    assert right["notes"] == {"note-1.txt": "The code is 7.", "note-2.txt": "right"}
    main, *children = bench.events("line_started")
    assert [item["fidelity"] for item in children] == ["native", "native"]
    seeds = [str(item["seed"]) for item in (main, *children)]
    assert [item["seed"] for item in (parent, left, right)] == seeds
    assert [item["line"] for item in (parent, left, right)] == ["0", "1", "2"]
    assert len({item["draw"] for item in (parent, left, right)}) == 3
    assert len(bench.events("step_started")) == 3 * 2
    restored = [item["payload"] for item in bench.events("session_changed")]
    restored = [item for item in restored if "method" in item]
    assert [item["method"] for item in restored] == [f"session/{way}"] * 2
    assert len({item["replayed_updates"] for item in restored}) == 1
    assert (restored[0]["replayed_updates"] > 0) is (way == "load")
    assert bench.state() == "scored"
    assert bench.left_behind() == []


def test_a_refused_session_fails_the_child_alone(bench: Machine) -> None:
    node = run_with(bench, "refuse-resume")
    bench.run("branch", "last", node, "--nudge", "left")
    main, child = bench.events("line_ended")
    assert (main["outcome"], child["outcome"]) == ("scored", "failed")
    assert child["error_category"] == "checkpoint"
    assert "session/resume: Method not found" in child["error"]
    assert bench.state() == "scored"
    assert bench.left_behind() == []


def test_an_agent_that_keeps_nothing_is_refused_before_anything_starts(bench: Machine) -> None:
    node = run_with(bench)
    for words in (["--nudge", "left"], ["--resample", "2"]):
        refused = bench.json("branch", "last", node, *words, code=1)
        assert "can neither resume nor load a session" in refused["error"]["what"]
    assert len(bench.events("line_started")) == 1
