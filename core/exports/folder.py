"""The result folder of one rollout, in upstream's shape.

The main line's files stand where upstream's tools look for them; every other
line has the same files under ``lines/<n>/``. A rollout without a verdict has
``rewards: null`` and no ``reward.txt``: unscored is never a 0. Pure: a view in,
relative paths and bytes out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from core.contracts.reward import VerifyResult
from core.contracts.store import RolloutState
from core.contracts.values import JsonObject, JsonValue
from core.exports.encode import json_file, json_lines, moment
from core.exports.lines import trajectory_lines, trajectory_records
from core.exports.view import LineView, RolloutView

__all__ = ["rollout_files", "trajectory_lines"]


def rollout_files(view: RolloutView) -> dict[str, bytes]:
    """Every file of the folder but the sealed log, by relative path."""
    files = {
        "result.json": json_file(_result(view)),
        "timing.json": json_file(view.timing),
        "config.json": json_file(_config(view)),
    }
    if view.main is not None:
        files |= _line_files(view.main, "")
    else:
        files["prompts.json"] = json_file([])
        files["trajectory/acp_trajectory.jsonl"] = b""
    for line in view.others:
        under = f"lines/{line.number}/"
        files[f"{under}line.json"] = json_file(_line_facts(line))
        files |= _line_files(line, under)
    return files


def _line_files(line: LineView, under: str) -> dict[str, bytes]:
    files = {
        f"{under}prompts.json": json_file(list(line.trajectory.prompts)),
        f"{under}rewards.jsonl": json_lines(_reward_records(line)),
        f"{under}trajectory/acp_trajectory.jsonl": json_lines(_records(line)),
    }
    for name, text in _log_files(line.logs).items():
        files[f"{under}verifier/{name}"] = text.encode("utf-8", "backslashreplace")
    if line.verdict is not None:
        raw = line.verdict.raw if line.verdict.raw.strip() else repr(line.verdict.reward)
        files.setdefault(f"{under}verifier/reward.txt", f"{raw.strip()}\n".encode())
    return files


def _log_files(logs: Mapping[str, str]) -> dict[str, str]:
    """Logs by a name that is safe and free: no two alike, none a folder of another."""
    files: dict[str, str] = {}
    for name, text in logs.items():
        safe = safe_name(name)
        if safe is None:
            continue
        if any(f"{safe}/".startswith(f"{o}/") or o.startswith(f"{safe}/") for o in files):
            safe = f"{len(files) + 1}-{safe.replace('/', '_')}"
        files[safe] = text
    return files


def safe_name(name: str) -> str | None:
    """A verifier's file name that stays inside the folder; None for one that cannot."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(name) > 200:
        return None
    return "/".join(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts)


def _records(line: LineView) -> list[JsonObject]:
    records = trajectory_records(line.trajectory)
    if line.stop_reason == "timeout":
        records.append(
            {
                "type": "agent_timeout",
                "reason": line.error or "the agent used up its time",
                "pending_tool_call_ids": _pending(records),
                "terminal_trajectory_complete": False,
            }
        )
    return records


def _pending(records: list[JsonObject]) -> list[JsonValue]:
    return [
        record["tool_call_id"]
        for record in records
        if record["type"] == "tool_call" and record["status"] in ("pending", "in_progress")
    ]


def _result(view: RolloutView) -> JsonObject:
    record, main = view.record, view.main
    records = trajectory_records(main.trajectory) if main is not None else []
    verifier_failed = view.verifier_failed
    return {
        "task_name": record.task,
        "rollout_name": record.name,
        "rollout_id": record.id,
        "rewards": _rewards(main.verdict) if main is not None else None,
        "outcome": str(record.state) if record.state.final else None,
        "agent": record.agent,
        "agent_name": record.agent,
        "model": record.model,
        "n_tool_calls": sum(1 for item in records if item["type"] == "tool_call"),
        "n_prompts": len(main.trajectory.prompts) if main is not None else 0,
        "n_questions": sum(1 for item in records if item["type"] == "ask_user"),
        "agent_result": _usage(main.usage if main is not None else {}),
        "trajectory_summary": _summary(records, view),
        "error": None if verifier_failed else view.error,
        "error_category": None if verifier_failed else view.error_category,
        "verifier_error": view.error if verifier_failed else None,
        "verifier_error_category": view.error_category if verifier_failed else None,
        "partial_trajectory": _partial(view),
        "trajectory_source": _source(view),
        "assisted": record.assisted,
        "attempt": record.attempt,
        "n_lines": len(view.others) + (main is not None),
        "noise": dict(view.noise),
        "started_at": moment(record.started_at),
        "finished_at": moment(record.ended_at),
        "timing": view.timing,
        "task_digest": record.task_digest,
    }


