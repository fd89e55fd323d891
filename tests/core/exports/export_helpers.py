"""A rollout as its log tells it: real events, folded by the real fold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from core.contracts.store import Event, RolloutRecord, RolloutState
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.kernel.replay import fold
from core.kernel.tree import Tree

START = 1_700_000_000.0
QUESTION: JsonObject = {
    "question": "Refund or replace?",
    "source": "elicitation",
    "fields": [
        {
            "name": "remedy",
            "title": "Remedy",
            "kind": "choice",
            "options": [
                {"value": "refund", "label": "Refund"},
                {"value": "replace", "label": "Replace"},
            ],
        }
    ],
}


@dataclass
class Log:
    """Numbers events as a store does."""

    events: list[Event] = field(default_factory=list)
    line_seqs: dict[int, int] = field(default_factory=dict)

    def add(self, body: ev.Body, *, line: int = 0) -> str:
        """Append; returns the id of the node this event makes, if it makes one."""
        draft = ev.encode(body, line=line)
        seq = len(self.events) + 1
        self.line_seqs[line] = self.line_seqs.get(line, 0) + 1
        payload: JsonObject = json.loads(json.dumps(draft.payload))
        self.events.append(
            Event(
                "rollout-1", seq, 1, 1, line, self.line_seqs[line],
                draft.kind, draft.version, START + seq, payload,
            )
        )  # fmt: skip
        return f"n{seq}"

    def tree(self) -> Tree:
        return fold(self.events, Tree())


def started() -> Log:
    log = Log()
    log.add(ev.RolloutStarted("desk/refund", "sha256:1", "bench-agent", "local", "scripted", {}))
    log.add(ev.LineStarted(None, {}, main=True))
    return log


def scored(node: str, reward: float, **more: JsonValue) -> ev.Scored:
    logs: JsonObject = {"test-stdout.txt": "2 passed\n", "reward.txt": f"{reward}\n"}
    return ev.Scored(
        node=node,
        reward=reward,
        items={"order": reward},
        events=[
            {
                "source": "asking",
                "value": 1.0,
                "space": "action",
                "granularity": "step",
                "node": more.get("step"),
                "reason": "it asked",
            }
        ],
        space="output",
        granularity="terminal",
        range=[0.0, 1.0],
        verifier_digest="sha256:v",
        hardened=True,
        raw=str(reward),
        logs=logs,
    )


def whole_run(*, reward: float | None = 1.0) -> Tree:
    """A prompt, a step with a tool and a permission, a question answered, a last message."""
    log = started()
    log.add(ev.PhaseEnded("connect", 0.2, "ok"))
    log.add(ev.Prompted("Settle the customer's complaint.", "task"))
    step = log.add(ev.StepStarted("updates"))
    log.add(ev.Thought("Let me "))
    log.add(ev.Thought("look."))
    log.add(ev.ToolChanged("t1", "curl orders", "execute", "in_progress", {"command": "curl"}))
    log.add(ev.PermissionSettled("Run curl?", [{"value": "ok"}], "ok", "auto", "", "t1"))
    log.add(ev.ToolChanged("t1", status="completed", raw_output={"text": "a\u2028b"}))
    log.add(ev.StepEnded())
    asked = log.add(ev.Asked(0, QUESTION))
    log.add(ev.Answered(asked, "accept", {"remedy": "replace"}, "ann", "cli", 2.5))
    log.add(ev.StepStarted("updates"))
    log.add(ev.Said("It is on "))
    log.add(ev.Said("its way."))
    log.add(ev.StepEnded())
    log.add(ev.TurnEnded("end_turn", 1, 3.0))
    log.add(ev.UsageChanged(input_tokens=120, output_tokens=30, cost=0.5, currency="USD"))
    log.add(ev.PhaseEnded("execute", 5.0, "ok", parts={"human_wait": 2.5}))
    log.add(ev.PhaseEnded("quiesce", 0.25, "ok", parts={"drain": 0.1}))
    log.add(ev.PhaseEnded("verify", 1.0, "ok"))
    leaf = log.tree().lines[0].leaf_id
    if reward is not None:
        log.add(scored(leaf, reward, step=step))
        log.add(ev.LineEnded("scored"))
        log.add(ev.RolloutEnded("scored", seconds=9.0))
    else:
        log.add(
            ev.ScoringFailed(leaf, "the verifier wrote no reward", "reward_missing", {"x.txt": "?"})
        )
        log.add(ev.LineEnded("failed", "the verifier wrote no reward", "reward_missing"))
        log.add(ev.RolloutEnded("failed", "the verifier wrote no reward", "reward_missing", 9.0))
    return log.tree()


def branched() -> Tree:
    """The main line answered ``replace``; line 1, a child of the question, ``refund``."""
    log = started()
    log.add(ev.Prompted("Settle it.", "task"))
    asked = log.add(ev.Asked(0, QUESTION))
    log.add(ev.Answered(asked, "accept", {"remedy": "replace"}, "ann", "cli", 1.0))
    main = log.add(ev.StepStarted("updates"))
    log.add(ev.Said("Replaced."))
    log.add(ev.StepEnded())
    log.add(scored(main, 1.0))
    log.add(ev.LineEnded("scored"))
    log.add(
        ev.LineStarted(
            asked,
            {"kind": "answer", "action": "accept", "content": {"remedy": "refund"}, "actor": "bo"},
            fidelity="exact",
            assisted=True,
        ),
        line=1,
    )
    child = log.add(ev.StepStarted("updates"), line=1)
    log.add(ev.Said("Refunded."), line=1)
    log.add(ev.StepEnded(), line=1)
    log.add(scored(child, 0.0), line=1)
    log.add(ev.LineEnded("scored"), line=1)
    log.add(ev.LineStarted(asked, {"kind": "resample"}, fidelity="exact"), line=2)
    log.add(ev.RolloutEnded("scored", seconds=4.0))
    return log.tree()


RECORD = RolloutRecord(
    id="rollout-1",
    job="job-1",
    name="refund__0badcafe",
    task="desk/refund",
    task_digest="sha256:1",
    agent="bench-agent",
    model=None,
    sandbox="local",
    user="scripted",
    state=RolloutState.SCORED,
    phase="teardown",
    owner=None,
    term=1,
    attempt=1,
    lease_until=0.0,
    head_seq=9,
    steps=2,
    waiting=0,
    reward=1.0,
    error=None,
    error_category=None,
    assisted=False,
    folder="/jobs/job-1/refund__0badcafe",
    sealed=None,
    config={"path": "/tasks/refund", "agent": "bench-agent", "seed": 0},
    revision=1,
    created_at=START,
    started_at=START,
    ended_at=START + 9,
)


def record(**changes: object) -> RolloutRecord:
    return replace(RECORD, **changes)  # type: ignore[arg-type]
