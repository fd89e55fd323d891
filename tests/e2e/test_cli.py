"""The commands as a person uses them: what they print, how they end, what they leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.machine import ROOT, Machine, ended
from tests.e2e.packages import ASKS, world, write_script, write_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def start_asking(bench: Machine, *more: str, after: str = "") -> str:
    """A human-run rollout that asks once; the id of its request."""
    task = write_task(bench.folder / "colour")
    steps = [ASKS, after or 'say = "You said {answer.value}"']
    script = write_script(bench.folder / "asks.toml", steps)
    bench.start(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--user", "human", "--turn-end-timeout", "0", *more),
    )
    return bench.until_asked()


def start_long_turn(bench: Machine) -> None:
    """A rollout whose agent is in the middle of its turn for a minute."""
    task = write_task(bench.folder / "long")
    script = write_script(
        bench.folder / "long.toml",
        ['say = "Now I wait"', 'run = "sleep 60"'],
        ['say = "I was told: {prompt}"'],
    )
    bench.start("run", str(task), "--agent", "bench-agent", "--agent-script", str(script))
    bench.until_event("tool_changed")


def test_the_demo_prints_what_show_prints(bench: Machine) -> None:
    done = bench.run("demo")
    assert done.returncode == 0, done.stderr.decode()
    shown = bench.run("show", "last")
    assert shown.stdout == done.stdout
    assert "reward 1.00" in done.stdout.decode()
    assert bench.left_behind() == []


def test_the_demo_with_a_wrong_answer_ends_at_nothing(bench: Machine) -> None:
    done = bench.run("demo", "--answer", "wrong")
    assert "ask_user → 5512" in done.stdout.decode()
    assert "reward 0.00" in done.stdout.decode()


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("2", "Blue|b"),
        ("Blue", "Blue|b"),
        ("b", "Blue|b"),
        ("as grey as it gets", "as grey"),
        ("decline", "decline"),
    ],
    ids=["number", "label", "value", "free text", "decline"],
)
def test_a_question_is_answered_from_a_second_process(
    bench: Machine, typed: str, given: str
) -> None:
    request = start_asking(bench, after='say = "I heard {answer.action}"')
    waiting = bench.json("answer")
    assert [item["id"] for item in waiting] == [request]
    assert "Which colour?" in bench.run("answer", request).stdout.decode()
    bench.json("answer", request, typed)
    code, out, err = ended(bench.started[0])
    assert code == 0, err
    assert any(f"ask_user → {label}" in out for label in given.split("|")), out
    (answered,) = bench.events("answered")
    assert (answered["actor"], answered["via"]) == ("ann", "cli")


def test_the_second_person_is_told_who_was_first_and_a_key_never_answers_twice(
    bench: Machine,
) -> None:
    request = start_asking(bench, after='run = "sleep 60"')
    first = bench.json("answer", request, "r", "--key", "k1")
    assert bench.json("answer", request, "r", "--key", "k1") == first | {
        "state": "delivered",
        "revision": bench.value(f"SELECT revision FROM request WHERE id = '{request}'"),
    }
    late = bench.json("answer", request, "b", "--key", "k2", code=4, actor="bob")
    assert "answered by ann (cli)" in late["error"]["what"]
    assert '"r"' in late["error"]["what"].replace("'", '"')
    bench.until_event("answered")
    bench.json("cancel", "last")
    assert ended(bench.started[0])[0] == 3
    assert [item["content"] for item in bench.events("answered")] == [
        bench.events("answered")[0]["content"]
    ]


def test_an_answer_that_fits_nothing_is_refused_and_the_question_stays(bench: Machine) -> None:
    task = write_task(bench.folder / "strict")
    ask = 'ask = { question = "Which?", options = ["yes", "no"] }'
    script = write_script(bench.folder / "strict.toml", [ask])
    bench.start(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--user", "human", "--turn-end-timeout", "0"),
    )
    request = bench.until_asked()
    wrong = bench.json("answer", request, "perhaps", code=2)
    assert "yes" in wrong["error"]["what"] + wrong["error"]["remedy"]
    assert bench.until_asked() == request
    bench.json("answer", request, "no")
    assert ended(bench.started[0])[0] == 0


def test_a_nudge_becomes_the_next_prompt_and_the_line_is_assisted(bench: Machine) -> None:
    task = write_task(bench.folder / "nudged")
    script = write_script(
        bench.folder / "n.toml",
        ['say = "Working"', 'run = "while [ ! -e go ]; do sleep 0.05; done"'],
        ['say = "I was told: {prompt}"'],
    )
    bench.start("run", str(task), "--agent", "bench-agent", "--agent-script", str(script))
    bench.until_event("tool_changed")
    assert bench.json("nudge", "last", "Be quick.", "--key", "n1") == {"queued": True}
    assert bench.json("nudge", "last", "Be quick.", "--key", "n1") == {"queued": True}
    assert bench.json("cancel", "last", "--turn") == {"cancelled": "turn"}
    code, out, err = ended(bench.started[0])
    assert code == 0, err
    assert "I was told: Be quick." in out
    assert "assisted" in out
    prompts = [event for event in bench.events("prompted") if event["origin"] == "nudge"]
    assert [(event["text"], event["actor"]) for event in prompts] == [("Be quick.", "ann")]
    late = bench.json("nudge", "last", "More.", code=4)
    assert "has ended" in late["error"]["what"]
    assert bench.json("nudge", "last", "Be quick.", "--key", "n1") == {"queued": True}


def test_a_cancel_ends_a_rollout_that_asks(bench: Machine) -> None:
    request = start_asking(bench)
    bench.json("cancel", "last")
    code, out, _ = ended(bench.started[0])
    assert code == 3
    assert "cancelled: no reward" in out
    gone = bench.json("answer", request, "r", code=4)
    assert "withdrawn" in gone["error"]["what"]
    assert bench.left_behind() == []


def test_a_cancel_ends_a_rollout_in_its_turn(bench: Machine) -> None:
    start_long_turn(bench)
    bench.json("cancel", "last")
    assert ended(bench.started[0])[0] == 3
    assert bench.state() == "cancelled"
    assert len(bench.events("cancel_requested")) == 1
    assert bench.json("cancel", "last", code=4)["error"]["category"] == "conflict"
    assert bench.left_behind() == []


def test_a_cancel_of_a_turn_still_scores_what_is_there(bench: Machine) -> None:
    start_long_turn(bench)
    bench.json("cancel", "last", "--turn")
    assert ended(bench.started[0])[0] == 0
    assert bench.state() == "scored"
    assert bench.events("turn_ended")[0]["stop_reason"] == "cancelled"


def test_a_cancel_ends_a_rollout_whose_world_is_still_coming_up(bench: Machine) -> None:
    slow = world(
        '[[environment.services]]\nname = "slow"\ncommand = "sleep 60"\nport = 8090\n',
        readiness='tcp = ["localhost:8090"]\ntimeout_sec = 60',
    )
    task = write_task(bench.folder / "slow", manifest=slow)
    bench.start("run", str(task), "--agent", "nop")
    bench.until("SELECT count(*) FROM rollout WHERE phase = 'readiness'")
    bench.json("cancel", "last")
    assert ended(bench.started[0])[0] == 3
    assert bench.state() == "cancelled"
    assert bench.left_behind() == []


def test_a_queued_rollout_is_cancelled_at_once(bench: Machine) -> None:
    task = write_task(bench.folder / "long")
    script = write_script(bench.folder / "long.toml", ['run = "sleep 60"'])
    bench.start(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--repeats", "2", "--json"),
    )
    bench.until_event("tool_changed")
    queued = bench.value("SELECT id FROM rollout WHERE state = 'queued'")
    bench.json("nudge", queued, "Hello?", code=4)
    bench.json("cancel", queued)
    bench.until(f"SELECT sealed FROM rollout WHERE id = '{queued}'")
    shown = bench.json("show", queued)
    assert (shown["state"], shown["head_seq"]) == ("cancelled", 3)
    running = bench.value("SELECT id FROM rollout WHERE state = 'running'")
    bench.json("cancel", running)
    code, out, _ = ended(bench.started[0])
    assert code == 3
    assert [item["outcome"] for item in json.loads(out)["rollouts"]] == ["cancelled"] * 2


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_tears_down_and_leaves_a_record_that_runs_again(
    bench: Machine, name: signal.Signals
) -> None:
    start_long_turn(bench)
    bench.started[0].send_signal(name)
    code, _, err = ended(bench.started[0])
    assert code == 130
    assert "interrupted" in err
    assert bench.state() == "interrupted"
    assert bench.left_behind() == []
    folder = Path(str(bench.value("SELECT folder FROM rollout")))
    result = json.loads((folder / "result.json").read_text())
    assert result["rewards"] is None
    (bench.folder / "long.toml").write_text('[[turn]]\n[[turn.step]]\nsay = "Quick now"\n')
    again = bench.run("resume", "last")
    assert again.returncode == 0, again.stderr.decode()
    assert "attempt 2" in again.stdout.decode()
    assert bench.state() == "scored"
    assert bench.json("resume", "last", code=4)["error"]["category"] == "conflict"


def test_a_second_interrupt_leaves_nothing_that_reap_cannot_remove(bench: Machine) -> None:
    start_long_turn(bench)
    for _ in range(3):
        bench.started[0].send_signal(signal.SIGINT)
    assert ended(bench.started[0])[0] in (130, -signal.SIGINT)
    assert bench.run("reap").returncode == 0
    assert bench.left_behind() == []
    assert bench.state() == "interrupted"


def test_after_a_kill_reap_cleans_up_and_resume_finds_the_stored_answer(bench: Machine) -> None:
    request = start_asking(bench, after='run = "sleep 60"')
    bench.json("answer", request, "b")
    bench.until_event("answered")
    bench.started[0].kill()
    bench.started[0].wait()
    assert bench.left_behind() != []
    reaped = bench.run("reap").stdout.decode()
    assert "now interrupted" in reaped
    assert bench.left_behind() == []
    assert bench.state() == "interrupted"
    write_script(bench.folder / "asks.toml", [ASKS, 'say = "You said {answer.value}"'])
    again = bench.run("resume", "last")
    assert again.returncode == 0, again.stderr.decode()
    assert "You said b" in again.stdout.decode()
    assert [item["actor"] for item in bench.events("answered")] == ["ann", "ann"]
    assert bench.value("SELECT count(*) FROM request") == 1
    assert bench.run("store", "fsck").returncode == 0


def test_repeats_run_side_by_side_and_the_job_adds_them_up(bench: Machine) -> None:
    done = bench.run("run", "examples/hello", "--repeats", "3", "--concurrency", "2")
    assert done.returncode == 0, done.stderr.decode()
    assert "3 of 3 scored, mean reward 1.000" in done.stdout.decode()
    assert "3/3" in done.stderr.decode()
    (folder,) = bench.jobs.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["total"], summary["passed"]) == (3, 3)
    listed = bench.json("ls")
    assert [item["state"] for item in listed] == ["scored"] * 3
    assert bench.json("ls", "--limit", "1") == listed[:1]
    assert bench.json("ls", "--job", folder.name) == listed


def test_one_broken_rollout_does_not_stop_its_siblings(bench: Machine) -> None:
    write_task(bench.folder / "tasks" / "a", verifier="sleep 0.2; echo nan > $0; exit 3")
    write_task(bench.folder / "tasks" / "b")
    report = bench.json("run", str(bench.folder / "tasks"), "--concurrency", "2", code=3)
    outcomes = {item["task"]: item["outcome"] for item in report["rollouts"]}
    assert outcomes == {"test/a": "failed", "test/b": "scored"}


def test_show_follows_from_the_start_and_from_the_middle(bench: Machine) -> None:
    request = start_asking(bench)
    early = bench.start("show", "last", "--follow")
    late = bench.start("show", "last", "--follow", "--json")
    bench.json("answer", request, "r")
    _, ran, _ = ended(bench.started[0])
    code, followed, progress = ended(early)
    assert (code, followed) == (0, ran)
    assert "ask_user → " in progress
    code, told, _ = ended(late)
    assert json.loads(told)["state"] == "scored"


def test_check_lists_every_fault_of_a_package(bench: Machine) -> None:
    broken = write_task(bench.folder / "broken", front="agent:\n  timeout_sec: soon\ncolour: red\n")
    (broken / "verifier" / "test.sh").unlink()
    found = bench.json("tasks", "check", str(broken), code=2)
    faults = found[0]["faults"]
    assert {"agent.timeout_sec", "colour"} <= {fault["key"] for fault in faults}
    assert all(fault["problem"] and fault["remedy"] for fault in faults)
    assert len(faults) >= 3
    said = bench.run("tasks", "check", str(broken))
    assert len(said.stdout.decode().splitlines()) == len(faults)
    refused = bench.json("run", str(broken), code=2)
    assert refused["error"]["faults"] == faults
    assert not bench.jobs.exists()
    assert bench.run("tasks", "check", "examples").returncode == 0


def test_a_rollout_is_run_from_python(bench: Machine) -> None:
    code = """
