"""What a person does with the nodes of a tree: score, compare, rewind, pause, make room."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import ROOT, Machine, ended
from tests.e2e.packages import ASKS, write_script, write_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

WRITES = 'run = "echo {answer.value} > colour.txt"'
WANTS_BLUE = """
test -e "$BENCH_WORKDIR/colour.txt" && grep -q b "$BENCH_WORKDIR/colour.txt" && good=1
echo "${good:-0}" > /logs/verifier/reward.txt
"""


def colour_task(bench: Machine, verifier: str = WANTS_BLUE) -> tuple[Path, Path]:
    task = write_task(bench.folder / "colour", verifier=verifier)
    return task, write_script(bench.folder / "asks.toml", [ASKS, WRITES])


def run_colours(bench: Machine, *more: str, verifier: str = WANTS_BLUE) -> Path:
    """A rollout that was told blue, and its sibling that was told red; the task."""
    task, script = colour_task(bench, verifier)
    done = bench.run(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--answer", "b", "--branch", "asks=all", *more),
    )
    assert done.returncode in (0, 3), done.stderr.decode()
    return task


def start_colours(bench: Machine, *steps: str, options: tuple[str, ...] = ()) -> str:
    """A rollout whose person was asked and has not answered; its request."""
    task, _ = colour_task(bench)
    script = write_script(bench.folder / "waits.toml", [ASKS, WRITES, *steps])
    bench.start(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--user", "human", "--turn-end-timeout", "0", *options),
    )
    request = bench.until_asked()
    bench.until_event("checkpointed")
    return request


def tree(bench: Machine) -> dict[str, Any]:
    shown: dict[str, Any] = bench.json("show", "last")
    return shown


def ask_node(bench: Machine) -> str:
    (node,) = {row["node"] for row in tree(bench)["tree_rows"] if row["kind"] == "ask"}
    return str(node)


def leaf(bench: Machine, line: int) -> str:
    return str([row["node"] for row in tree(bench)["tree_rows"] if row["line"] == line][-1])


def result(bench: Machine) -> dict[str, Any]:
    (path,) = bench.jobs.glob("*/colour__*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def summary(bench: Machine) -> dict[str, Any]:
    (path,) = bench.jobs.glob("*/summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def sound(bench: Machine) -> None:
    """Nothing runs, and the store and the sealed folders agree."""
    assert bench.left_behind() == []
    assert bench.json("store", "fsck") == []


# -- score ---------------------------------------------------------------------


def test_a_question_and_a_leaf_are_scored_without_the_agent(bench: Machine) -> None:
    run_colours(bench)
    ask, main = ask_node(bench), leaf(bench, 0)
    said = len(bench.events("said")), len(bench.events("tool_changed"))
    scores = bench.json("score", "last", ask, main)["scores"]
    assert [(item["node"], item["before"], item["after"]) for item in scores] == [
        (ask, None, 0.0),
        (main, 1.0, 1.0),
    ]
    assert [item["version"] for item in scores] == [1, 2]
    assert (len(bench.events("said")), len(bench.events("tool_changed"))) == said
    assert len([event for event in bench.events("scored") if event["node"] == main]) == 2
    assert tree(bench)["reward"] == 1.0
    sound(bench)


def test_every_stored_node_is_scored_at_once(bench: Machine) -> None:
    run_colours(bench)
    scores = bench.json("score", "last", "--all")["scores"]
    assert [item["after"] for item in scores] == [0.0, 1.0, 0.0]


def test_a_node_is_scored_beside_the_question_that_waits(bench: Machine) -> None:
    request = start_colours(bench)
    ask = ask_node(bench)
    (score,) = bench.json("score", "last", ask)["scores"]
    assert score["after"] == 0.0
    assert bench.value("SELECT state FROM request") == "open"
    bench.json("answer", request, "b")
    code, _, err = ended(bench.started[0])
    assert code == 0, err
    assert tree(bench)["reward"] == 1.0
    sound(bench)


def test_a_node_without_a_stored_state_is_refused_and_nothing_changes(bench: Machine) -> None:
    run_colours(bench)
    before = bench.rows("SELECT count(*) FROM event")
    bench.json("score", "last", "n1", code=1)
    bench.json("score", "last", "n999", code=2)
    bench.json("score", "last", "--verifier", str(bench.folder / "nowhere"), code=2)
    assert bench.rows("SELECT count(*) FROM event") == before


# -- rescore -------------------------------------------------------------------


def test_an_edited_verifier_changes_every_leaf_and_the_result(bench: Machine) -> None:
    task = run_colours(bench)
    script = task / "verifier" / "test.sh"
    script.write_text(script.read_text().replace("grep -q b", "grep -q r"))
    changes = bench.json("rescore", "last")
    assert (changes["up"], changes["down"], changes["same"]) == (1, 1, 0)
    assert (changes["mean_before"], changes["mean_after"]) == (0.5, 0.5)
    assert {(item["line"], item["change"]) for item in changes["scores"]} == {
        (0, "down"),
        (1, "up"),
    }
    assert result(bench)["rewards"]["reward"] == 0.0
    assert summary(bench)["mean_reward"] == 0.0
    assert bench.value("SELECT reward FROM rollout") == 0.0
    assert [event["reward"] for event in bench.events("scored")].count(1.0) == 2
    sound(bench)


def test_another_verifier_folder_is_tried_without_touching_the_task(bench: Machine) -> None:
    task = run_colours(bench)
    other = bench.folder / "generous"
    other.mkdir()
    (other / "test.sh").write_text("echo 0.25 > /logs/verifier/reward.txt\n")
    text = bench.run("rescore", "last", "--verifier", str(other)).stdout.decode()
    assert "1 up, 1 down, 0 same, 0 new, 0 failed; mean 0.500 -> 0.250" in text
    assert "0.25" not in (task / "verifier" / "test.sh").read_text()
    back = bench.json("rescore", "last")
    assert (back["mean_before"], back["mean_after"]) == (0.25, 0.5)


def test_a_mended_verifier_gives_a_failed_rollout_its_reward(bench: Machine) -> None:
    task = run_colours(bench, verifier="echo broken >&2; exit 3")
    assert tree(bench)["state"] == "failed"
    (task / "verifier" / "test.sh").write_text(WANTS_BLUE)
    changes = bench.json("rescore", "last")
    assert changes["new"] == 2
    after = tree(bench)
    assert (after["state"], after["reward"], after["error"]) == ("scored", 1.0, None)
    assert result(bench)["verifier_error"] is None
    sound(bench)


def test_a_broken_verifier_takes_no_verdict_away(bench: Machine) -> None:
    task = run_colours(bench)
    (task / "verifier" / "test.sh").write_text("exit 3\n")
    changes = bench.json("rescore", "last", code=3)
    assert changes["failed"] == 2
    assert tree(bench)["reward"] == 1.0
    assert len(bench.events("scoring_failed")) == 2


def test_watching_scores_again_after_a_save_until_interrupted(bench: Machine) -> None:
    task = run_colours(bench)
    watching = bench.start("rescore", "last", "--watch")
    assert watching.stdout is not None
    assert b"2 same" in watching.stdout.readline()
    (task / "verifier" / "test.sh").write_text("echo 0.75 > /logs/verifier/reward.txt\n")
    last = next(line for line in watching.stdout if line.startswith(b"2 leaves"))
    assert b"mean 0.500 -> 0.750" in last
    watching.send_signal(signal.SIGINT)
    code, _, err = ended(watching)
    assert code == 130, err
    assert bench.value("SELECT reward FROM rollout") == 0.75
    sound(bench)


# -- diff ----------------------------------------------------------------------


def test_two_lines_differ_in_the_file_they_wrote(bench: Machine) -> None:
    run_colours(bench)
    rollout = tree(bench)["id"]
    found = bench.json("diff", f"{rollout}:{leaf(bench, 0)}", f"{rollout}:{leaf(bench, 1)}")
    (change,) = [item for item in found["files"] if item["path"] == "/workspace/colour.txt"]
    assert change["change"] == "changed"
    assert change["text"].splitlines()[-2:] == ["-b", "+r"]
    text = bench.run("diff", f"last:{ask_node(bench)}", "last").stdout.decode()
    assert re.search(r"\+ /workspace/colour.txt \(2 bytes 644\)\n +@@ -0,0 \+1 @@\n +\+b", text)
    assert bench.json("diff", "last", "last")["same"] is True
    bench.json("diff", "last:n1", "last", code=1)
    sound(bench)


def test_rows_of_the_support_desk_are_compared_by_key(bench: Machine) -> None:
    task = str(ROOT / "examples" / "support-desk")
    assert bench.run("run", task, "--agent", "bench-agent").returncode == 0
    found = bench.json("diff", f"last:{ask_node(bench)}", "last")
    orders = next(item for item in found["tables"] if item["table"] == "orders")
    assert orders["rows"] == [
        {
            "change": "changed",
            "key": {"id": 5518},
            "before": {"status": "delivered"},
            "after": {"status": "refunded"},
            "times": 1,
        }
    ]
    refunds = next(item for item in found["tables"] if item["table"] == "refunds")
    assert [row["after"]["amount_cents"] for row in refunds["rows"]] == [6090]
    assert "customers" not in {item["table"] for item in found["tables"]}


# -- rewind, restore, pause ----------------------------------------------------


def test_a_rewound_rollout_has_the_new_lines_reward_and_can_be_put_back(bench: Machine) -> None:
    run_colours(bench)
    bench.json("rewind", "last", ask_node(bench), "--answer", "r")
    after = tree(bench)
    assert (after["reward"], after["assisted"]) == (0.0, True)
    assert [row["line"] for row in after["tree_rows"] if row["main"]] == [2]
    assert result(bench)["rewards"]["reward"] == 0.0
    restored = bench.json("restore", "last", "0")
    assert restored == {"main": 0, "outcome": "scored", "reward": 1.0}
    assert tree(bench)["tree_head"]["selected"] is True
    assert result(bench)["rewards"]["reward"] == 1.0
    bench.json("restore", "last", "0", code=2)
    bench.json("restore", "last", "7", code=2)
    sound(bench)


def test_a_live_rollout_is_rewound_while_its_line_goes_the_wrong_way(bench: Machine) -> None:
    request = start_colours(bench, 'run = "test $(cat colour.txt) = b || sleep 60"')
    bench.json("answer", request, "r")
    bench.until_event("tool_changed", "payload LIKE '%sleep%'")
    done = bench.json("rewind", "last", ask_node(bench), "--answer", "b")
    assert done["lines"] == [1]
    code, _, err = ended(bench.started[0])
    assert code == 0, err
    after = tree(bench)
    assert (after["state"], after["reward"], after["assisted"]) == ("scored", 1.0, True)
    outcomes = [event["outcome"] for event in bench.events("line_ended")]
    assert sorted(outcomes) == ["cancelled", "scored"]
    sound(bench)


def test_a_pause_stops_the_agent_and_its_clock(bench: Machine) -> None:
    counts = "for i in 1 2 3 4 5 6 7 8; do echo $i >> count.txt; sleep 0.5; done"
    task = write_task(bench.folder / "counts")
    script = write_script(bench.folder / "counts.toml", [f'run = "{counts}"', 'say = "done"'])
    bench.start(
        *("run", str(task), "--agent", "bench-agent", "--agent-script", str(script)),
        *("--timeout", "9"),
    )
    bench.until_event("tool_changed")
    assert bench.json("pause", "last")["lines"] == 1
    assert bench.until("SELECT phase = 'paused' FROM rollout")
    bench.json("pause", "last", code=4)
    frozen = bench.value("SELECT count(*) FROM event")
    with pytest.raises(subprocess.TimeoutExpired):
        bench.started[0].communicate(timeout=10)
    assert bench.value("SELECT count(*) FROM event") == frozen
    assert bench.json("unpause", "last")["seconds"] > 9
    code, _, err = ended(bench.started[0])
    assert code == 0, err
    bench.json("unpause", "last", code=4)
    (turn,) = bench.events("turn_ended")
    assert turn["stop_reason"] == "end_turn"
    sound(bench)


def test_a_paused_rollout_is_cancelled_or_interrupted_cleanly(bench: Machine) -> None:
    request = start_colours(bench, 'run = "sleep 60"')
    bench.json("answer", request, "b")
    bench.until_event("tool_changed", "payload LIKE '%sleep%'")
    bench.json("pause", "last")
    bench.json("branch", "last", "--options", "all", code=4)
    bench.json("cancel", "last")
    ended(bench.started[0])
    assert tree(bench)["state"] == "cancelled"
    assert bench.left_behind() == []


# -- gc ------------------------------------------------------------------------


def test_making_room_drops_what_may_go_and_the_node_says_so(bench: Machine) -> None:
    run_colours(bench)
    side, main = leaf(bench, 1), leaf(bench, 0)
    would = bench.json("gc", "--budget", "0", "--dry-run")
    assert [item["node"] for item in would["dropped"]] == [side]
    assert {row["stored"] for row in tree(bench)["tree_rows"]} == {"", "stored"}
    report = bench.json("gc", "--budget", "0")
    assert [item["node"] for item in report["dropped"]] == [side]
    assert report["bytes_after"] < report["bytes_before"]
    assert report["fits"] is False
    states = {row["node"]: row["stored"] for row in tree(bench)["tree_rows"]}
    assert (states[side], states[main]) == ("dropped", "stored")
    refused = bench.json("branch", "last", side, "--resample", "1", code=1)
    assert "kept no more" in refused["error"]["what"]
    bench.json("branch", "last", ask_node(bench), "--answer", "b")
    changes = bench.json("rescore", "last")
    assert len(changes["lost"]) == 1
    assert (changes["same"], changes["failed"]) == (2, 0)
    sound(bench)


def test_nothing_of_a_live_rollout_is_dropped(bench: Machine) -> None:
    request = start_colours(bench)
    report = bench.json("gc", "--budget", "0")
    assert report["dropped"] == []
    assert report["pinned"] == {"of a live rollout": 1}
    bench.json("answer", request, "b")
    assert ended(bench.started[0])[0] == 0


def test_a_state_that_no_log_names_goes_whatever_the_budget(bench: Machine) -> None:
    run_colours(bench)
    images = bench.home / "sandboxes" / "images"
    record = json.loads(next(images.iterdir()).read_text())
    record["labels"]["engine"] = "long-dead"
    (images / "istray.json").write_text(json.dumps(record))
    report = bench.json("gc")
    assert [(item["image"], item["rollout"]) for item in report["dropped"]] == [("istray", None)]
    assert not (images / "istray.json").exists()
    sound(bench)


def test_a_budget_that_is_none_is_refused(bench: Machine) -> None:
    error = bench.json("gc", "--budget", "lots", code=2)["error"]
    assert "10GB" in error["remedy"]


# -- an edited history -----------------------------------------------------------


def test_a_new_session_goes_on_from_an_edited_message(bench: Machine) -> None:
    task = write_task(bench.folder / "colour")
    script = write_script(bench.folder / "says.toml", ['say = "I was told: {prompt}"'])
    words = ("run", str(task), "--agent", "bench-agent", "--agent-script", str(script))
    assert bench.run(*words).returncode == 0
    edit = bench.folder / "edit.toml"
    edit.write_text(f'node = "{leaf(bench, 0)}"\nrole = "message"\ntext = "I chose grey."\n')
    plan = bench.json("branch", "last", "--edit", str(edit), "--dry-run")
    assert plan["fidelity"] == "transcript"
    bench.json("branch", "last", "--edit", str(edit))
    (row,) = [row for row in tree(bench)["tree_rows"] if row["kind"] == "line"]
    assert row["detail"] == "transcript · human · assisted"
    assert "[you said]\nI chose grey." in bench.events("said")[-1]["text"]
    assert "I was told: Do it." not in bench.events("prompted")[-1]["text"]
    assert result(bench)["rewards"]["reward"] == 1.0
    edit.write_text('node = "n1"\nrole = "message"\ntext = "x"\n')
    bench.json("branch", "last", "--edit", str(edit), code=2)
    sound(bench)
