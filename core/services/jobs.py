"""Jobs: plan, schedule, run, report.

A job is a folder of rollouts. Its rollouts run at once up to the store's slots;
one that fails never stops the others, and Ctrl-C leaves every one of them with
an interrupted record that can be run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from core.contracts.errors import (
    BenchFlowError,
    ConfigError,
    Conflict,
    Fault,
    Fenced,
    TaskError,
    UsageError,
)
from core.contracts.store import NewRollout, Ownership, RolloutRecord, RolloutState
from core.contracts.values import Outcome
from core.kernel.finish import finish
from core.kernel.rollout import Takeover
from core.kernel.spec import LineResult
from core.services.assemble import Prepared, filled, load_tree, prepare
from core.services.config import RolloutConfig
from core.services.engine import Engine
from core.services.queueing import JobSlots, turn_or_cancel
from core.services.sealing import write_job_files
from core.services.toolbox import Toolbox
from core.tasks.check import find_packages
from core.tasks.models import Task
from core.tasks.package import folder_word


@dataclass(frozen=True, slots=True)
class Planned:
    """One rollout of a job, before it starts. ``id`` is known so that it can be followed."""

    id: str
    name: str
    folder: Path
    task: Task
    config: RolloutConfig


@dataclass(frozen=True, slots=True)
class JobPlan:
    id: str
    folder: Path
    config: RolloutConfig
    rollouts: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """How one rollout of a job ended."""

    id: str
    name: str
    folder: Path
    task: str
    result: LineResult


@dataclass(frozen=True, slots=True)
class JobReport:
    id: str
    folder: Path
    rollouts: tuple[RolloutReport, ...]

    @property
    def scored(self) -> list[RolloutReport]:
        return [item for item in self.rollouts if item.result.outcome is Outcome.SCORED]

    @property
    def mean_reward(self) -> float | None:
        rewards = [item.result.verdict.reward for item in self.scored if item.result.verdict]
        return sum(rewards) / len(rewards) if rewards else None


def _unwatched(_: object) -> None:
    """Nobody looks on."""


def plan(tools: Toolbox, config: RolloutConfig, *, now: datetime | None = None) -> JobPlan:
    """Tasks x repeats, each with its id and folder. Raises TaskError with all faults."""
    moment = now or datetime.now()
    folders = find_packages(config.folder)
    if not (folders[0] / "task.md").is_file():
        exists = config.folder.is_dir()
        what = "holds no task.md, nor does a folder in it" if exists else "is no folder"
        raise UsageError(f"{config.folder} {what}", remedy="Give the path of a task package")
    tasks: list[Task] = []
    faults: list[Fault] = []
    for folder in folders:
        try:
            tasks.append(tools.load_task(folder))
        except TaskError as error:
            faults.extend(error.faults)
    if faults:
        raise TaskError(
            f"{len(faults)} fault{'s' if len(faults) > 1 else ''} in the task package",
            where=str(config.folder),
            remedy="Mend them; `bench tasks check` lists them again",
            faults=faults,
        )
    jobs_dir = Path(config.jobs_dir).absolute()
    job = config.job or _free_name(jobs_dir, moment.strftime("%Y-%m-%d__%H-%M-%S"))
    folder = jobs_dir / job
    planned = [
        _planned(tools, task, replace(config, seed=config.seed + repeat), folder)
        for repeat in range(config.repeats)
        for task in tasks
    ]
    return JobPlan(job, folder, config, tuple(planned))


async def run_job(
    engine: Engine,
    job: JobPlan,
    *,
    started: Callable[[Planned], None] = _unwatched,
    ended: Callable[[RolloutReport], None] = _unwatched,
) -> JobReport:
    """Run every rollout of the plan. ``started`` is told of each as its slot is given,
    ``ended`` of each as it is sealed.

    Raises what keeps the job from starting before anything is created; after
    that one rollout's failure, a fence included, is that rollout's only. An
    error that is a fault of ours is raised once all have ended.
    """
    tools = engine.tools
    for name in {item.config.sandbox for item in job.rollouts}:
        await engine.provider(name).require()
        await engine.warm(name)
    prepared = {item.id: _prepare(engine, item) for item in job.rollouts}
    await asyncio.to_thread(_make_folder, job.folder)
    await tools.store.jobs.create(job.id, str(job.folder), job.config.to_json())
    owned = {item.id: await _create(engine, job, item) for item in job.rollouts}
    run = _JobRun(engine, JobSlots(engine, job.config.concurrency), prepared, owned, started)
    try:
        async with asyncio.TaskGroup() as group:
            for item in job.rollouts:
                group.create_task(run.one(item, ended))
    finally:
        await finish(_close_job(engine, job, owned))
    if run.bugs:
        raise run.bugs[0]
    return JobReport(job.id, job.folder, tuple(run.reports[item.id] for item in job.rollouts))


def _make_folder(folder: Path) -> None:
    """Results that could not be written are found out before anything is run for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"results cannot be written: {error.strerror}",
            where=str(folder),
            remedy="Name another folder with --jobs-dir or BENCH_JOBS_DIR",
        ) from error


