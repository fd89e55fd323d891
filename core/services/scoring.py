"""Scoring stored nodes: the task's verifier in a scratch fork, with no agent call.

Nothing that runs is disturbed: a node's frozen state is forked, judged and thrown
away. Every verdict is a new version; a node that cannot be scored keeps what it had.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias, cast

from core.contracts.errors import (
    BenchFlowError,
    CheckpointError,
    EnvironmentFailed,
    SandboxError,
    UsageError,
    VerifierError,
    VerifierTimeout,
)
from core.contracts.reward import RolloutNode
from core.contracts.sandbox import Sandbox, SandboxImage
from core.contracts.store import CommandRecord, EventDraft
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.kernel.branch import checkpoint_of
from core.kernel.clock import Stopwatch
from core.kernel.finish import deadline
from core.kernel.spec import Forker, scored
from core.kernel.tree import Node, Tree
from core.kernel.world import WorldPlan, scratch_world
from core.services.assemble import Prepared, load_tree
from core.services.toolbox import Toolbox
from core.tasks.models import Task

SCORES_AT_ONCE = max(2, os.cpu_count() or 1)
"""Verifiers that run at the same time, each in a world of its own."""

Gate: TypeAlias = asyncio.Semaphore
Keep: TypeAlias = Callable[[Node, ev.Scored | ev.ScoringFailed], Awaitable[None]]
Problem: TypeAlias = Callable[[BenchFlowError], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Which nodes to score; ``leaves`` and ``captured`` mean every one of that kind.
    ``verifier`` replaces the task's verifier folder."""

    nodes: tuple[str, ...] = ()
    leaves: bool = False
    captured: bool = False
    verifier: str = ""

    def to_json(self) -> JsonObject:
        """As a command carries it: the owner may run in another folder."""
        nodes: list[JsonValue] = list(self.nodes)
        return {
            "nodes": nodes,
            "leaves": self.leaves,
            "captured": self.captured,
            "verifier": os.path.abspath(self.verifier) if self.verifier else "",
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> ScoreRequest:
        nodes = data.get("nodes")
        return cls(
            nodes=tuple(str(item) for item in nodes) if isinstance(nodes, list) else (),
            leaves=bool(data.get("leaves")),
            captured=bool(data.get("captured")),
            verifier=str(data.get("verifier") or ""),
        )


@dataclass(frozen=True, slots=True)
class NodeScore:
    """What scoring one node gave. ``before`` is the verdict that counted until now."""

    rollout: str
    node: str
    line: int
    main: bool
    """It is the leaf whose verdict is the rollout's reward."""
    before: float | None
    after: float | None
    version: int
    """How many verdicts the node has now."""
    error: str | None = None
    seconds: float = 0.0

    def to_json(self) -> JsonObject:
        return {
            "rollout": self.rollout,
            "node": self.node,
            "line": self.line,
            "main": self.main,
            "before": self.before,
            "after": self.after,
            "version": self.version,
            "error": self.error,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> NodeScore:
        return cls(**data)  # type: ignore[arg-type]


def nodes_to_score(tree: Tree, request: ScoreRequest) -> list[Node]:
    """The nodes that are meant; the main line's leaf where none is named.

    Raises UsageError for a node that is not there and CheckpointError for a named
    one whose state was not kept.
    """
    if request.leaves:
        return [node for node in _ended_leaves(tree) if node.checkpoint is not None]
    if request.captured:
        return [node for node in tree.nodes.values() if node.checkpoint is not None]
    leaf = tree.main_leaf
    if not request.nodes and leaf is None:
        raise UsageError(
            "nothing of this rollout has run yet",
            where=f"rollout {tree.rollout}",
            remedy="Score it once it has a line",
        )
    names = dict.fromkeys(request.nodes or ((leaf.id,) if leaf else ()))
    for name in names:
        checkpoint_of(tree, name)
    return [tree.nodes[name] for name in names]


def lost_leaves(tree: Tree) -> list[Node]:
    """Leaves that have a verdict but whose state is not kept: they cannot be scored again."""
    return [node for node in _ended_leaves(tree) if node.verdict and node.checkpoint is None]


def _ended_leaves(tree: Tree) -> list[Node]:
    return [
        tree.nodes[line.leaf_id]
        for _, line in sorted(tree.lines.items())
        if line.outcome is not None and tree.nodes[line.leaf_id].line == line.number
    ]


async def score_nodes(
    tools: Toolbox,
    prepared: Prepared,
    nodes: Sequence[Node],
    *,
    verifier: str,
    keep: Keep,
    problem: Problem,
    gate: Gate | None = None,
) -> list[NodeScore]:
    """Score nodes in parallel; ``keep`` gets each verdict, or failure, as it comes.

    A node's failure is its own: it is in the answer, and the others go on. Raises
    UsageError for a verifier that is not there.
    """
    task = with_verifier(prepared.task, verifier)
    images = {node.id: checkpoint_of(node.tree, node.id).image for node in nodes}
    forker = _forker(prepared.plan, images, problem)
    gate = gate or Gate(SCORES_AT_ONCE)

    async def one(node: Node) -> NodeScore:
        async with gate:
            return await _score(tools, replace(prepared, task=task), forker, node, keep)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(node)) for node in nodes]
    return [task.result() for task in running]


