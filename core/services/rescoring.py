"""Score and re-score: new verdicts for what is stored, on live and ended rollouts.

The newest verdict counts: the row, ``result.json`` and the job's summary follow
it, and the older ones stay in the log. No agent is called.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.contracts.errors import BenchFlowError, Conflict, NotFound
from core.contracts.store import RolloutRecord, RolloutState
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.kernel.tree import Node
from core.services import acts
from core.services.assemble import load_tree
from core.services.config import RolloutConfig
from core.services.engine import Engine
from core.services.jobs import prepare_again
from core.services.reaping import final_record
from core.services.scoring import (
    SCORES_AT_ONCE,
    Gate,
    NodeScore,
    ScoreRequest,
    lost_leaves,
    nodes_to_score,
    score_nodes,
    scores_from_json,
    teardown_note,
    verifier_folder,
    with_verifier,
)
from core.services.sealing import write_job_files
from core.services.serving import Grown
from core.services.toolbox import Toolbox

ROLLOUTS_AT_ONCE = 8
SAVED_SECONDS = 2.0
"""A verifier counts as saved once its files have not changed for so long."""
LOOK_SECONDS = 0.25
"""Between two looks at the files: their times, sizes and names are compared."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What re-scoring changed, leaf by leaf."""

    scores: tuple[NodeScore, ...]
    lost: tuple[str, ...] = ()
    """One sentence per leaf, or rollout, that could not be scored again."""

    @property
    def both(self) -> list[NodeScore]:
        """Those that had a verdict before and have one now."""
        return [item for item in self.scores if None not in (item.before, item.after)]

    def count(self, kind: str) -> int:
        """How many went that way: up, down, same, new, failed."""
        return sum(change_of(item) == kind for item in self.scores)

    @property
    def means(self) -> tuple[float, float] | None:
        """The mean before and after, over leaves that have both."""
        if not self.both:
            return None
        before = math.fsum(item.before or 0.0 for item in self.both)
        after = math.fsum(item.after or 0.0 for item in self.both)
        return before / len(self.both), after / len(self.both)

    def to_json(self) -> JsonObject:
        means = self.means
        lost: list[JsonValue] = list(self.lost)
        scores: list[JsonValue] = [
            {**item.to_json(), "change": change_of(item)} for item in self.scores
        ]
        return {
            "scores": scores,
            "lost": lost,
            "mean_before": means[0] if means else None,
            "mean_after": means[1] if means else None,
            **{kind: self.count(kind) for kind in ("up", "down", "same", "new", "failed")},
        }


def change_of(score: NodeScore) -> str:
    if score.after is None:
        return "failed"
    if score.before is None:
        return "new"
    if math.isclose(score.before, score.after, abs_tol=1e-12):
        return "same"
    return "up" if score.after > score.before else "down"


async def score(
    engine: Engine,
    ref: str,
    request: ScoreRequest,
    *,
    actor: str,
    via: str,
    idem_key: str | None = None,
) -> list[NodeScore]:
    """The verifier on captured nodes of one rollout, each verdict a new version.

    On a live rollout its owner does it beside the lines that run. Raises
    UsageError or CheckpointError for a node that cannot be scored, before anything
    is done.
    """
    record = await engine.tools.store.rollouts.get(ref)
    scores = await _score(engine, record, request, actor, via, "score", idem_key=idem_key)
    await _refresh_job(engine.tools, record.job, scores)
    return scores


async def rescore(engine: Engine, ref: str, *, verifier: str = "", actor: str, via: str) -> Changes:
    """The verifier on every stored leaf of a job's rollouts, or of one rollout.

    ``verifier`` replaces the tasks' own folder. One rollout's failure is in the
    answer and takes nothing from the others.
    """
    records = await rollouts_of(engine.tools, ref)
    gate, places = Gate(SCORES_AT_ONCE), asyncio.Semaphore(ROLLOUTS_AT_ONCE)
    request = ScoreRequest(leaves=True, verifier=verifier)

    async def one(record: RolloutRecord) -> Changes:
        async with places:
            try:
                lost = await _lost(engine.tools, record)
                scores = await _score(engine, record, request, actor, via, "rescore", gate=gate)
            except BenchFlowError as error:
                return Changes((), (f"{record.name}: {error}",))
        return Changes(tuple(scores), lost)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(record)) for record in records]
    parts = [task.result() for task in running]
    changes = Changes(
        tuple(item for part in parts for item in part.scores),
        tuple(item for part in parts for item in part.lost),
    )
    for job in dict.fromkeys(record.job for record in records):
        await _refresh_job(engine.tools, job, changes.scores)
    return changes


