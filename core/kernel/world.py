"""World: one sandbox with its environment running in it.

A rollout's main line, every branch's child and every verifier run live in a
world of their own. Starting and forking are bounded; a world that could not be
started completely is torn down before the error leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from core.contracts.environment import EnvContext, EnvHandle, Environment
from core.contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds each phase may take. The environment's readiness has its own limit inside."""

    sandbox: float = 60.0
    environment: float = 180.0
    readiness: float = 600.0
    connect: float = 120.0
    quiesce: float = 60.0
    verify: float = 900.0
    teardown: float = 60.0
    settle: float = 10.0


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """What every world of a rollout is made from."""

    provider: SandboxProvider
    spec: SandboxSpec
    environment: Callable[[], Environment] | None = None
    selection: Mapping[str, str] = field(default_factory=dict)
    deadlines: Deadlines = Deadlines()


class World:
    """A started sandbox and, once provisioned, its environment."""

    def __init__(self, plan: WorldPlan, sandbox: Sandbox) -> None:
        self.plan = plan
        self.sandbox = sandbox
        self.environment: Environment | None = plan.environment() if plan.environment else None
        self.handle = EnvHandle({})
        self._stopped = False

    async def provision(self, *, fresh: bool, seed: int) -> None:
        if self.environment is not None:
            self.handle = await self.environment.provision(
                EnvContext(
                    sandbox=self.sandbox,
                    selection=self.plan.selection,
                    state="fresh" if fresh else "restored",
                    seed=seed,
                )
            )

    async def ready(self) -> None:
        if self.environment is not None:
            await self.environment.readiness()

    async def stop_services(self) -> None:
        """End the environment but keep the sandbox's files."""
        if self.environment is not None and not self._stopped:
            self._stopped = True
            await self.environment.teardown()

    async def teardown(self) -> None:
        """Leave nothing running, whatever failed before."""
        try:
            async with asyncio.timeout(self.plan.deadlines.teardown):
                await self.stop_services()
        finally:
            async with asyncio.timeout(self.plan.deadlines.teardown):
                await self.sandbox.teardown()


async def start_world(plan: WorldPlan) -> World:
    """A sandbox with nothing running in it yet."""
    return World(plan, await plan.provider.start(plan.spec))


async def fork_worlds(
    plan: WorldPlan, image: SandboxImage, n: int, *, seeds: list[int]
) -> list[World]:
    """``n`` worlds on a frozen state, services restarted and healthy, in parallel.

    All or nothing: when one fails, the others are torn down and its error raised.
    """
    sandboxes = await plan.provider.fork(image, n)
    worlds = [World(plan, sandbox) for sandbox in sandboxes]
    try:
        async with asyncio.TaskGroup() as group:
            for world, seed in zip(worlds, seeds, strict=True):
                group.create_task(_bring_up(world, seed))
    except BaseException as error:
        await asyncio.gather(*(world.teardown() for world in worlds), return_exceptions=True)
        if isinstance(error, BaseExceptionGroup):
            raise first_error(error) from error
        raise
    return worlds


async def _bring_up(world: World, seed: int) -> None:
    async with asyncio.timeout(world.plan.deadlines.environment):
        await world.provision(fresh=False, seed=seed)
    async with asyncio.timeout(world.plan.deadlines.readiness):
        await world.ready()


@asynccontextmanager
async def scratch_world(plan: WorldPlan, image: SandboxImage) -> AsyncIterator[World]:
    """A throw-away fork: for a verifier, a shell, a diff."""
    (world,) = await fork_worlds(plan, image, 1, seeds=[0])
    try:
        yield world
    finally:
        await world.teardown()


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf of an exception group that is not a cancellation."""
    waiting: list[BaseException] = [group]
    cancelled: BaseException | None = None
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting[:0] = error.exceptions
        elif isinstance(error, asyncio.CancelledError):
            cancelled = cancelled or error
        else:
            return error
    return cancelled or group
