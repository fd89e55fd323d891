"""Jobs: plan, schedule, run, report.

A job is a folder of rollouts. Its rollouts run at once up to the store's slots;
one that fails never stops the others, and Ctrl-C leaves every one of them with
an interrupted record that can be run again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from core.contracts.errors import Fault, TaskError, UsageError
from core.contracts.store import NewRollout, Ownership, RolloutRecord, RolloutState
from core.contracts.values import Outcome
from core.kernel.rollout import Takeover
from core.kernel.spec import LineResult
from core.services.assemble import Prepared, load_tree, prepare
from core.services.config import RolloutConfig
from core.services.engine import Engine
from core.services.sealing import write_job_files
from core.services.toolbox import Toolbox
from core.tasks.models import Task


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


def find_tasks(path: Path) -> list[Path]:
    """The task packages at ``path``: itself, or those right below it.

    Raises UsageError when there is none.
    """
    if (path / "task.md").is_file():
        return [path]
    if path.is_dir():
        found = sorted(child for child in path.iterdir() if (child / "task.md").is_file())
        if found:
            return found
    what = "is no folder" if not path.is_dir() else "holds no task.md, nor does a folder in it"
    raise UsageError(f"{path} {what}", remedy="Give the path of a task package")


def plan(tools: Toolbox, config: RolloutConfig, *, now: datetime | None = None) -> JobPlan:
    """Tasks x repeats, each with its id and folder. Raises TaskError with all faults."""
    moment = now or datetime.now()
    folders = find_tasks(config.folder)
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
    engine: Engine, job: JobPlan, *, started: Callable[[Planned], None] | None = None
) -> JobReport:
    """Run every rollout of the plan. ``started`` is told of each as its slot is given."""
    tools = engine.tools
    await tools.store.jobs.create(job.id, str(job.folder), job.config.to_json())
    prepared = {item.id: _prepare(engine, item) for item in job.rollouts}
    owned = {item.id: await _create(engine, job, item) for item in job.rollouts}
    reports: dict[str, RolloutReport] = {}

    async def one(item: Planned) -> None:
        slots = tools.store.slots
        await slots.acquire(engine.id, item.id, limit=job.config.concurrency)
        try:
            if started is not None:
                started(item)
            result = await engine.run(owned[item.id], prepared[item.id])
        finally:
            await slots.release(engine.id, item.id)
        reports[item.id] = RolloutReport(item.id, item.name, item.folder, item.task.name, result)

    try:
        async with asyncio.TaskGroup() as group:
            for item in job.rollouts:
                group.create_task(one(item))
    except* asyncio.CancelledError:
        raise
    finally:
        await _close_job(engine, job, owned)
    ordered = tuple(reports[item.id] for item in job.rollouts if item.id in reports)
    return JobReport(job.id, job.folder, ordered)


async def rerun(engine: Engine, record: RolloutRecord, why: str) -> LineResult:
    """Run a rollout that was interrupted again, as a new attempt of the same log.

    Questions that already have an answer find it again.
    """
    tools = engine.tools
    prepared = prepare_again(engine, record)
    own = await tools.store.rollouts.claim(engine.id, record.id, new_attempt=True)
    tree = await load_tree(tools, record.id)
    takeover = Takeover(max(tree.lines, default=-1) + 1, why) if tree.root_id else None
    return await engine.run(own, prepared, takeover)


def prepare_again(engine: Engine, record: RolloutRecord) -> Prepared:
    """A recorded rollout's task, config and agent, as they are on this machine now."""
    config = RolloutConfig.from_json(record.config)
    task = engine.tools.load_task(config.folder)
    return _prepare(engine, Planned(record.id, record.name, Path(record.folder), task, config))


def _prepare(engine: Engine, item: Planned) -> Prepared:
    live = engine.tools.home / "live" / item.id
    agent = engine.tools.make_agent(item.config, item.task, live)
    provider = engine.provider(item.config.sandbox)
    return prepare(engine.tools, item.task, item.config, agent, provider)


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
            await rollouts.update(own, state=RolloutState.INTERRUPTED.value)
            await rollouts.release(own)
    records: Sequence[RolloutRecord] = [await rollouts.get(item.id) for item in job.rollouts]
    await asyncio.to_thread(write_job_files, job.folder, job.id, job.config, records)
    await engine.tools.store.jobs.end(job.id)


def _planned(tools: Toolbox, task: Task, config: RolloutConfig, folder: Path) -> Planned:
    name = f"{task.name.rsplit('/', 1)[-1]}__{secrets.token_hex(4)}"
    saved = replace(config, path=str(task.folder.absolute()))
    return Planned(tools.new_id(), name, folder / name, task, saved)


def _free_name(folder: Path, name: str) -> str:
    candidate, number = name, 1
    while (folder / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate
