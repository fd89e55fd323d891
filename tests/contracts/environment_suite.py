"""What every ``Environment`` must do, whatever provides it.

A test class inherits ``EnvironmentSuite`` and gives it ``world``: an environment
provisioned fresh and ready in a real sandbox, whose state ``add`` changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from core.contracts.environment import EnvContext, Environment
from core.contracts.errors import StateError
from core.contracts.sandbox import Sandbox, SandboxProvider


@dataclass(frozen=True)
class RunningWorld:
    """One environment in its sandbox."""

    provider: SandboxProvider
    sandbox: Sandbox
    environment: Environment
    another: Callable[[], Environment]
    """A new object for the same environment, for a fork."""
    add: Callable[[Sandbox], Awaitable[None]]
    """Change the state through the running service."""
    count: Callable[[Sandbox], Awaitable[int]]
    """How many changes the running service itself sees."""
    url: str
    """What the agent is told."""

    async def digest(self) -> str:
        return (await self.environment.query()).digest


class EnvironmentSuite:
    """Inherit, and define the ``world`` fixture."""

    async def test_the_agent_reaches_the_service_where_it_is_told(
        self, world: RunningWorld
    ) -> None:
        program = "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/count', timeout=10)"
        result = await world.sandbox.exec(
            ["python3", "-I", "-c", program, world.url], user="agent", timeout=30
        )
        assert result.ok, result.stderr

    async def test_no_state_is_in_the_agents_view(self, world: RunningWorld) -> None:
        for mount in world.environment.mounts():
            assert "agent" not in mount.seen_by
            result = await world.sandbox.exec(["ls", mount.target], user="agent", timeout=10)
            assert not result.ok, f"the agent sees {mount.target}"

    async def test_equal_states_have_equal_digests_and_others_do_not(
        self, world: RunningWorld
    ) -> None:
        before = await world.digest()
        assert await world.digest() == before
        await world.add(world.sandbox)
        assert await world.digest() != before

    async def test_a_restored_snapshot_is_seen_by_the_service_itself(
        self, world: RunningWorld
    ) -> None:
        await world.add(world.sandbox)
        before = await world.digest()
        snap = await world.environment.snapshot()
        assert not snap.in_layer
        await world.add(world.sandbox)
        await world.add(world.sandbox)
        await world.environment.restore(snap)
        assert await world.count(world.sandbox) == 1
        assert await world.digest() == before
        await world.add(world.sandbox)
        assert await world.count(world.sandbox) == 2

    async def test_snapshots_do_not_know_each_other(self, world: RunningWorld) -> None:
        none = await world.environment.snapshot()
        await world.add(world.sandbox)
        one = await world.environment.snapshot()
        await world.add(world.sandbox)
        for snap, count in ((none, 0), (one, 1), (none, 0), (one, 1)):
            await world.environment.restore(snap)
            assert await world.count(world.sandbox) == count

    async def test_reset_goes_back_to_the_state_after_provisioning(
        self, world: RunningWorld
    ) -> None:
        before = await world.digest()
        await world.add(world.sandbox)
        await world.environment.reset()
        assert await world.digest() == before
        assert await world.count(world.sandbox) == 0

    async def test_flush_seals_the_state_and_says_which_it_is(self, world: RunningWorld) -> None:
        first = await world.environment.flush(1)
        again = await world.environment.flush(2)
        assert first.in_layer
        assert (first.epoch, again.epoch) == (1, 2)
        assert first.digest == again.digest
        await world.add(world.sandbox)
        assert (await world.environment.flush(3)).digest != first.digest

    async def test_a_fork_goes_on_from_the_captured_state_alone(self, world: RunningWorld) -> None:
        await world.add(world.sandbox)
        snap = await world.environment.flush(1)
        image = await world.sandbox.snapshot()
        await world.add(world.sandbox)
        (child,) = await world.provider.fork(image)
        environment = world.another()
        try:
            await environment.provision(EnvContext(child, state="restored", seed=2))
            await environment.readiness()
            assert await world.count(child) == 1
            await environment.restore(snap)
            await world.add(child)
            await world.add(child)
            with pytest.raises(StateError, match="not the one that was captured"):
                await environment.restore(snap)
            await environment.readiness()
            assert await world.count(child) == 3
            assert await world.count(world.sandbox) == 2
        finally:
            await environment.teardown()
            await child.teardown()
            await world.provider.discard(image)

    async def test_a_snapshot_of_something_else_is_refused_and_changes_nothing(
        self, world: RunningWorld
    ) -> None:
        snap = await world.environment.snapshot()
        before = await world.digest()
        with pytest.raises(StateError):
            await world.environment.restore(replace(snap, payload={"states": {}}))
        assert await world.digest() == before
        assert await world.count(world.sandbox) == 0

    async def test_a_cancelled_restore_leaves_an_environment_that_can_be_restored(
        self, world: RunningWorld
    ) -> None:
        snap = await world.environment.snapshot()
        await world.add(world.sandbox)
        for pauses in (0, 1, 3, 10, 30, 100):
            task = asyncio.create_task(world.environment.restore(snap))
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await world.environment.restore(snap)
        assert await world.count(world.sandbox) == 0

    async def test_after_teardown_nothing_listens_and_a_second_one_does_nothing(
        self, world: RunningWorld
    ) -> None:
        await world.environment.teardown()
        await world.environment.teardown()
        with pytest.raises(ConnectionRefusedError):
            await world.count(world.sandbox)
