"""The product's tools on a real store, with a sandbox, an agent and a verifier in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.settings import Settings
from app.wiring import open_tools
from core.contracts.agent import Agent
from core.contracts.reward import Reward, RolloutNode, VerifyResult
from core.contracts.store import NewRollout, Ownership
from core.kernel import events as ev
from core.kernel.spec import Forker
from core.services.config import RolloutConfig
from core.services.engine import Engine, engine
from core.services.jobs import JobPlan, plan
from core.services.toolbox import Toolbox
from core.tasks.models import Task
from tests.e2e.packages import write_task
from tests.fakes.kernel_agent import FakeAgent, Turn, helpful
from tests.fakes.kernel_points import Points
from tests.fakes.kernel_world import FakeProvider


class Full:
    """Every node is worth 1."""

    digest = "full"

    async def score(self, node: RolloutNode) -> VerifyResult:
        return VerifyResult(reward=1.0, verifier_digest=self.digest)


@dataclass
class Bench:
    """An engine over fakes; ``points`` holds and fails what tests want."""

    folder: Path
    tools: Toolbox
    host: Engine
    points: Points
    agents: list[FakeAgent] = field(default_factory=list)

    def config(self, **changes: object) -> RolloutConfig:
        task = self.folder / "task"
        if not task.exists():
            write_task(task)
        config = RolloutConfig(path=str(task), agent="fake", jobs_dir=str(self.folder / "jobs"))
        return replace(config, **changes)  # type: ignore[arg-type]

    def plan(self, **changes: object) -> JobPlan:
        return plan(self.tools, self.config(**changes))

    async def orphan(self, *bodies: ev.Body, root: bool = True) -> str:
        """A rollout whose engine is gone, its log holding these events."""
        store = self.tools.store
        dead = await store.engines.register()
        item = self.plan().rollouts[0]
        record = NewRollout(
            id=item.id,
            job="job",
            name=item.name,
            task=item.task.name,
            task_digest=item.task.digest,
            agent="fake",
            model=None,
            sandbox="local",
            user="scripted",
            folder=str(item.folder),
            config=item.config.to_json(),
        )
        own = await store.rollouts.create(dead, record)
        await store.rollouts.update(own, state="running")
        if root:
            await self._begin(own, *bodies)
        await store.engines.deregister(dead)
        return item.id

    async def _begin(self, own: Ownership, *bodies: ev.Body) -> None:
        recorder = self.tools.store.log.recorder(own)
        record = await self.tools.store.rollouts.get(own.rollout)
        start = ev.RolloutStarted(
            record.task, record.task_digest, "fake", "local", "scripted", record.config
        )
        line = ev.LineStarted(None, {"kind": "start"}, main=True)
        await recorder.commit(*(ev.encode(body) for body in (start, line, *bodies)))
        await recorder.close()


@asynccontextmanager
async def bench(
    folder: Path, *turns: Sequence[Turn], points: Points | None = None
) -> AsyncIterator[Bench]:
    """Each new agent plays the next of ``turns``, the last one again and again."""
    points = points or Points()
    made: list[FakeAgent] = []
    scripts = list(turns) or [[helpful]]

    def make_agent(config: RolloutConfig, task: Task, live: Path) -> Agent:
        made.append(FakeAgent(points, scripts[min(len(made), len(scripts) - 1)]))
        return made[-1]

    def make_reward(task: Task, agent: Agent, fork: Forker) -> Reward:
        return Full()

    settings = Settings(folder / "home", None, str(folder / "jobs"), "ann")
    async with open_tools(settings) as real:
        tools = replace(
            real,
            sandboxes={"local": lambda labels: FakeProvider(points)},
            make_agent=make_agent,
            make_reward=make_reward,
        )
        async with engine(tools) as host:
            yield Bench(folder, tools, host, points, made)