@dataclass(eq=False, slots=True)
class _JobRun:
    """The rollouts of one job, each on its own: none takes another down."""

    engine: Engine
    slots: JobSlots
    prepared: Mapping[str, Prepared]
    owned: Mapping[str, Ownership]
    started: Callable[[Planned], None]
    reports: dict[str, RolloutReport] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)

    async def one(self, item: Planned, ended: Callable[[RolloutReport], None]) -> None:
        try:
            result = await self._live(item)
        except BenchFlowError as error:
            result = _failed(error)
        except Exception as bug:
            result = LineResult(Outcome.FAILED, error=repr(bug), error_category="internal")
            self.bugs.append(bug)
        report = RolloutReport(item.id, item.name, item.folder, item.task.name, result)
        self.reports[item.id] = report
        ended(report)

    async def _live(self, item: Planned) -> LineResult:
        own, ready = self.owned[item.id], self.prepared[item.id]
        async with AsyncExitStack() as stack:
            slot = self.slots.slot(item.id)
            cancelled = await turn_or_cancel(self.engine, own, ready.facts, slot, stack)
            if cancelled is not None:
                return cancelled
            self.started(item)
            return await self.engine.run(own, ready)


def _failed(error: BenchFlowError) -> LineResult:
    return LineResult(
        Outcome.FAILED,
        error=str(error),
        error_category=error.category,
        infrastructure=error.infrastructure,
    )


async def rerun(engine: Engine, record: RolloutRecord, why: str) -> LineResult:
    """Run a rollout that was interrupted again, as a new attempt of the same log.

    Questions that already have an answer find it again.
    """
    tools = engine.tools
    if record.state is RolloutState.SCORED:
        raise Conflict(
            "the rollout has its reward; there is nothing to resume",
            where=f"rollout {record.id}",
            remedy="Run the task again with `bench run`, or look with `bench show`",
        )
    prepared = prepare_again(engine, record)
    await prepared.plan.provider.require()
    own = await tools.store.rollouts.claim(engine.id, record.id, new_attempt=True)
    await engine.refuse_late(own, "its process had died, and it is being run again")
    tree = await load_tree(tools, record.id)
    owed = tuple(tree.nudges.values())
    takeover = Takeover(max(tree.lines, default=-1) + 1, why, owed) if tree.root_id else None
    return await engine.run(own, prepared, takeover)


def prepare_again(engine: Engine, record: RolloutRecord) -> Prepared:
    """A recorded rollout's task, config and agent, as they are on this machine now."""
    config = RolloutConfig.from_json(record.config)
    task = engine.tools.load_task(config.folder)
    return _prepare(engine, Planned(record.id, record.name, Path(record.folder), task, config))


def _prepare(engine: Engine, item: Planned) -> Prepared:
    live = engine.tools.home / "live" / item.id
    task = filled(item.task, oracle=item.config.agent == "oracle")
    agent = engine.tools.make_agent(item.config, task, live)
    provider = engine.provider(item.config.sandbox)
    return prepare(engine.tools, task, item.config, agent, provider)


async def _create(engine: Engine, job: JobPlan, item: Planned) -> Ownership:
    return await engine.tools.store.rollouts.create(
        engine.id,
        NewRollout(
            id=item.id,
            job=job.id,
            name=item.name,
            task=item.task.name,
            task_digest=item.task.digest,
            agent=item.config.agent,
            model=item.config.model,
            sandbox=item.config.sandbox,
            user=item.config.user,
            folder=str(item.folder),
            config=item.config.to_json(),
        ),
    )


async def _close_job(engine: Engine, job: JobPlan, owned: dict[str, Ownership]) -> None:
    """Rollouts that never got a slot are interrupted, not lost; then the job's files."""
    rollouts = engine.tools.store.rollouts
    for own in owned.values():
        record = await rollouts.get(own.rollout)
        if record.state is RolloutState.QUEUED:
            with contextlib.suppress(Fenced):
                await rollouts.update(own, state=RolloutState.INTERRUPTED.value)
                await engine.refuse_late(own, "the rollout was interrupted before its turn")
                await rollouts.release(own)
    records: Sequence[RolloutRecord] = [await rollouts.get(item.id) for item in job.rollouts]
    full = {item.id: item.task.verifier.reward_range[1] for item in job.rollouts}
    await asyncio.to_thread(write_job_files, job.folder, job.id, job.config, records, full)
    await engine.tools.store.jobs.end(job.id)


def _planned(tools: Toolbox, task: Task, config: RolloutConfig, folder: Path) -> Planned:
    name = f"{folder_word(task.name)}__{secrets.token_hex(4)}"
    saved = replace(config, path=str(task.folder.absolute()))
    return Planned(tools.new_id(), name, folder / name, task, saved)


def _free_name(folder: Path, name: str) -> str:
    candidate, number = name, 1
    while (folder / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate
