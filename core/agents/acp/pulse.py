"""Whether a running turn shows life.

Invariant: the time in which a user is waited for, or a tool call is open, is
never held against the agent. Nothing here polls: the one timer is set to the
earliest moment at which the silence could be too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from core.contracts.agent import MessageText, SessionUpdate, ThoughtText, ToolUpdate
from core.contracts.errors import AgentTimeout, BenchFlowError, CheckpointError

_OVER = frozenset({"completed", "failed"})


class Pulse:
    """Counts the silence of one turn.

    ``first`` seconds are allowed up to the first sign of life, ``idle`` between
    two of them (None: any time). With ``own_acts`` only what the agent itself
    does is a first sign: an echo of the prompt or a list of commands is not.
    """

    def __init__(self, first: float, idle: float | None, *, own_acts: bool = False) -> None:
        self._first = first
        self._idle = idle
        self.own_acts = own_acts
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._signed = asyncio.Event()
        self._held = 0
        self._tools: set[str] = set()
        self._never = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    @property
    def alive(self) -> bool:
        """Whether there was any sign of life yet."""
        return self._signed.is_set()

    @property
    def limit(self) -> float | None:
        """Seconds of silence that are allowed now."""
        return self._idle if self.alive else self._first

    def heard(self, update: SessionUpdate) -> None:
        """The agent reported this."""
        act = isinstance(update, MessageText | ThoughtText | ToolUpdate)
        if act or self.alive or not self.own_acts:
            self._beat()
        if isinstance(update, ToolUpdate):
            self._tool(update)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Around a wait for the user: an act of the agent that lasts."""
        self._signed.set()
        with self.held():
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, silence does not count; its end is no sign of life."""
        self._held += 1
        self._touch()
        try:
            yield
        finally:
            self._held -= 1
            self._touch()

    async def lost(self) -> None:
        """Ends once the silence was too long; never, where that is allowed.

        To be awaited from the turn's start on.
        """
        while True:
            await self._free.wait()
            limit = self.limit
            left = None if limit is None else self._last + limit - self._loop.time()
            if left is not None and left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    # The first sign changes the limit; later ones only move the moment.
                    await (self._never if self.alive else self._signed).wait()

    def error(self, name: str, tail: str) -> BenchFlowError:
        """What to raise once it is lost; ``tail`` is the agent's last words."""
        where, limit = f"its last output: {tail or 'nothing'}", f"{self.limit or 0.0:g} s"
        if self.own_acts and not self.alive:
            # No time-out: what that agent left would be scored, and nothing was learnt of it.
            return CheckpointError(
                f"agent {name} took its session up in the fork, but did nothing for {limit} "
                "after the first prompt",
                where=where,
                remedy="Branch from the root, or use another version of the agent",
            )
        what = (
            f"did nothing for {limit}, with no tool call and no question open"
            if self.alive
            else f"gave no sign of life for {limit} after a prompt"
        )
        remedy = "Check that the agent can reach its model"
        return AgentTimeout(f"agent {name} {what}", where=where, remedy=remedy)

    def _tool(self, update: ToolUpdate) -> None:
        if update.status in _OVER:
            self._tools.discard(update.tool_call_id)
        elif update.status is not None:
            self._tools.add(update.tool_call_id)
        self._beat()

    def _beat(self) -> None:
        self._signed.set()
        self._touch()

    def _touch(self) -> None:
        self._last = self._loop.time()
        if self._held or self._tools:
            self._free.clear()
        else:
            self._free.set()
