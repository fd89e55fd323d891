"""A line that stands still: nothing counts, captures wait, and it goes on as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from core.contracts.agent import Session
from core.contracts.errors import SandboxError
from core.kernel.clock import AgentClock
from core.kernel.standstill import Standstill
from core.kernel.world import World


class Relay:
    def __init__(self) -> None:
        self.fenced = False

    def fence(self) -> None:
        self.fenced = True

    def lift(self) -> None:
        self.fenced = False


class Box:
    """A world's sandbox, as far as a standstill touches it."""

    def __init__(self, *, can_freeze: bool = True) -> None:
        self.relay = Relay()
        self.frozen = False
        self._can = can_freeze

    @property
    def sandbox(self) -> Box:
        return self

    async def freeze(self) -> None:
        if not self._can:
            raise SandboxError("no freezer here")
        assert self.relay.fenced, "requests are held before programs are"
        self.frozen = True

    async def thaw(self) -> None:
        self.frozen = False


class Silence:
    """A session that counts silence."""

    def __init__(self) -> None:
        self.holds = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1


async def test_everything_stops_and_goes_on() -> None:
    clock, box, session = AgentClock(0.05), Box(), Silence()
    still = Standstill(clock)
    async with clock.limit():
        await still.begin(cast(World, box), cast(Session, session))
        assert (box.frozen, box.relay.fenced, session.holds, still.on) == (True, True, 1, True)
        await asyncio.sleep(0.1)  # longer than the agent's whole time
        await still.end()
        assert (box.frozen, box.relay.fenced, session.holds, still.on) == (False, False, 0, False)
    assert clock.paused_seconds >= 0.1


async def test_doing_either_twice_changes_nothing() -> None:
    clock, box = AgentClock(None), Box()
    still = Standstill(clock)
    await still.end()
    await still.begin(cast(World, box), None)
    await still.begin(cast(World, box), None)
    await still.end()
    assert (box.frozen, box.relay.fenced) == (False, False)
    await asyncio.wait_for(still.passed(), 1)


async def test_work_that_needs_the_line_to_move_waits_for_the_end() -> None:
    still = Standstill(AgentClock(None))
    await still.begin(cast(World, Box()), None)
    done: list[str] = []

    async def capture() -> None:
        async with still.moving():
            done.append("captured")

    task = asyncio.create_task(capture())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == []
    await still.end()
    await task
    assert done == ["captured"]


async def test_a_standstill_begins_after_the_capture_that_is_under_way() -> None:
    box = Box()
    still = Standstill(AgentClock(None))
    async with still.moving():
        begun = asyncio.create_task(still.begin(cast(World, box), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not box.frozen
    await begun
    assert box.frozen
    await still.end()


async def test_a_sandbox_that_cannot_be_frozen_goes_on_as_if_nothing_was() -> None:
    clock, box, session = AgentClock(None), Box(can_freeze=False), Silence()
    still = Standstill(clock)
    with pytest.raises(SandboxError, match="no freezer"):
        await still.begin(cast(World, box), cast(Session, session))
    assert (box.relay.fenced, session.holds, still.on) == (False, 0, False)
    await asyncio.wait_for(still.passed(), 1)


async def test_a_line_without_a_world_yet_is_held_at_its_next_turn() -> None:
    still = Standstill(AgentClock(None))
    await still.begin(None, None)
    waiting = asyncio.create_task(still.passed())
    await asyncio.sleep(0)
    assert not waiting.done()
    await still.end()
    await waiting
