"""Branching as a service: from a request to children, on a live or an ended rollout.

A live rollout is branched by its owner, so this module is used on both sides:
``args`` travel in a command's row and are read back here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from core.contracts.agent import Answer
from core.contracts.errors import CheckpointError, UsageError
from core.contracts.user import AskContext, UserModel
from core.contracts.values import Fidelity, JsonObject, JsonValue
from core.kernel.backup import answer_key
from core.kernel.branch import (
    Continuation,
    Cost,
    Origin,
    check_fork,
    check_many,
    checkpoint_of,
    estimate,
    fidelity_of,
    options_of,
    resamples,
)
from core.kernel.checkpoint import Checkpoint
from core.kernel.children import Children
from core.kernel.spec import ForkPoint
from core.kernel.tree import Node, Tree
from core.services.editing import Edit, edit_of, edited
from core.services.policy import BranchPolicy, wanted_at_ask, wanted_at_root
from core.users.form import ask_from_json, parse_answer


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """What a person asks for. Exactly one of the ways on must be given."""

    node: str
    all_options: bool = False
    answers: tuple[str, ...] = ()
    nudge: str = ""
    resample: int = 0
    edit: Edit | None = None
    confirmed: bool = False
    main: bool = False
    """Rewind: the one child becomes the main line, and is marked as a person's choice."""

    def to_json(self) -> JsonObject:
        answers: list[JsonValue] = list(self.answers)
        return {
            "node": self.node,
            "all_options": self.all_options,
            "answers": answers,
            "nudge": self.nudge,
            "resample": self.resample,
            "edit": self.edit.to_json() if self.edit else None,
            "confirmed": self.confirmed,
            "main": self.main,
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> BranchRequest:
        answers, resample = data.get("answers"), data.get("resample")
        return cls(
            node=str(data.get("node", "")),
            all_options=bool(data.get("all_options")),
            answers=tuple(str(item) for item in answers) if isinstance(answers, list) else (),
            nudge=str(data.get("nudge", "")),
            resample=resample if isinstance(resample, int) else 0,
            edit=edit_of(data),
            confirmed=bool(data.get("confirmed")),
            main=bool(data.get("main")),
        )


@dataclass(frozen=True, slots=True)
class BranchPlan:
    """A branch that can start: checked, and its cost known."""

    node: Node
    checkpoint: Checkpoint
    continuations: tuple[Continuation, ...]
    cost: Cost
    main: bool = False

    @property
    def fidelity(self) -> Fidelity:
        """Of the children, which are all of one kind."""
        return fidelity_of(self.checkpoint, self.node, self.continuations[0].kind)

    def to_json(self) -> JsonObject:
        labels: list[JsonValue] = [item.label for item in self.continuations]
        missing: list[JsonValue] = list(self.checkpoint.not_captured)
        return {
            "node": self.node.id,
            "checkpoint": self.checkpoint.id,
            "children": labels,
            "fidelity": str(self.fidelity),
            "consistency": self.checkpoint.consistency,
            "not_captured": missing,
            "seconds": self.cost.seconds,
            "tool_calls": self.cost.tool_calls,
            "tokens": self.cost.tokens,
            "bytes": self.cost.new_bytes,
            "saved_tool_calls": self.cost.saved_tool_calls,
        }


async def plan_branch(
    tree: Tree, request: BranchRequest, user: UserModel, *, actor: str, via: str
) -> BranchPlan:
    """What this branch would start. Raises UsageError or CheckpointError, starting nothing."""
    if request.edit is not None:
        return _plan_edit(tree, request, request.edit, actor=actor, via=via)
    node_id = request.node or default_node(tree)
    checkpoint = checkpoint_of(tree, node_id)
    node = tree.nodes[node_id]
    continuations = await _continuations(tree, node, request, user, actor=actor, via=via)
    check_many(continuations, confirmed=request.confirmed)
    if request.main:
        continuations = [rewound(continuations)]
    check_fork(checkpoint, node, continuations)
    cost = estimate(tree, node, len(continuations), checkpoint)
    return BranchPlan(node, checkpoint, tuple(continuations), cost, request.main)


def _plan_edit(
    tree: Tree, request: BranchRequest, edit: Edit, *, actor: str, via: str
) -> BranchPlan:
    if request.all_options or request.answers or request.nudge or request.resample:
        raise UsageError(
            "an edit is one way on by itself", remedy="Give --edit FILE and no other way on"
        )
    if request.node not in ("", edit.node):
        raise UsageError(
            f"the edit is of node {edit.node}, not of {request.node}",
            remedy="Leave NODE out, or name the same one",
        )
    node, checkpoint, way = edited(tree, edit, actor=actor, via=via)
    check_fork(checkpoint, node, [way])
    return BranchPlan(node, checkpoint, (way,), estimate(tree, node, 1, checkpoint))


def rewound(continuations: list[Continuation]) -> Continuation:
    """The one way on of a rewind. Chosen after what came next was seen, so no sample."""
    if len(continuations) != 1:
        raise UsageError(
            f"a rewind goes on in one way, not {len(continuations)}",
            remedy="Give one answer or one nudge, or none",
        )
    item = continuations[0]
    label = "rewound" if item.kind == "resample" else f"rewound: {item.label}"
    return replace(item, label=label, origin="human")


def default_node(tree: Tree) -> str:
    """The question that waits now, else the last one that can be branched."""
    asks = [node for node in tree.nodes.values() if node.kind == "ask" and node.checkpoint]
    waiting = [node for node in asks if node.open]
    if waiting or asks:
        return (waiting or asks)[-1].id
    raise UsageError("no question of this rollout was captured", remedy="Name a node to branch")


def start(children: Children, plan: BranchPlan, tree: Tree, *, seed: int = 0) -> list[int]:
    """Begin the children; their line numbers."""
    line = tree.lines.get(plan.node.line)
    depth = len(tree.ancestry(plan.node.line)) if line else 1
    return children.start(
        plan.checkpoint,
        plan.node,
        plan.continuations,
        seed=seed,
        depth=depth,
        assisted=plan.main or bool(line and line.assisted),
        main=plan.main,
    )


async def _continuations(
    tree: Tree, node: Node, request: BranchRequest, user: UserModel, *, actor: str, via: str
) -> list[Continuation]:
    given = [
        bool(request.all_options),
        bool(request.answers),
        bool(request.nudge),
        request.resample > 0,
    ]
    if sum(given) != 1:
        raise UsageError(
            "a branch needs one kind of way on",
            remedy="Give one of --options all, --answer (repeatable), --nudge, --resample N",
        )
    if request.all_options:
        return options_of(node, actor=actor, via=via)
    if request.answers:
        seen = any(item.verdicts for item in tree.nodes.values())
        return [_typed(node, text, actor, via, seen=seen) for text in request.answers]
    if request.nudge:
        return [
            Continuation("nudge", "nudge", text=request.nudge, origin="human", actor=actor, via=via)
        ]
    if node.kind == "ask":
        if user.name == "human":
            # Their stored answer would be given again, or the owner would wait for it.
            raise UsageError(
                "a person answers this rollout's questions, and is no model to sample",
                where=f"node {node.id}",
                remedy="Name the answers: --answer A --answer B",
            )
        return [await _sampled(tree, node, user, index) for index in range(1, request.resample + 1)]
    return resamples(request.resample, actor=actor, via=via)


def _typed(node: Node, text: str, actor: str, via: str, *, seen: bool) -> Continuation:
    """An answer a person named. Once an outcome could be seen it is a choice, not a sample."""
    if node.kind != "ask":
        raise UsageError(
            f"node {node.id} asks nothing, so there is nothing to answer",
            remedy="Use --nudge or --resample here",
        )
    answer = parse_answer(ask_from_json(node.question), text, actor=actor, via=via)
    option = _option_like(node, answer)
    return _from_answer(
        answer,
        option.label if option else text,
        origin="option" if option and not seen else "human",
    )


async def _sampled(tree: Tree, node: Node, user: UserModel, index: int) -> Continuation:
    """One more answer from the user model to the same question."""
    context = AskContext(tree.rollout, node.line, node.id, node.ask_index)
    answer = await user.answer(ask_from_json(node.question), context)
    return _from_answer(answer, f"sample {index}", origin="sampled")


def _from_answer(answer: Answer, label: str, *, origin: Origin) -> Continuation:
    return Continuation(
        "answer",
        label=label,
        action=answer.action,
        content=dict(answer.content),
        origin=origin,
        actor=answer.actor,
        via=answer.via,
    )


def _option_like(node: Node, answer: Answer) -> Continuation | None:
    content: JsonObject = dict(answer.content)
    return next((item for item in _safe_options(node) if item.content == content), None)


def _safe_options(node: Node) -> list[Continuation]:
    try:
        return options_of(node)
    except UsageError:
        return []


def auto_brancher(
    policy: BranchPolicy,
    children: Children,
    load: Callable[[], Awaitable[Tree]],
    *,
    seed: int,
) -> Callable[[ForkPoint], Awaitable[None]]:
    """What a policy does at a fork point: start the other ways on, where it can be forked."""

    async def at(point: ForkPoint) -> None:
        tree = await load()
        node = tree.nodes[point.checkpoint.node]
        lines = children.made
        if point.answer is None:
            wanted = wanted_at_root(policy, lines=lines)
            items = resamples(wanted) if wanted else []
        else:
            items = _others(policy, node, point, point.answer, lines)
        try:
            check_fork(point.checkpoint, node, items)
        except CheckpointError:
            # The node says what was not captured; a child would not be in its state.
            return
        if items:
            children.start(point.checkpoint, node, items, seed=seed, depth=point.depth + 1)

    return at


def _others(
    policy: BranchPolicy, node: Node, point: ForkPoint, answer: Answer, lines: int
) -> list[Continuation]:
    taken = answer_key(answer.action, dict(answer.content))
    others = [
        item for item in _safe_options(node) if answer_key(item.action, item.content or {}) != taken
    ]
    return others[: wanted_at_ask(policy, len(others), depth=point.depth, lines=lines)]
