"""What a running turn waits for, and how long.

Invariant: every wait of a session has a limit in ``Deadlines``, except the wait
for an agent that shows signs of life: that one is bounded by whoever prompts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from core.agents.acp.pulse import Pulse


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each answer of the agent may take, in seconds."""

    initialize: float = 60.0
    new_session: float = 60.0
    take_up: float = 90.0
    """For ``session/resume`` or ``session/load``, and each setting put back after it."""
    first_update: float = 300.0
    """From a prompt to the first sign of life of its turn."""
    restored_update: float = 180.0
    """From the first prompt of a session taken up in a fork to the agent's first act."""
    idle: float | None = 600.0
    """From one sign of life to the next, no tool call and no question being open."""
    cancel: float = 5.0
    """From ``session/cancel`` to the end of the turn; then the process is killed."""
    extension: float = 30.0
    close: float = 2.0
    silence: float = 0.1
    """A turn closes after this long without an update past the agent's answer,"""
    late: float = 1.0
    """at most this long after it."""
    replay: float = 10.0
    """How long a replay may go on past the answer of ``session/load``."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this agent departs from the usual, from its registry entry."""

    name: str
    asks_by: Literal["elicitation", "permission"] = "elicitation"


class Turn:
    """What one running prompt waits for."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def cancelled_for(self, seconds: float) -> None:
        """Ends ``seconds`` after the turn was cancelled."""
        await self.cancelled.wait()
        await asyncio.sleep(seconds)
