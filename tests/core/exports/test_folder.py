"""The result folder: upstream's files and keys, one record per thing, never a false 0."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.store import RolloutState
from core.contracts.values import JsonObject
from core.exports.folder import rollout_files, safe_name, trajectory_lines
from core.exports.view import rollout_view
from core.kernel import events as ev
from core.kernel.tree import Tree
from tests.core.exports.export_helpers import branched, record, started, whole_run


def files_of(tree: Tree, **changes: object) -> dict[str, bytes]:
    return rollout_files(rollout_view(tree, record(**changes)))


def result_of(files: dict[str, bytes]) -> JsonObject:
    loaded: JsonObject = json.loads(files["result.json"])
    return loaded


def lines_of(data: bytes) -> list[JsonObject]:
    return [json.loads(line) for line in data.decode().splitlines()]


def test_the_main_lines_files_stand_where_upstream_reads_them() -> None:
    assert set(files_of(whole_run())) == {
        "result.json",
        "timing.json",
        "config.json",
        "prompts.json",
        "rewards.jsonl",
        "trajectory/acp_trajectory.jsonl",
        "verifier/test-stdout.txt",
        "verifier/reward.txt",
    }


def test_each_thing_is_one_record_in_its_order() -> None:
    records = lines_of(files_of(whole_run())["trajectory/acp_trajectory.jsonl"])
    assert [item["type"] for item in records] == [
        "user_message",
        "agent_thought",
        "tool_call",
        "permission",
        "ask_user",
        "agent_message",
    ]
    assert records[1]["text"] == "Let me look."
    assert records[2] == {
        "type": "tool_call",
        "tool_call_id": "t1",
        "kind": "execute",
        "title": "curl orders",
        "status": "completed",
        "content": [],
        "raw_input": {"command": "curl"},
        "raw_output": {"text": "a\u2028b"},
        "node": records[1]["node"],
    }
    assert records[5]["text"] == "It is on its way."


def test_the_question_and_its_answer_are_in_the_trajectory() -> None:
    asked = lines_of(files_of(whole_run())["trajectory/acp_trajectory.jsonl"])[4]
    assert asked["question"] == "Refund or replace?"
    assert asked["answer"] == {
        "action": "accept",
        "content": {"remedy": "replace"},
        "actor": "ann",
        "via": "cli",
        "seconds": 2.5,
    }


def test_the_prompt_stands_in_the_trajectory_once() -> None:
    data = files_of(whole_run())["trajectory/acp_trajectory.jsonl"]
    assert data.count(b"Settle the customer's complaint.") == 1
    assert json.loads(files_of(whole_run())["prompts.json"]) == ["Settle the customer's complaint."]


def test_the_verifier_is_given_the_same_lines_up_to_its_node() -> None:
    tree = whole_run()
    leaf = tree.main_leaf
    assert leaf is not None
    whole = files_of(tree)["trajectory/acp_trajectory.jsonl"]
    assert trajectory_lines(leaf) == whole
    parent = leaf.parent
    assert parent is not None
    assert whole.startswith(trajectory_lines(parent))
    assert len(trajectory_lines(parent)) < len(whole)


def test_a_scored_rollout_says_its_reward_with_range_and_items() -> None:
    files = files_of(whole_run())
    result = result_of(files)
    assert result["rewards"] == {
        "reward": 1.0,
        "items": {"order": 1.0},
        "space": "output",
        "granularity": "terminal",
        "range": [0.0, 1.0],
        "hardened": True,
        "verifier_digest": "sha256:v",
    }
    assert (result["error"], result["verifier_error"], result["outcome"]) == (None, None, "scored")
    assert (result["n_tool_calls"], result["n_prompts"], result["n_questions"]) == (1, 1, 1)
    assert result["partial_trajectory"] is False
    assert files["verifier/reward.txt"] == b"1.0\n"
    assert files["verifier/test-stdout.txt"] == b"2 passed\n"


def test_every_reward_record_is_tagged_and_the_step_is_found() -> None:
    signal, reward = lines_of(files_of(whole_run())["rewards.jsonl"])
    assert (signal["type"], signal["space"], signal["step_index"]) == ("process", "action", 0)
    assert signal["meta"] == {"reason": "it asked"}
    assert (reward["type"], reward["value"], reward["tag"]) == ("terminal", 1.0, "reward")
    assert str(reward["ts"]).endswith("+00:00")


def test_an_unscored_rollout_has_null_rewards_and_no_reward_file() -> None:
    files = files_of(whole_run(reward=None), reward=None, state=RolloutState.FAILED)
    result = result_of(files)
    assert result["rewards"] is None
    assert result["verifier_error"] == "the verifier wrote no reward"
    assert result["verifier_error_category"] == "reward_missing"
    assert result["error"] is None
    assert files["rewards.jsonl"] == b""
    assert "verifier/reward.txt" not in files
    assert files["verifier/x.txt"] == b"?"
    assert b'"reward": 0' not in b"".join(files.values())


def test_a_negative_reward_keeps_its_value() -> None:
    files = files_of(whole_run(reward=-1.0))
    assert files["verifier/reward.txt"] == b"-1.0\n"
    assert lines_of(files["rewards.jsonl"])[-1]["value"] == -1.0


def test_an_agents_failure_is_no_verifiers_failure() -> None:
    log = started()
    log.add(ev.Prompted("Settle it.", "task"))
    log.add(ev.LineEnded("failed", "the agent died", "agent_crashed"))
    log.add(ev.RolloutEnded("failed", "the agent died", "agent_crashed", 1.0))
    result = result_of(files_of(log.tree(), state=RolloutState.FAILED, reward=None))
    assert (result["error"], result["error_category"]) == ("the agent died", "agent_crashed")
    assert result["verifier_error"] is None
    assert result["partial_trajectory"] is True
    assert result["trajectory_source"] == "partial_acp"


def test_a_rollout_that_failed_before_its_agent_still_has_a_folder() -> None:
    log = started()
    del log.events[1:]
    log.add(ev.RolloutEnded("failed", "no sandbox", "sandbox_unavailable", 0.5))
    files = files_of(log.tree(), state=RolloutState.FAILED, reward=None)
    result = result_of(files)
    assert result["rewards"] is None
    assert result["error_category"] == "sandbox_unavailable"
    assert files["trajectory/acp_trajectory.jsonl"] == b""
    assert json.loads(files["prompts.json"]) == []


def test_a_time_out_ends_the_trajectory_and_names_the_pending_calls() -> None:
    log = started()
    log.add(ev.Prompted("Settle it.", "task"))
    log.add(ev.StepStarted("updates"))
    log.add(ev.ToolChanged("t9", "sleep", "execute", "in_progress"))
    log.add(ev.TurnEnded("timeout", 1, 30.0))
    log.add(ev.LineEnded("failed", "the agent used up its 30 s", "agent_timeout"))
    records = lines_of(files_of(log.tree())["trajectory/acp_trajectory.jsonl"])
    assert records[-1]["type"] == "agent_timeout"
    assert records[-1]["pending_tool_call_ids"] == ["t9"]


def test_other_lines_have_the_same_files_in_folders_of_their_own() -> None:
    files = files_of(branched())
    assert {name for name in files if name.startswith("lines/1/")} == {
        "lines/1/line.json",
        "lines/1/prompts.json",
        "lines/1/rewards.jsonl",
        "lines/1/trajectory/acp_trajectory.jsonl",
        "lines/1/verifier/test-stdout.txt",
        "lines/1/verifier/reward.txt",
    }
    assert result_of(files)["rewards"]["reward"] == 1.0  # type: ignore[call-overload, index]
    facts = json.loads(files["lines/1/line.json"])
    assert (facts["fidelity"], facts["assisted"]) == ("exact", True)
    assert facts["rewards"]["reward"] == 0.0


def test_each_line_tells_its_own_answer_to_the_shared_question() -> None:
    files = files_of(branched())
    main = lines_of(files["trajectory/acp_trajectory.jsonl"])[1]
    child = lines_of(files["lines/1/trajectory/acp_trajectory.jsonl"])[1]
    assert main["node"] == child["node"]
    assert main["answer"]["content"] == {"remedy": "replace"}  # type: ignore[call-overload, index]
    assert child["answer"]["content"] == {"remedy": "refund"}  # type: ignore[call-overload, index]


def test_a_line_on_which_nothing_happened_yet_borrows_no_verdict() -> None:
    log = started()
    prompt = log.add(ev.Prompted("Settle it.", "task"))
    step = log.add(ev.StepStarted("updates"))
    log.add(scored_step(step))
    log.add(ev.LineStarted(step, {"kind": "resample"}), line=1)
    files = files_of(log.tree())
    assert prompt
    assert json.loads(files["lines/1/line.json"])["rewards"] is None
    assert "lines/1/verifier/reward.txt" not in files


def scored_step(node: str) -> ev.Scored:
    return ev.Scored(node, 1.0, {}, [], "output", "terminal", [0.0, 1.0], "sha256:v", True, "1")


def test_times_have_upstreams_keys_and_absent_phases_are_absent() -> None:
    times = json.loads(files_of(whole_run())["timing.json"])
    assert times == {
        "acp_connect": 0.2,
        "agent_setup": 0.2,
        "agent_execution": 5.0,
        "human_wait": 2.5,
        "agent_without_human_wait": 2.5,
        "harden_before_verify": {"drain": 0.1, "total": 0.25},
        "verifier": 1.0,
        "agent_stop_to_reward": 1.25,
        "total": 9.0,
    }


def test_the_config_is_saved_in_every_result() -> None:
    config = json.loads(files_of(whole_run())["config.json"])
    assert config["task_path"] == "/tasks/refund"
    assert config["seed"] == 0
    assert config["environment"] == "local"


def test_times_are_written_with_their_zone() -> None:
    result = result_of(files_of(whole_run()))
    assert result["started_at"] == "2023-11-14T22:13:20.000+00:00"


def test_files_are_lines_for_every_reader_whatever_the_agent_printed() -> None:
    data = files_of(whole_run())["trajectory/acp_trajectory.jsonl"]
    assert data.isascii()
    assert len(data.decode().splitlines()) == data.count(b"\n")


def test_tokens_that_nobody_counted_are_unknown_and_not_0() -> None:
    assert result_of(files_of(whole_run()))["agent_result"] == {
        "n_input_tokens": 120,
        "n_output_tokens": 30,
        "cost_usd": 0.5,
        "usage_source": "agent",
    }
    unknown = result_of(files_of(branched()))["agent_result"]
    assert unknown == {
        "n_input_tokens": None,
        "n_output_tokens": None,
        "cost_usd": None,
        "usage_source": None,
    }


def test_a_number_that_is_not_finite_becomes_null() -> None:
    view = rollout_view(whole_run(), record())
    files = rollout_files(replace(view, timing={"total": float("nan"), "parts": [float("inf")]}))
    assert json.loads(files["timing.json"]) == {"total": None, "parts": [None]}


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("test-stdout.txt", "test-stdout.txt"),
        ("sub/ctrf.json", "sub/ctrf.json"),
        ("/etc/passwd", "etc/passwd"),
        ("../../etc/passwd", None),
        ("..", None),
        ("", None),
        ("a\\..\\b", None),
        ("a b\n.txt", "a_b_.txt"),
        ("x" * 300, None),
    ],
)
def test_a_verifiers_file_name_stays_inside_the_folder(name: str, safe: str | None) -> None:
    assert safe_name(name) == safe


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=6))
def test_no_two_verifier_files_collide_or_nest(logs: dict[str, str]) -> None:
    view = rollout_view(whole_run(), record())
    assert view.main is not None
    names = [
        name
        for name in rollout_files(replace(view, main=replace(view.main, logs=logs)))
        if name.startswith("verifier/") and name != "verifier/reward.txt"
    ]
    for name in names:
        assert not any(other.startswith(f"{name}/") for other in names)


def test_a_path_of_3000_steps_is_written_whole() -> None:
    log = started()
    log.add(ev.Prompted("Settle it.", "task"))
    for number in range(3000):
        log.add(ev.StepStarted("updates"))
        log.add(ev.Said(f"step {number}"))
    records = lines_of(files_of(log.tree())["trajectory/acp_trajectory.jsonl"])
    assert len(records) == 3001
    assert records[-1]["text"] == "step 2999"