async def rollouts_of(tools: Toolbox, ref: str) -> list[RolloutRecord]:
    """The rollouts that have begun of a job (id, prefix, ``last``), else one rollout."""
    try:
        job = await tools.store.jobs.get(ref)
    except NotFound:
        return [await tools.store.rollouts.get(ref)]
    records = await tools.store.rollouts.select(job=job.id, limit=1_000_000)
    return [item for item in reversed(records) if item.state is not RolloutState.QUEUED]


async def saved_verifiers(folders: Sequence[Path]) -> AsyncIterator[None]:
    """Once at first, then whenever files below were saved, two seconds after the last.

    What is saved while the caller works on the last time is not missed.
    """
    known = await asyncio.to_thread(_stamps, folders)
    yield
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await asyncio.to_thread(_stamps, folders)
        if now == known:
            continue
        while True:
            await asyncio.sleep(SAVED_SECONDS)
            after = await asyncio.to_thread(_stamps, folders)
            if after == now:
                break
            now = after
        known = now
        yield


async def verifier_folders(engine: Engine, ref: str, verifier: str) -> list[Path]:
    """The folders whose files decide what re-scoring ``ref`` gives."""
    folders: dict[Path, None] = {}
    for record in await rollouts_of(engine.tools, ref):
        task = engine.tools.load_task(RolloutConfig.from_json(record.config).folder)
        folders[verifier_folder(with_verifier(task, verifier))] = None
    return list(folders)


def _stamps(folders: Sequence[Path]) -> dict[str, tuple[int, int]]:
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if "__pycache__" in path.parts:
                continue
            try:
                info = path.stat()
            except OSError:
                continue
            found[str(path)] = (info.st_mtime_ns, info.st_size)
    return found


async def _lost(tools: Toolbox, record: RolloutRecord) -> tuple[str, ...]:
    tree = await load_tree(tools, record.id)
    return tuple(
        f"{record.name}: the state of leaf {leaf.id} (line {leaf.line}) is not kept"
        + (f", {leaf.dropped}" if leaf.dropped else "")
        for leaf in lost_leaves(tree)
    )


async def _score(
    engine: Engine,
    record: RolloutRecord,
    request: ScoreRequest,
    actor: str,
    via: str,
    why: str,
    *,
    gate: Gate | None = None,
    idem_key: str | None = None,
) -> list[NodeScore]:
    if not record.state.final:
        args: JsonObject = {**request.to_json(), "via": via}
        try:
            done = await acts.act(engine, record, "score", args, actor=actor, idem_key=idem_key)
            return scores_from_json(done)
        except Conflict as refused:
            if refused.category != Conflict.category:
                raise
            # It ended meanwhile, or its owner had died; then it is scored here.
            record = await final_record(engine.tools, record.id)
            if not record.state.final:
                raise
    return await _score_ended(engine, record, request, actor, why, gate)


async def _score_ended(
    engine: Engine,
    record: RolloutRecord,
    request: ScoreRequest,
    actor: str,
    why: str,
    gate: Gate | None,
) -> list[NodeScore]:
    tools = engine.tools
    prepared = prepare_again(engine, record)
    with_verifier(prepared.task, request.verifier)
    if not nodes_to_score(await load_tree(tools, record.id, whole=True), request):
        return []
    await prepared.plan.provider.require()
    await engine.warm(prepared.config.sandbox)
    scores: list[NodeScore] = []

    async def work(grown: Grown) -> None:
        recorder = grown.context.recorder

        async def keep(node: Node, body: ev.Scored | ev.ScoringFailed) -> None:
            await recorder.commit(ev.encode(body, line=node.line))

        async def problem(error: BenchFlowError) -> None:
            await recorder.put(teardown_note(error, grown.tree.main))

        nodes = nodes_to_score(grown.tree, request)
        scores.extend(
            await score_nodes(
                tools,
                prepared,
                nodes,
                verifier=request.verifier,
                keep=keep,
                problem=problem,
                gate=gate,
            )
        )

    own = await tools.store.rollouts.claim(engine.id, record.id)
    # The agent's work ended when it did; a new verdict does not make it longer.
    await engine.grow(own, prepared, work, actor=actor, why=why, ended_at=record.ended_at)
    return scores


async def _refresh_job(tools: Toolbox, job: str, scores: Sequence[NodeScore]) -> None:
    """The job's summary follows the rewards of its rollouts, once all have ended."""
    if not any(item.main and item.after is not None for item in scores):
        return
    try:
        row = await tools.store.jobs.get(job)
    except NotFound:
        return
    records = await tools.store.rollouts.select(job=row.id, limit=1_000_000)
    records.reverse()
    if not all(record.state.final for record in records):
        return
    full: dict[str, float] = {}
    for record in records:
        leaf = (await load_tree(tools, record.id)).main_leaf
        if leaf is not None and leaf.verdict is not None:
            full[record.id] = leaf.verdict.result.range[1]
    config = RolloutConfig.from_json(row.config)
    await asyncio.to_thread(write_job_files, Path(row.folder), row.id, config, records, full)
