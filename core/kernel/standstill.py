"""Standstill: a person stops a line where it stands, and lets it go on.

While it lasts nothing of the line moves: new requests are held at the relay, its
programs are frozen, and neither the agent's clock nor its silence counts. Work that
needs the line to move, a capture above all, waits for the end of it; and it begins
only between two such pieces of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from core.contracts.agent import Holdable, Session
from core.kernel.clock import AgentClock
from core.kernel.world import World


class Standstill:
    """Of one line. ``begin`` and ``end`` may be called again; they change nothing then."""

    def __init__(self, clock: AgentClock) -> None:
        self._clock = clock
        self._moving = asyncio.Lock()
        self._held: ExitStack | None = None
        self._frozen: World | None = None

    @property
    def on(self) -> bool:
        return self._held is not None

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Around work that needs the line to move."""
        async with self._moving:
            yield

    async def passed(self) -> None:
        """Return once the line may move."""
        async with self._moving:
            return

    async def begin(self, world: World | None, session: Session | None) -> None:
        """Stop the world's programs, if it has any yet, and every clock.

        Raises SandboxError where they cannot be frozen; the line goes on then.
        """
        if self._held is not None:
            return
        await self._moving.acquire()
        held = ExitStack()
        held.callback(self._moving.release)
        try:
            held.enter_context(self._clock.paused())
            if isinstance(session, Holdable):
                held.enter_context(session.held())
            if world is not None:
                world.sandbox.relay.fence()
                held.callback(world.sandbox.relay.lift)
                await world.sandbox.freeze()
        except BaseException:
            held.close()
            raise
        self._held, self._frozen = held, world

    async def end(self) -> None:
        """Let everything go on; the agent's programs first."""
        held, self._held = self._held, None
        world, self._frozen = self._frozen, None
        if held is None:
            return
        try:
            if world is not None:
                await world.sandbox.thaw()
        finally:
            held.close()
