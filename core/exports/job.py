"""A job's two files, from the records of its rollouts. Pure.

A rollout without a verdict counts as unscored and never as a 0. Rollouts that
a person helped are counted apart and stay out of every mean and ratio. A
ratio over nothing is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from core.contracts.store import RolloutRecord, RolloutState
from core.contracts.values import JsonObject
from core.exports.encode import json_file, json_lines, moment
from core.exports.view import is_verifier_error


def job_files(
    job: str,
    config: JsonObject,
    records: Sequence[RolloutRecord],
    *,
    full_reward: Mapping[str, float] | None = None,
) -> dict[str, bytes]:
    """``summary.json`` and ``results.jsonl``.

    ``full_reward`` gives, by rollout id, the reward that is a pass where the
    task's range does not end at 1.
    """
    summary = job_summary(job, config, records, full_reward=full_reward)
    return {
        "summary.json": json_file(summary),
        "results.jsonl": json_lines(job_row(record) for record in records),
    }


def job_summary(
    job: str,
    config: JsonObject,
    records: Sequence[RolloutRecord],
    *,
    full_reward: Mapping[str, float] | None = None,
) -> JsonObject:
    full = full_reward or {}
    alone = [record for record in records if not record.assisted]
    helped = [record for record in records if record.assisted]
    rewards = [record.reward for record in alone if record.reward is not None]
    passed = sum(1 for r in alone if r.reward is not None and r.reward >= full.get(r.id, 1.0))
    unscored = [record for record in alone if record.reward is None]
    categories = Counter(r.error_category for r in unscored if r.error_category)
    return {
        "job_name": job,
        "agent": config.get("agent"),
        "model": config.get("model"),
        "environment": config.get("sandbox"),
        "concurrency": config.get("concurrency"),
        "total": len(records),
        "unassisted": len(alone),
        "assisted": len(helped),
        "scored": len(rewards),
        "passed": passed,
        "failed": len(rewards) - passed,
        "unscored": len(unscored),
        "errored": _count(unscored, RolloutState.FAILED),
        "verifier_errored": sum(1 for r in unscored if is_verifier_error(r.error_category)),
        "cancelled": _count(unscored, RolloutState.CANCELLED),
        "interrupted": _count(unscored, RolloutState.INTERRUPTED),
        "error_categories": dict(categories) or None,
        "score": _percent(passed, len(alone)),
        "score_ratio": _ratio(passed, len(alone)),
        "score_excl_errors": _percent(passed, len(rewards)),
        "score_excl_errors_ratio": _ratio(passed, len(rewards)),
        "mean_reward": _mean(rewards),
        "assisted_mean_reward": _mean([r.reward for r in helped if r.reward is not None]),
        **_span(records),
        "config": config,
    }


def job_row(record: RolloutRecord) -> JsonObject:
    """One rollout as a line of ``results.jsonl``."""
    error: JsonObject | None = None
    if record.error is not None:
        error = {"error": record.error_category, "error_chain_str": record.error}
    return {
        "task_name": record.task,
        "rollout_name": record.name,
        "rollout_id": record.id,
        "reward": record.reward,
        "is_completed": record.state is RolloutState.SCORED,
        "stop_condition": str(record.state),
        "error": error,
        "assisted": record.assisted,
        "attempt": record.attempt,
        "steps": record.steps,
        "elapsed_sec": _elapsed(record),
        "started_at": moment(record.started_at),
        "finished_at": moment(record.ended_at),
        "info": {
            "agent": record.agent,
            "model": record.model,
            "sandbox": record.sandbox,
            "user": record.user,
            "task_digest": record.task_digest,
            "sealed": record.sealed,
        },
    }


def _count(records: Sequence[RolloutRecord], state: RolloutState) -> int:
    return sum(1 for record in records if record.state is state)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _percent(part: int, whole: int) -> str | None:
    return f"{part / whole:.1%}" if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None


def _elapsed(record: RolloutRecord) -> float | None:
    if record.started_at is None or record.ended_at is None:
        return None
    return round(record.ended_at - record.started_at, 3)


def _span(records: Sequence[RolloutRecord]) -> JsonObject:
    started = [record.started_at for record in records if record.started_at is not None]
    ended = [record.ended_at for record in records if record.ended_at is not None]
    first, last = min(started, default=None), max(ended, default=None)
    elapsed = round(last - first, 3) if first is not None and last is not None else None
    return {
        "started_at": moment(first),
        "finished_at": moment(last),
        "elapsed_sec": elapsed,
    }
