"""Branch: which ways go on from a node, and what they will cost. Pure decisions.

A continuation is what makes a child differ. Enumerated options come from one
field of the question; decline and cancel only by name. More than eight children
need a person's word.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from core.contracts.agent import Answer
from core.contracts.errors import CheckpointError, UsageError
from core.contracts.values import Fidelity, JsonObject, JsonValue
from core.kernel.checkpoint import Checkpoint, from_json
from core.kernel.tree import Node, Tree

ContinuationKind: TypeAlias = Literal["answer", "nudge", "resample", "edit"]
Origin: TypeAlias = Literal["option", "sampled", "human"]

MANY = 8


@dataclass(frozen=True, slots=True)
class Continuation:
    """One way on. ``origin`` says how it came to be chosen, for V."""

    kind: ContinuationKind
    label: str
    action: Literal["accept", "decline", "cancel"] = "accept"
    content: JsonObject | None = None
    text: str = ""
    origin: Origin = "option"
    actor: str = ""
    via: str = ""

    def to_json(self) -> JsonObject:
        data: JsonObject = {"kind": self.kind, "label": self.label}
        if self.kind == "answer":
            data |= {"action": self.action, "content": self.content or {}}
        if self.kind == "edit":
            data["edit"] = self.content or {}
        elif self.text:
            data["text"] = self.text
        if self.actor:
            data |= {"actor": self.actor, "via": self.via}
        return data

    @property
    def answer(self) -> Answer:
        """What this child says to the question it was forked at."""
        return Answer(self.action, self.content or {}, actor=self.actor, via=self.via or "branch")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a branch is expected to cost, from what this rollout did so far.

    ``seconds`` and ``tool_calls`` are per child; None when no line has gone on
    from here yet. ``saved_steps`` is the shared prefix that no child repeats.
    """

    children: int
    seconds: float | None
    tool_calls: int | None
    tokens: int | None
    new_bytes: int
    saved_steps: int
    saved_tool_calls: int


def options_of(node: Node, *, actor: str = "", via: str = "") -> list[Continuation]:
    """One continuation per enumerated option of the question's first such field.

    Raises UsageError when the node asks nothing, or nothing with options.
    """
    fields = _fields(node)
    for field in fields:
        options = cast("list[JsonObject]", field.get("options") or [])
        if options:
            base = {
                str(item["name"]): item["default"]
                for item in fields
                if item is not field and item.get("default") is not None
            }
            return [_option(field, option, base, actor, via) for option in options]
    raise UsageError(
        "this question has no enumerated options",
        where=f"node {node.id}",
        remedy="Name the answers: --answer A --answer B",
    )


def resamples(n: int, *, actor: str = "", via: str = "") -> list[Continuation]:
    """``n`` more tries of the same continuation, each with a seed of its own."""
    if n < 1:
        raise UsageError(f"cannot resample {n} times", remedy="Give 1 or more")
    return [
        Continuation("resample", f"again {index}", origin="sampled", actor=actor, via=via)
        for index in range(1, n + 1)
    ]


def check_many(continuations: Sequence[Continuation], *, confirmed: bool) -> None:
    """Raises UsageError for more than eight children that nobody confirmed, or none at all."""
    if not continuations:
        raise UsageError("a branch needs at least one way on", remedy="Give --options or --answer")
    if len(continuations) > MANY and not confirmed:
        raise UsageError(
            f"this would start {len(continuations)} children",
            remedy=f"Say --yes for more than {MANY}",
        )


def checkpoint_of(tree: Tree, node_id: str) -> Checkpoint:
    """The checkpoint to branch ``node_id`` from.

    Raises CheckpointError naming the nearest ancestor that has one.
    """
    node = tree.nodes.get(node_id)
    if node is None:
        raise UsageError(
            f"there is no node {node_id!r} in this rollout", remedy="See them with `bench show`"
        )
    if node.checkpoint is not None:
        return from_json(node.checkpoint.record)
    if node.dropped:
        raise CheckpointError(
            f"the state of node {node_id} is kept no more: {node.dropped}",
            where=f"rollout {tree.rollout}",
            remedy="Choose another node, or run the task again",
        )
    near = next((item.id for item in reversed(node.path) if item.checkpoint is not None), None)
    raise CheckpointError(
        f"nothing was captured at node {node_id}",
        where=f"rollout {tree.rollout}",
        remedy=f"Branch from {near}, the nearest before it"
        if near
        else "No node before it has one",
    )


