"""World: one sandbox with its environment running in it.

A rollout's main line, every branch's child and every verifier run live in a
world of their own. Starting and forking are bounded; a world that could not be
started completely is torn down before the error leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from core.contracts.environment import EnvContext, EnvHandle, Environment
from core.contracts.errors import BenchFlowError, EnvironmentFailed, SandboxError, StateError
from core.contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from core.kernel.finish import deadline, finish


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

    def __init__(self, plan: WorldPlan, sandbox: Sandbox, environment: Environment | None) -> None:
        self.plan = plan
        self.sandbox = sandbox
        self.environment = environment
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
            await self.environment.teardown()
            self._stopped = True

    async def teardown(self) -> None:
        """Leave nothing running, whatever failed before and whoever is cancelled
        meanwhile. Raises what the environment or the sandbox raised, once both were tried."""
        await finish(self._teardown())

    async def _teardown(self) -> None:
        limit = self.plan.deadlines.teardown
        try:
            async with deadline(limit, EnvironmentFailed, "stopping the environment"):
                await self.stop_services()
        finally:
            async with deadline(limit, SandboxError, "removing the sandbox"):
                await self.sandbox.teardown()


async def start_world(plan: WorldPlan) -> World:
    """A sandbox with nothing running in it yet."""
    environment = _environment(plan)
    return World(plan, await plan.provider.start(plan.spec), environment)


def _environment(plan: WorldPlan) -> Environment | None:
    # Made before the sandbox: one that cannot be made must not leave a sandbox behind.
    return plan.environment() if plan.environment else None


async def fork_world(
    plan: WorldPlan,
    image: SandboxImage,
    *,
    seed: int,
    check: Callable[[Environment, Sandbox], Awaitable[None]] | None = None,
) -> World:
    """A world on a frozen state, its services restarted and healthy.

    ``check`` sees the files before any service may touch them. A world that
    cannot be completed is torn down first.
    """
    environment = _environment(plan)
    # No log holds the values of variables.
    image = replace(image, spec=replace(image.spec, env=plan.spec.env))
    (sandbox,) = await plan.provider.fork(image, 1)
    world = World(plan, sandbox, environment)
    try:
        if environment is not None and check is not None:
            async with deadline(plan.deadlines.environment, StateError, "proving a fork"):
                await check(environment, sandbox)
        await _bring_up(world, seed)
    except BaseException:
        with contextlib.suppress(BenchFlowError):
            await world.teardown()
        raise
    return world


async def _bring_up(world: World, seed: int) -> None:
    limits = world.plan.deadlines
    async with deadline(limits.environment, EnvironmentFailed, "starting services in a fork"):
        await world.provision(fresh=False, seed=seed)
    async with deadline(limits.readiness, EnvironmentFailed, "waiting for services in a fork"):
        await world.ready()


@asynccontextmanager
async def scratch_world(
    plan: WorldPlan, image: SandboxImage, problem: Callable[[BenchFlowError], Awaitable[None]]
) -> AsyncIterator[World]:
    """A throw-away fork: for a verifier, a shell, a diff.

    What was done in it counts even where it cannot be removed: ``problem`` is told.
    """
    world = await fork_world(plan, image, seed=0)
    try:
        yield world
    finally:
        try:
            await world.teardown()
        except (SandboxError, EnvironmentFailed) as error:
            await problem(error)


def first_error(raised: BaseException) -> BaseException:
    """The first leaf of an exception group that is not a cancellation; any other error itself."""
    waiting = [raised]
    cancelled: BaseException | None = None
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting[:0] = error.exceptions
        elif isinstance(error, asyncio.CancelledError):
            cancelled = cancelled or error
        else:
            return error
    return cancelled or raised