async def _score(
    tools: Toolbox, prepared: Prepared, forker: Forker, node: Node, keep: Keep
) -> NodeScore:
    before = node.verdict.result.reward if node.verdict else None
    leaf = node.tree.main_leaf
    score = NodeScore(
        rollout=node.tree.rollout,
        node=node.id,
        line=node.line,
        main=leaf is not None and leaf.id == node.id,
        before=before,
        after=None,
        version=len(node.verdicts),
    )
    watch = Stopwatch()
    try:
        # A reward of its own for each node: it reads the verifier's files as they are now.
        reward = tools.make_reward(prepared.task, prepared.agent, forker)
        limit = prepared.plan.deadlines.verify
        async with deadline(limit, VerifierTimeout, "scoring a node"):
            verdict = await reward.score(node)
    except VerifierError as error:
        logs: JsonObject = dict(error.logs)
        await keep(node, ev.ScoringFailed(node.id, str(error), error.category, logs))
        return replace(score, error=str(error), seconds=round(watch.seconds, 4))
    except (SandboxError, EnvironmentFailed, CheckpointError) as error:
        return replace(score, error=str(error), seconds=round(watch.seconds, 4))
    await keep(node, scored(node.id, verdict, watch.seconds))
    return replace(
        score,
        after=verdict.reward,
        version=len(node.verdicts) + 1,
        seconds=round(watch.seconds, 4),
    )


async def score_live(
    tools: Toolbox, prepared: Prepared, command: CommandRecord
) -> tuple[list[EventDraft], JsonObject]:
    """Serve a ``score`` command beside the lines that run: what to write, what to answer."""
    request = ScoreRequest.from_json(command.args)
    tree = await load_tree(tools, command.rollout, whole=True)
    drafts: list[EventDraft] = []

    async def keep(node: Node, body: ev.Scored | ev.ScoringFailed) -> None:
        drafts.append(ev.encode(body, line=node.line))

    async def problem(error: BenchFlowError) -> None:
        drafts.append(teardown_note(error, tree.main))

    nodes = nodes_to_score(tree, request)
    scores = await score_nodes(
        tools, prepared, nodes, verifier=request.verifier, keep=keep, problem=problem
    )
    return drafts, scores_json(scores)


def teardown_note(error: BenchFlowError, line: int) -> EventDraft:
    """A scratch world that could not be removed: noted, and the reaper's."""
    return ev.encode(ev.SessionChanged("teardown_problem", {"error": str(error)}), line=line)


def _forker(plan: WorldPlan, images: dict[str, SandboxImage], problem: Problem) -> Forker:
    @asynccontextmanager
    async def fork(node: RolloutNode) -> AsyncIterator[Sandbox]:
        async with scratch_world(plan, images[node.id], problem) as world:
            yield world.sandbox

    return fork


def with_verifier(task: Task, path: str) -> Task:
    """The task with another verifier: a folder in the place of its own, or one script.

    Raises UsageError when the script is not there.
    """
    if not path:
        return task
    place = Path(path).absolute()
    first, *rest = PurePosixPath(task.verifier.script).parts
    script = place if place.is_file() else place / ("/".join(rest) or first)
    if not script.is_file():
        raise UsageError(
            f"there is no verifier at {path}",
            where=str(script),
            remedy="Give a folder like the task's own verifier folder, or a script",
        )
    folder = script.parent if place.is_file() else place
    inside = script.relative_to(folder.parent).as_posix()
    return replace(task, folder=folder.parent, verifier=replace(task.verifier, script=inside))


def verifier_folder(task: Task) -> Path:
    """Where the files of a task's verifier lie."""
    first, *rest = PurePosixPath(task.verifier.script).parts
    return task.folder / first if rest else task.folder


def scores_json(scores: Sequence[NodeScore]) -> JsonObject:
    """Scores as a command's result carries them."""
    return {"scores": [item.to_json() for item in scores]}


def scores_from_json(data: JsonObject) -> list[NodeScore]:
    return [NodeScore.from_json(item) for item in cast("list[JsonObject]", data["scores"])]