def check_fork(checkpoint: Checkpoint, node: Node, continuations: Sequence[Continuation]) -> None:
    """Raises CheckpointError or UsageError when these children cannot be forked here."""
    pending = checkpoint.session is not None and checkpoint.session.pending_ask
    for item in continuations:
        if item.kind == "answer" and node.kind != "ask":
            raise UsageError(
                f"node {node.id} asks nothing, so there is nothing to answer",
                remedy="Use --nudge or --resample here",
            )
        if item.kind == "nudge" and node.kind in ("ask", "root"):
            raise UsageError(
                f"node {node.id} is not the end of a turn",
                remedy="A nudge goes on from the end of a turn; answer a question with --answer",
            )
    # An edited history is told to a new session: the captured one is not needed.
    told = all(item.kind == "edit" for item in continuations)
    if node.kind == "ask" and not pending and not told:
        why = "; ".join(checkpoint.not_captured) or "its session was not captured"
        raise CheckpointError(
            f"the question at {node.id} cannot be forked: {why}",
            remedy="Use an agent that can be captured at a question, or branch at a turn's end",
        )
    if node.kind not in ("ask", "root") and checkpoint.session is None and not told:
        why = "; ".join(checkpoint.not_captured) or "its agent had ended"
        raise CheckpointError(
            f"no agent can go on from node {node.id}: {why}",
            remedy="Use an agent that can resume its sessions, or branch from the root",
        )
    # What the session lacks is in the agent's words; only the environment's count here.
    missing = checkpoint.state.not_captured if checkpoint.state else ()
    refused = [why for why in missing if "memory" in why]
    if refused:
        raise CheckpointError(
            f"node {node.id} cannot be forked: {refused[0]}, which a fork would lose",
            remedy="Keep the service's state in files or SQLite and declare it in the manifest",
        )


def fidelity_of(checkpoint: Checkpoint, node: Node, kind: ContinuationKind = "answer") -> Fidelity:
    """How exact the children's sessions will be. At the root a fresh start is exact."""
    if kind == "edit":
        return Fidelity.TRANSCRIPT
    return Fidelity.EXACT if node.kind == "root" else checkpoint.fidelity


def estimate(tree: Tree, node: Node, children: int, checkpoint: Checkpoint) -> Cost:
    """From lines that went on from this node, else from the main line's rest."""
    below = [item for item in node.subtree if item is not node]
    leaves = [item for item in below if not item.child_ids and item.ended_at is not None]
    spans = [item.ended_at - node.at for item in leaves if item.ended_at is not None]
    paths = [
        sum(
            len(step.tool_calls)
            for step in itertools.takewhile(lambda step: step is not node, reversed(leaf.path))
        )
        for leaf in leaves
    ]
    line = tree.lines.get(node.line)
    used = line.usage.get("used") if line else None
    return Cost(
        children=children,
        seconds=sum(spans) / len(spans) if spans else None,
        tool_calls=round(sum(paths) / len(paths)) if paths else None,
        tokens=used if isinstance(used, int) else None,
        new_bytes=checkpoint.image.new_bytes,
        saved_steps=children * sum(item.kind == "step" for item in node.path),
        saved_tool_calls=children * sum(len(item.tool_calls) for item in node.path),
    )


def _fields(node: Node) -> list[JsonObject]:
    found = node.question.get("fields")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _option(
    field: JsonObject, option: JsonObject, base: dict[str, JsonValue], actor: str, via: str
) -> Continuation:
    value: JsonValue = option["value"]
    chosen: JsonValue = [value] if field.get("kind") == "multi" else value
    return Continuation(
        "answer",
        label=str(option.get("label") or value),
        content={**base, str(field["name"]): chosen},
        origin="option",
        actor=actor,
        via=via,
    )
