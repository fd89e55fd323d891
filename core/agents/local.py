"""What the built-in agents without a process share: a session that is a coroutine.

Invariant: it keeps the same contract as a session with a process: one turn at a
time, cancel ends the turn, close ends everything and may be called twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Protocol

from core.agents.stream import UpdateStream
from core.contracts.agent import (
    AgentExit,
    AskUserHandler,
    PermissionHandler,
    SessionSnapshot,
    SessionUpdate,
)
from core.contracts.errors import AgentCrashed, CheckpointError, UsageError
from core.contracts.values import Fidelity, StopReason

_numbers = itertools.count(1)


class TurnRunner(Protocol):
    """What such an agent does in a turn."""

    async def __call__(self, text: str, stream: UpdateStream) -> StopReason: ...


class LocalSession:
    """A session whose turns are run by ``runner`` in this process."""

    def __init__(self, agent: str, runner: TurnRunner) -> None:
        self._agent = agent
        self._runner = runner
        self._id = f"{agent}-{next(_numbers)}"
        self._stream = UpdateStream()
        self._turn: asyncio.Task[StopReason] | None = None
        self._closed = False

    @property
    def id(self) -> str:
        return self._id

    async def prompt(self, text: str) -> StopReason:
        """Run one turn; CANCELLED when ``cancel`` or ``close`` ended it."""
        if self._closed:
            raise AgentCrashed(f"the session of agent {self._agent} is closed")
        if self._turn is not None:
            raise UsageError("a turn of this session is still running", remedy="Wait or cancel it")
        turn = self._turn = asyncio.create_task(self._runner(text, self._stream))
        try:
            await asyncio.wait({turn})
        finally:
            self._turn = None
            if not turn.done():
                turn.cancel()
                await asyncio.wait({turn})
        return StopReason.CANCELLED if turn.cancelled() else turn.result()

    async def resume_turn(self) -> StopReason:
        """Always raises CheckpointError: these agents never wait for an answer."""
        raise CheckpointError(f"agent {self._agent} never leaves a turn open")

    async def cancel(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.wait({self._turn})

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """These agents never ask."""

    def on_permission(self, handler: PermissionHandler) -> None:
        """These agents never ask."""

    def updates(self) -> AsyncIterator[SessionUpdate]:
        return self._stream.read()

    async def settle(self) -> None:
        await self._stream.settle()

    async def snapshot(self) -> SessionSnapshot:
        """Nothing to keep: such an agent has no memory between turns."""
        if self._turn is not None:
            raise CheckpointError(
                f"agent {self._agent} is in the middle of a turn", remedy="Wait for its end"
            )
        return SessionSnapshot(self._agent, Fidelity.EXACT, {}, pending_ask=False, steps=0)

    async def close(self) -> AgentExit:
        self._closed = True
        await self.cancel()
        self._stream.close()
        return AgentExit(None)