import asyncio, sys
import benchflow_workbench as bf

config = bf.RolloutConfig(path=sys.argv[1], agent="oracle", jobs_dir=sys.argv[2])
report = asyncio.run(bf.run(config))
print(report.mean_reward, report.rollouts[0].result.outcome)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "examples/hello", str(bench.jobs)],
        cwd=ROOT,
        env=bench.env(),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.decode().split() == ["1.0", "scored"], done.stderr.decode()


def test_any_acp_command_is_an_agent(bench: Machine) -> None:
    agent = Path(__file__).parent / "data" / "tiny_agent.py"
    done = bench.run("run", "examples/hello", "--agent", f"{sys.executable} {agent} extra")
    assert done.returncode == 0, done.stderr.decode()
    assert "reward 1.00" in done.stdout.decode()
    assert "wrote the greeting" in done.stdout.decode()


def test_each_exit_code_is_what_help_says(bench: Machine) -> None:
    assert bench.run("--help").returncode == 0
    assert bench.json("run", "examples/nothing-here", code=2)["error"]["category"] == "usage"
    assert bench.json("run", "examples/hello", "--repeats", "0", code=2)
    assert bench.json("run", "examples/hello", "--sandbox", "moon", code=2)
    assert bench.json("run", code=2)["error"]["category"] == "usage"
    assert bench.json("show", "nobody", code=5)["error"]["category"] == "not_found"
    assert bench.json("answer", "nobody", "x", code=5)["error"]["category"] == "not_found"
    assert bench.json("cancel", "nobody", code=5)
    assert bench.json("resume", "nobody", code=5)
    assert bench.json("ls") == []
    assert bench.json("answer") == []
    assert bench.json("reap") == []
    assert bench.json("store", "fsck") == []
    assert bench.json("doctor")[0]["available"] is True
