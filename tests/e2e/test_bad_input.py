"""Whatever is wrong with a task, its world, its agent or its verifier: a typed outcome in
one sentence, the trajectory so far kept, and nothing of the sandbox left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.e2e.packages import PASSES, service, world, write_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
SOON = world(service("true"), readiness='timeout_sec = "soon"')
AGENT = Path(__file__).parent / "data" / "bad_agent.py"


def fails(bench: Machine, task: Path, category: str, *options: str) -> dict[str, Any]:
    """Run a task that must fail in this way; the rollout's entry in the report."""
    report = bench.json("run", str(task), *options, code=3)
    (rollout,) = report["rollouts"]
    assert (rollout["outcome"], rollout["error_category"]) == ("failed", category), rollout
    assert rollout["reward"] is None
    assert rollout["error"].endswith(".")
    kept_and_clean(bench, Path(rollout["folder"]))
    return dict(rollout)


def kept_and_clean(bench: Machine, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    assert result["rewards"] is None
    assert (folder / "trajectory" / "acp_trajectory.jsonl").exists()
    assert bench.left_behind() == []
    assert bench.json("store", "fsck") == []


def trajectory(rollout: dict[str, Any]) -> str:
    return (Path(rollout["folder"]) / "trajectory" / "acp_trajectory.jsonl").read_text()


@pytest.mark.parametrize(
    ("file", "text", "key"),
    [
        ("task.md", "just words\n", ""),
        ("task.md", "---\ntask: [\n---\nDo it.\n", ""),
        ("task.md", '---\nschema_version: "1.3"\ntask:\n  name: a/b\nagent: 7\n---\nx\n', "agent"),
        ("environment/environment.toml", SOON, "environment.readiness.timeout_sec"),
        ("environment/environment.toml", "[environment\n", ""),
    ],
    ids=["no front matter", "no YAML", "wrong type", "manifest's wrong type", "no TOML"],
)
def test_a_malformed_package_is_refused_before_anything_starts(
    bench: Machine, file: str, text: str, key: str
) -> None:
    task = write_task(bench.folder / "task", manifest=world(service("true")))
    (task / file).write_text(text)
    error = bench.json("run", str(task), code=2)["error"]
    assert error["category"] == "task"
    assert any(fault["file"].endswith(file) and fault["key"] == key for fault in error["faults"])
    assert all(fault["remedy"] for fault in error["faults"])
    assert bench.rows("SELECT 1 FROM rollout") == []


def test_what_a_run_would_not_give_is_refused_by_name(bench: Machine) -> None:
    task = write_task(bench.folder / "task", front="sandbox:\n  setup_commands: [make]\n")
    error = bench.json("run", str(task), code=2)["error"]
    assert "sandbox.setup_commands" in error["what"]
    assert bench.json("tasks", "check", str(task), code=2)[0]["shortfalls"][0]["blocking"]


def test_a_variable_that_is_not_set_is_refused_by_name(bench: Machine) -> None:
    task = write_task(
        bench.folder / "task", front="verifier:\n  env:\n    KEY: ${NOBODY_SETS_THIS}\n"
    )
    error = bench.json("run", str(task), code=2)["error"]
    assert "NOBODY_SETS_THIS" in error["what"]


def test_an_agent_that_is_not_there_is_refused_before_anything_starts(bench: Machine) -> None:
    task = write_task(bench.folder / "task")
    error = bench.json("run", str(task), "--agent", "no-such-agent --acp", code=2)["error"]
    assert "no-such-agent" in error["what"]
    assert bench.rows("SELECT 1 FROM rollout") == []


LISTEN = (
    "python3 -c \"import socket,time; s=socket.socket(); s.bind(('127.0.0.1', 8090)); "
    's.listen(); time.sleep(60)"'
)


def test_two_services_on_one_port_are_a_fault_of_the_manifest(bench: Machine) -> None:
    both = world(service(LISTEN, name="one"), service(LISTEN, name="two"))
    task = write_task(bench.folder / "task", manifest=both)
    error = bench.json("run", str(task), code=2)["error"]
    assert any("8090" in fault["problem"] for fault in error["faults"])


def test_a_service_that_cannot_bind_its_port_fails_the_rollout(bench: Machine) -> None:
    taken = world(
        service(LISTEN, name="first"),
        service(LISTEN, name="second", port=8091),
        readiness='tcp = ["localhost:8091"]\ntimeout_sec = 20',
    )
    task = write_task(bench.folder / "task", manifest=taken)
    report = bench.json("run", str(task), "--agent", "nop", code=3)
    (rollout,) = report["rollouts"]
    assert rollout["error_category"] in ("service_died", "not_ready")
    assert "Address already in use" in rollout["error"]
    kept_and_clean(bench, Path(rollout["folder"]))


def test_a_service_that_is_never_ready_fails_the_rollout(bench: Machine) -> None:
    never = world(
        service("echo still warming up; exec sleep 60"),
        readiness='tcp = ["localhost:8090"]\ntimeout_sec = 1',
    )
    task = write_task(bench.folder / "task", manifest=never)
    rollout = fails(bench, task, "not_ready", "--agent", "nop")
    assert "8090" in rollout["error"]


def test_a_service_that_dies_in_the_turn_fails_the_rollout(bench: Machine) -> None:
    dies = world(service("sleep 1; echo gone; exit 5"), readiness="timeout_sec = 5")
    task = write_task(bench.folder / "task", manifest=dies, oracle="sleep 30")
    rollout = fails(bench, task, "service_died", "--agent", "oracle")
    assert "5" in rollout["error"]


@pytest.mark.parametrize(
    ("mode", "category", "says"),
    [("dies", "agent_crashed", "exit code 3"), ("mute", "agent_crashed", "exit code 4")],
)
def test_an_agent_that_dies_fails_the_rollout(
    bench: Machine, mode: str, category: str, says: str
) -> None:
    task = write_task(bench.folder / "task")
    rollout = fails(bench, task, category, "--agent", f"{sys.executable} {AGENT} {mode}")
    assert says in rollout["error"]
    assert ("I began." in trajectory(rollout)) is (mode == "dies")


def test_garbage_that_an_agent_prints_is_counted_and_its_work_scored(bench: Machine) -> None:
    task = write_task(bench.folder / "task")
    agent = f"{sys.executable} {AGENT} garbage"
    done = bench.run("run", str(task), "--agent", agent)
    assert done.returncode == 0, done.stderr.decode()
    assert "no protocol messages" in done.stdout.decode()


@pytest.mark.parametrize(
    ("verifier", "category"),
    [
        ("sleep 60", "verifier_timeout"),
        ("echo looked", "reward_missing"),
        ("echo nan > /logs/verifier/reward.txt", "reward_invalid"),
        ("echo 7 > /logs/verifier/reward.txt", "reward_invalid"),
        ("echo broken >&2; exit 9", "verifier_crashed"),
    ],
    ids=["hangs", "writes nothing", "NaN", "out of range", "crashes"],
)
def test_a_verifier_that_gives_no_reward_fails_the_rollout(
    bench: Machine, verifier: str, category: str
) -> None:
    front = "verifier:\n  timeout_sec: 1\n"
    task = write_task(bench.folder / "task", verifier=verifier, front=front, oracle="echo did it")
    rollout = fails(bench, task, category)
    assert "did it" in trajectory(rollout)


def test_a_verifier_that_passes_is_the_control(bench: Machine) -> None:
    task = write_task(bench.folder / "task", verifier=PASSES)
    assert bench.json("run", str(task))["rollouts"][0]["reward"] == 1.0


def test_a_machine_that_cannot_is_told_before_anything_is_created(bench: Machine) -> None:
    """Without `cp` no way to hold a sandbox's files is left."""
    task = write_task(bench.folder / "task")
    (bench.folder / "empty").mkdir()
    bench.more["PATH"] = str(bench.folder / "empty")
    error = bench.json("run", str(task), "--agent", "nop", code=7)["error"]
    assert error["category"] == "sandbox_unavailable"
    assert "install coreutils" in error["remedy"]
    assert bench.rows("SELECT 1 FROM rollout") == []
    assert not bench.jobs.exists()
    said = bench.run("run", str(task), "--agent", "nop")
    assert (said.returncode, said.stdout) == (7, b"")
    assert len(said.stderr.decode().strip().splitlines()) == 1
