"""A whole bench in this process: store, engine, real sandboxes, as the command line wires them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.settings import Settings
from app.wiring import make_environment, open_tools
from core.contracts.environment import Environment
from core.contracts.sandbox import SandboxProvider
from core.contracts.store import RolloutRecord
from core.kernel.tree import Tree
from core.sandboxes.local import LocalProvider
from core.services.assemble import load_tree
from core.services.config import RolloutConfig
from core.services.engine import Engine, engine
from core.services.jobs import plan, run_job
from core.services.toolbox import Toolbox
from core.tasks.models import Manifest

HERE = Path(__file__).parent
EIGHT = HERE / "eight"


@dataclass(frozen=True)
class Bench:
    """One engine with its own store under ``root``."""

    root: Path
    tools: Toolbox
    engine: Engine

    async def run(self, task: Path, **options: Any) -> tuple[RolloutRecord, Tree]:
        """Run one task to its end; its row and its whole tree."""
        config = RolloutConfig(
            path=str(task), jobs_dir=str(self.root / "jobs"), agent="bench-agent", **options
        )
        job = plan(self.tools, config)
        await run_job(self.engine, job)
        record = await self.tools.store.rollouts.get(job.rollouts[0].id)
        return record, await load_tree(self.tools, record.id, whole=True)

    async def tree(self, record: RolloutRecord) -> Tree:
        return await load_tree(self.tools, record.id, whole=True)

    @property
    def provider(self) -> SandboxProvider:
        return self.engine.provider("local")


def no_front(real: LocalProvider) -> SandboxProvider:
    return real


@asynccontextmanager
async def bench(
    root: Path,
    *,
    sandboxes: Path | None = None,
    front: Callable[[LocalProvider], SandboxProvider] = no_front,
    environment: Callable[[Manifest], Environment] = make_environment,
) -> AsyncIterator[Bench]:
    """Open one; ``front`` puts something before the provider, ``environment`` makes worlds.

    ``sandboxes`` is where their files lie, if not in the store's own folder.
    """
    home = root / "home"
    place = sandboxes or home / "sandboxes"
    settings = Settings(home, None, str(root / "jobs"), "tester")
    async with open_tools(settings) as tools:
        changed = replace(
            tools,
            sandboxes={"local": lambda labels: front(LocalProvider(place, labels))},
            make_environment=environment,
        )
        async with engine(changed) as host:
            yield Bench(root, changed, host)
