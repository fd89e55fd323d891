"""An engine that kills itself at a named step of a capture, run as a child process.

    python doomed.py ROOT POINT

It runs one rollout whose agent asks a question. ``POINT`` is a step of the capture
at that question: ``fence``, ``drain``, ``session``, ``flush``, ``flushed``, ``capture``,
``frozen``, ``captured``, ``lifted`` or ``recorded``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from core.agents.acp.wire import Direction, WireSink
from core.agents.bench_agent.agent import BenchAgent
from core.contracts.agent import Agent
from core.contracts.environment import StateSnapshot
from core.contracts.sandbox import Sandbox, SandboxProvider
from core.environments.manifest import ManifestEnvironment
from core.sandboxes.local import LocalProvider
from core.services.config import RolloutConfig
from core.services.jobs import plan, run_job
from core.tasks.models import Manifest, Task
from tests.branch.bench import EIGHT, Bench, bench
from tests.branch.standin import FrontProvider


class Doom:
    """Kills this process when its point is reached."""

    def __init__(self, root: Path, point: str) -> None:
        self.point = point
        self.layers = root / "home" / "sandboxes" / "layers"

    def note(self, step: str) -> None:
        if step == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def at(self, step: str, sandbox: Sandbox) -> None:
        self.note(step)
        if step == "capture" and self.point == "frozen":
            # A layer is begun only while the sandbox is frozen.
            threading.Thread(target=self._until_begun, daemon=True).start()

    def _until_begun(self) -> None:
        while not any(self.layers.glob("tmp-*")):
            pass
        self.note("frozen")

    def front(self, real: LocalProvider) -> SandboxProvider:
        return FrontProvider(real, at=self.at, note=self.note)

    def environment(self, manifest: Manifest) -> ManifestEnvironment:
        doom = self

        class Doomed(ManifestEnvironment):
            async def flush(self, epoch: int) -> StateSnapshot:
                doom.note("flush")
                state = await super().flush(epoch)
                doom.note("flushed")
                return state

        return Doomed(manifest)

    def agent(self, config: RolloutConfig, task: Task, live: Path) -> Agent:
        return BenchAgent(task.folder / "agents" / "default.toml", wire=lambda id: Wire(self))

    async def watch(self, made: Bench, rollout: str) -> None:
        async for batch in made.tools.store.log.follow(rollout):
            if any(event.kind == "checkpointed" for event in batch):
                self.note("recorded")


class Wire(WireSink):
    """Sees the agent being asked for its state."""

    def __init__(self, doom: Doom) -> None:
        self._doom = doom

    def __call__(self, direction: Direction, line: bytes) -> None:
        if direction == "out" and b'"_bench/snapshot"' in line:
            self._doom.note("session")

    def close(self) -> None:
        pass


async def main(root: Path, point: str) -> None:
    doom = Doom(root, point)
    async with bench(root, front=doom.front, environment=doom.environment) as made:
        tools = dataclasses.replace(made.tools, make_agent=doom.agent)
        host = dataclasses.replace(made.engine, tools=tools)
        config = RolloutConfig(
            path=str(EIGHT),
            jobs_dir=str(root / "jobs"),
            agent="bench-agent",
            answers=("main",),
        )
        job = plan(tools, config)
        async with asyncio.TaskGroup() as group:
            watch = partial(doom.watch, made)
            await run_job(host, job, started=lambda one: _begin(group, watch(one.id)))


def _begin(group: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
    group.create_task(work)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
