"""Golden logs: what this version writes, kept so that every later one still reads it.

``python -m tests.core.kernel.golden`` writes the logs that do not exist yet. A log
that was released is never written again: add one with a new name instead.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

from core.contracts.store import Event
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.replay import fold
from tests.core.kernel.logs import log, number, summary

FOLDER = Path(__file__).parents[2] / "data" / "golden" / f"v{ev.VERSION}"

QUESTION: JsonObject = {
    "question": "Which of the two orders?",
    "source": "elicitation",
    "fields": [
        {
            "name": "order",
            "title": "Order",
            "kind": "choice",
            "required": True,
            "options": [
                {"value": "A-17", "label": "A-17, 3 June"},
                {"value": "A-21", "label": "A-21, 9 June"},
            ],
        }
    ],
}


def scored(node: str, reward: float) -> ev.Scored:
    return ev.Scored(
        node=node,
        reward=reward,
        items={"refunded": reward},
        events=[
            {
                "source": "verifier/test.sh",
                "value": reward,
                "space": "output",
                "granularity": "terminal",
                "node": node,
                "reason": "the right order was refunded",
            }
        ],
        space="output",
        granularity="terminal",
        range=[0.0, 1.0],
        verifier_digest="sha256:v1",
        hardened=True,
        raw=f"{reward}\n",
        seconds=0.25,
        logs={"stdout": "checked\n"},
    )


def phase(name: str, outcome: str = "ok") -> list[tuple[int, ev.Body]]:
    parts: JsonObject = {"drain": 0.1} if name == "quiesce" else {}
    error = None if outcome == "ok" else "it took too long"
    return [(0, ev.PhaseStarted(name)), (0, ev.PhaseEnded(name, 0.5, outcome, error, parts))]


def asked_and_branched() -> list[Event]:
    """A whole rollout: a question, its answer, a branch at it, two verdicts."""
    return log(
        *phase("sandbox"),
        *phase("environment"),
        *phase("readiness"),
        (0, ev.LineStarted(None, {"kind": "start"}, seed=7, main=True)),
        *phase("connect"),
        (0, ev.PhaseStarted("execute")),
        (0, ev.Prompted("Refund the order.", "task", "task", "task")),
        (0, ev.StepStarted("updates", skills=["refunds"])),
        (0, ev.Thought("There are two orders.")),
        (0, ev.ToolChanged("t1", "GET /orders", "fetch", "pending", {"path": "/orders"})),
        (0, ev.PermissionSettled("fetch", [{"value": "yes"}], "yes", "auto", "auto", "t1")),
        (0, ev.ToolChanged("t1", status="completed", raw_output=["A-17", "A-21"], content=[])),
        (0, ev.UsageChanged(used=1200, size=200000, cost=0.01, currency="USD")),
        (0, ev.SessionChanged("plan", {"entries": ["look", "ask", "refund"]})),
        (0, ev.NoiseHeard("stdout", "npm WARN", 2)),
        (0, ev.StepEnded()),
        (0, ev.Asked(0, QUESTION, "t1", 60.0)),
        (0, ev.Checkpointed("n22", "image-1", "quiesced", {"image": "image-1", "epoch": 1})),
        (0, ev.Answered("n22", "accept", {"order": "A-17"}, "ann", "cli", 3.5)),
        (0, ev.StepStarted("updates")),
        (0, ev.Said("Refunded A-17.")),
        (0, ev.StepEnded()),
        (0, ev.TurnEnded("end_turn", 1, 9.5)),
        (0, ev.PhaseEnded("execute", 9.75, "ok", None, {"human_wait": 3.5})),
        *phase("quiesce"),
        (0, ev.PhaseStarted("verify")),
        (0, scored("n25", 0.0)),
        (0, ev.PhaseEnded("verify", 0.5, "ok")),
        (0, ev.LineEnded("scored")),
        (
            1,
            ev.LineStarted(
                "n22",
                {
                    "kind": "answer",
                    "label": "A-21",
                    "action": "accept",
                    "content": {"order": "A-21"},
                },
                fidelity="exact",
                origin="option",
                seed=99,
            ),
        ),
        (1, ev.ToolChanged("t2", "POST /refund", "execute", "completed", None, {"ok": True})),
        (1, ev.StepStarted("updates")),
        (1, ev.Said("Refunded A-21.")),
        (1, ev.StepEnded()),
        (1, ev.TurnEnded("end_turn", 1, 2.0)),
        (1, ev.ScoringFailed("n38", "it wrote no reward", "reward_missing", {"stdout": ""})),
        (1, scored("n38", 1.0)),
        (1, ev.LineEnded("scored")),
        (0, scored("n25", 0.5)),
        (1, ev.MainLineSet(1, "restore", "ann")),
        *phase("teardown"),
        (0, ev.RolloutEnded("scored", seconds=15.0)),
        (0, ev.Reopened("engine-2", "ann", "score")),
        (0, ev.RolloutEnded("scored", seconds=16.0)),
    )


def cancelled_and_resumed() -> list[Event]:
    """An attempt that a person cancelled in a dying engine, and the one after it."""
    first = log(
        *phase("sandbox"),
        *phase("environment", "failed"),
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.Prompted("Refund the order.", "task", "task", "task")),
        (0, ev.StepStarted("command")),
        (0, ev.ToolChanged("c1", "sh solve.sh", "execute", "in_progress")),
        (0, ev.NudgeAccepted("q1", "Hurry up.", "ann", "cli")),
        (0, ev.CancelRequested("run", "ann", "cli")),
        (0, ev.LineEnded("interrupted", "its owner died", "interrupted")),
        (0, ev.RolloutEnded("interrupted", "its owner died", "interrupted", 4.0)),
    )
    second: list[tuple[int, ev.Body]] = [
        (1, ev.OwnerChanged("engine-2", "resumed by ann")),
        (1, ev.LineStarted(None, {"kind": "attempt"}, main=True)),
        (1, ev.Prompted("Refund the order.", "task", "task", "task")),
        (1, ev.TurnEnded("end_turn", 1, 0.5)),
        (1, ev.Prompted("Hurry up.", "nudge", "ann", "cli", turn=2, nudge="q1")),
        (1, ev.LineEnded("failed", "the agent ended", "agent_crashed")),
        (1, ev.RolloutEnded("failed", "the agent ended", "agent_crashed", 2.0)),
    ]
    drafts = [ev.encode(body, line=line) for line, body in second]
    return [*first, *number(drafts, after=len(first), attempt=2)]


def paused_and_dropped() -> list[Event]:
    """A person stopped it for a while; later its stored question was deleted for room."""
    return log(
        (0, ev.LineStarted(None, {"kind": "start"}, seed=7, main=True)),
        (0, ev.Prompted("Refund the order.", "task", "task", "task")),
        (0, ev.Paused("ann", "cli")),
        (0, ev.Unpaused("ann", "cli", 12.5)),
        (0, ev.Asked(0, QUESTION, None, None)),
        (0, ev.Checkpointed("n6", "image-1", "quiesced", {"image": "image-1", "epoch": 1})),
        (0, ev.Answered("n6", "accept", {"order": "A-21"}, "ann", "cli", 3.5)),
        (0, ev.TurnEnded("end_turn", 1, 9.5)),
        (0, ev.ScoringFailed("n6", "it wrote no reward", "reward_missing", {"stdout": ""})),
        (0, ev.LineEnded("failed", "it wrote no reward", "reward_missing")),
        (0, ev.RolloutEnded("failed", "it wrote no reward", "reward_missing", 15.0)),
        (0, ev.Reopened("engine-2", "ann", "rescore")),
        (0, scored("n6", 1.0)),
        (0, ev.RolloutEnded("scored", seconds=15.0)),
        (0, ev.CheckpointDropped("n6", "image-1", "the store was over its budget", "ann")),
    )


LOGS = {
    "asked_and_branched": asked_and_branched,
    "cancelled_and_resumed": cancelled_and_resumed,
    "paused_and_dropped": paused_and_dropped,
}


def read(path: Path) -> list[Event]:
    return [Event(**json.loads(line)) for line in path.read_text().splitlines()]


def summary_of(path: Path) -> JsonObject:
    return cast(JsonObject, json.loads(path.with_suffix(".summary.json").read_text()))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in LOGS.items():
        path = FOLDER / f"{name}.jsonl"
        if path.exists():
            continue
        events = make()
        rows = [json.dumps(dataclasses.asdict(event), ensure_ascii=False) for event in events]
        path.write_text("\n".join(rows) + "\n")
        words = json.dumps(summary(fold(events)), indent=1, ensure_ascii=False)
        path.with_suffix(".summary.json").write_text(words + "\n")


if __name__ == "__main__":
    main()
