"""The examples as a person runs them: one command, real sandbox, a reward at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.desk_on_host import EXAMPLE

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

ROOT = EXAMPLE.parents[1]
SCRIPTS = EXAMPLE / "agents"


def bench_run(tmp_path: Path, task: str, *options: str) -> dict[str, Any]:
    """Run one task with a store of its own; the one rollout's summary."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchflow_workbench", "run", f"examples/{task}"),
            *("--jobs-dir", str(tmp_path / "jobs"), "--json"),
            *options,
        ],
        cwd=ROOT,
        env={**os.environ, "BENCH_HOME": str(tmp_path / "home")},
        capture_output=True,
        timeout=110,
    )
    assert done.stdout, done.stderr.decode()
    (rollout,) = json.loads(done.stdout)["rollouts"]
    assert isinstance(rollout, dict)
    return rollout


def reward_of(tmp_path: Path, task: str, *options: str) -> float:
    rollout = bench_run(tmp_path, task, *options)
    assert rollout["outcome"] == "scored", rollout
    return float(rollout["reward"])


@pytest.mark.parametrize("task", ["hello", "support-desk"])
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_the_reference_solution_scores_one_and_doing_nothing_zero(
    tmp_path: Path, task: str, agent: str, reward: float
) -> None:
    assert reward_of(tmp_path, task, "--agent", agent) == reward


@pytest.mark.parametrize(
    ("options", "reward"),
    [
        ((), 1.0),
        (("--answer", "5518"), 1.0),
        (("--answer", "5512"), 0.0),
        (("--user", "auto"), 0.0),
        (("--agent-script", str(SCRIPTS / "hasty.toml")), 0.7),
        (("--agent-script", str(SCRIPTS / "cheat-database.toml")), 0.0),
        (("--agent-script", str(SCRIPTS / "cheat-reward.toml")), 0.0),
    ],
    ids=["asks", "right answer", "wrong answer", "auto", "hasty", "edits files", "plants rewards"],
)
def test_an_agent_of_the_support_desk_gets_what_it_earned(
    tmp_path: Path, options: tuple[str, ...], reward: float
) -> None:
    found = reward_of(tmp_path, "support-desk", "--agent", "bench-agent", *options)
    assert found == pytest.approx(reward)


@pytest.mark.parametrize("script", ["cheat-database", "cheat-reward"])
def test_a_cheat_never_sees_what_is_hidden(tmp_path: Path, script: str) -> None:
    rollout = bench_run(
        tmp_path,
        "support-desk",
        *("--agent", "bench-agent", "--agent-script", str(SCRIPTS / f"{script}.toml")),
    )
    seen = (Path(rollout["folder"]) / "trajectory" / "acp_trajectory.jsonl").read_text()
    assert "note_names" not in seen
    assert "INSERT INTO customers" not in seen
    assert "edited " not in seen
