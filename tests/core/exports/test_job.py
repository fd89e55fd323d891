"""A job's summary: unscored and assisted rollouts never bend a mean."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from core.contracts.store import RolloutState
from core.exports.job import job_files, job_row, job_summary
from tests.core.exports.export_helpers import record

CONFIG = {"agent": "bench-agent", "model": None, "sandbox": "local", "concurrency": 2}


def test_scored_unscored_and_assisted_are_counted_apart() -> None:
    summary = job_summary(
        "job-1",
        dict(CONFIG),
        [
            record(id="a", reward=1.0),
            record(id="b", reward=0.5),
            record(id="c", reward=None, state=RolloutState.FAILED, error="died",
                   error_category="agent_crashed"),
            record(id="d", reward=None, state=RolloutState.FAILED, error="no reward",
                   error_category="reward_missing"),
            record(id="e", reward=None, state=RolloutState.INTERRUPTED),
            record(id="f", reward=0.0, assisted=True),
        ],
    )  # fmt: skip
    assert (summary["total"], summary["unassisted"], summary["assisted"]) == (6, 5, 1)
    assert (summary["passed"], summary["failed"], summary["unscored"]) == (1, 1, 3)
    assert (summary["errored"], summary["verifier_errored"], summary["interrupted"]) == (2, 1, 1)
    assert summary["mean_reward"] == 0.75
    assert summary["assisted_mean_reward"] == 0.0
    assert (summary["score"], summary["score_ratio"]) == ("20.0%", 0.2)
    assert summary["score_excl_errors_ratio"] == 0.5
    assert summary["error_categories"] == {"agent_crashed": 1, "reward_missing": 1}


def test_a_mean_over_nothing_is_null_and_not_0() -> None:
    summary = job_summary("job-1", {}, [record(reward=None, state=RolloutState.FAILED)])
    assert summary["mean_reward"] is None
    assert summary["score_excl_errors"] is None
    assert job_summary("job-1", {}, [])["score_ratio"] is None


def test_a_pass_is_the_full_reward_of_the_tasks_own_range() -> None:
    records = [record(id="a", reward=5.0), record(id="b", reward=10.0)]
    summary = job_summary("job-1", {}, records, full_reward={"a": 10.0, "b": 10.0})
    assert (summary["passed"], summary["failed"]) == (1, 1)


def test_a_row_of_an_unscored_rollout_has_a_null_reward() -> None:
    row = job_row(record(reward=None, state=RolloutState.FAILED, error="x", error_category="y"))
    assert row["reward"] is None
    assert row["is_completed"] is False
    assert row["error"] == {"error": "y", "error_chain_str": "x"}
    assert row["elapsed_sec"] == 9.0


def test_both_files_hold_every_rollout_once() -> None:
    files = job_files("job-1", dict(CONFIG), [record(id="a"), record(id="b", reward=0.0)])
    rows = [json.loads(line) for line in files["results.jsonl"].splitlines()]
    assert [row["rollout_id"] for row in rows] == ["a", "b"]
    assert json.loads(files["summary.json"])["total"] == 2


rewards = st.one_of(st.none(), st.floats(-1, 1))


@given(st.lists(st.tuples(rewards, st.booleans()), max_size=12))
def test_the_counts_always_add_up(rollouts: list[tuple[float | None, bool]]) -> None:
    records = [
        record(id=str(i), reward=reward, assisted=assisted)
        for i, (reward, assisted) in enumerate(rollouts)
    ]
    summary = job_summary("job-1", {}, records)
    counts = [summary[name] for name in ("passed", "failed", "unscored", "assisted")]
    assert sum(count for count in counts if isinstance(count, int)) == len(records)
    mean = summary["mean_reward"]
    known = [reward for reward, assisted in rollouts if reward is not None and not assisted]
    assert (mean is None) == (not known)