def _rewards(verdict: VerifyResult | None) -> JsonObject | None:
    if verdict is None:
        return None
    return {
        "reward": verdict.reward,
        "items": dict(verdict.items),
        "space": verdict.space,
        "granularity": verdict.granularity,
        "range": list(verdict.range),
        "hardened": verdict.hardened,
        "verifier_digest": verdict.verifier_digest,
    }


def _usage(usage: Mapping[str, JsonValue]) -> JsonObject:
    """Only what the agent told; None is unknown, never a 0."""
    cost = usage.get("cost")
    told = any(usage.get(name) is not None for name in ("input_tokens", "output_tokens", "cost"))
    return {
        "n_input_tokens": usage.get("input_tokens"),
        "n_output_tokens": usage.get("output_tokens"),
        "cost_usd": cost if usage.get("currency") in (None, "USD") else None,
        "usage_source": "agent" if told else None,
    }


def _summary(records: list[JsonObject], view: RolloutView) -> JsonObject:
    types = Counter(str(record["type"]) for record in records)
    statuses = Counter(str(r["status"]) for r in records if r["type"] == "tool_call")
    known = ("tool_call", "user_message", "agent_message", "agent_thought")
    counts: JsonObject = {f"{name}_steps": types[name] for name in known}
    return {
        "steps": len(records),
        **counts,
        "other_steps": len(records) - sum(types[name] for name in known),
        "event_type_counts": dict(types),
        "tool_call_status_counts": dict(statuses),
        "partial_trajectory": _partial(view),
        "trajectory_source": _source(view),
    }


def _partial(view: RolloutView) -> bool:
    """The agent never came to its own end: a crash, a time-out, a cancel, an interruption."""
    main = view.main
    if main is None or view.record.state in (RolloutState.CANCELLED, RolloutState.INTERRUPTED):
        return True
    return main.stop_reason in (None, "cancelled", "crashed", "timeout")


def _source(view: RolloutView) -> str:
    return "partial_acp" if _partial(view) else "acp"


def _config(view: RolloutView) -> JsonObject:
    record = view.record
    return {
        **record.config,
        "task_path": record.config.get("path", record.task),
        "agent": record.agent,
        "model": record.model,
        "environment": record.sandbox,
        "user": record.user,
        "job": record.job,
        "task_digest": record.task_digest,
        "started_at": moment(record.started_at),
    }


def _reward_records(line: LineView) -> list[JsonObject]:
    """Every tagged signal, then the reward itself; nothing for a line without a verdict."""
    verdict = line.verdict
    if verdict is None:
        return []
    at = moment(line.scored_at)
    places = {node: index for index, node in enumerate(line.steps)}
    records: list[JsonObject] = [
        {
            "ts": at,
            "type": "terminal" if event.granularity == "terminal" else "process",
            "source": event.source,
            "value": event.value,
            "tag": event.space,
            "step_index": places.get(event.node) if event.node else None,
            "space": event.space,
            "granularity": event.granularity,
            "node": event.node,
            "meta": {"reason": event.reason} if event.reason else {},
        }
        for event in verdict.events
    ]
    records.append(
        {
            "ts": at,
            "type": "terminal",
            "source": "verifier",
            "value": verdict.reward,
            "tag": "reward",
            "step_index": None,
            "space": verdict.space,
            "granularity": verdict.granularity,
            "node": line.trajectory.leaf,
            "meta": {
                "items": dict(verdict.items),
                "range": list(verdict.range),
                "raw": verdict.raw,
                "hardened": verdict.hardened,
                "verifier_digest": verdict.verifier_digest,
            },
        }
    )
    return records


def _line_facts(line: LineView) -> JsonObject:
    return {
        "line": line.number,
        "leaf": line.trajectory.leaf,
        "parent": line.parent,
        "continuation": line.continuation,
        "fidelity": line.fidelity,
        "origin": line.origin,
        "assisted": line.assisted,
        "attempt": line.attempt,
        "outcome": line.outcome,
        "stop_reason": line.stop_reason,
        "error": line.error,
        "error_category": line.error_category,
        "rewards": _rewards(line.verdict),
        "agent_result": _usage(line.usage),
    }
