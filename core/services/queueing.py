"""Waiting for a slot, while people may still change their mind.

A queued rollout is owned but has not begun. Whoever cancels it need not wait
for its turn: it gets its first event, the cancel and its end at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from core.contracts.errors import Conflict
from core.contracts.store import CommandRecord, Ownership
from core.contracts.values import Outcome
from core.kernel import events as ev
from core.kernel.finish import finish
from core.kernel.rollout import RolloutFacts, root_event
from core.kernel.spec import LineResult
from core.services.engine import Engine, error_json


class JobSlots:
    """The slots of one job, each also one of the whole store's.

    Only as many rollouts as may run stand in the store's queue; the others wait here.
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit
        self._gate = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def slot(self, rollout: str) -> AsyncIterator[None]:
        slots, engine = self._engine.tools.store.slots, self._engine.id
        async with self._gate:
            await slots.acquire(engine, rollout, limit=self._limit)
            try:
                yield
            finally:
                await finish(slots.release(engine, rollout))


async def turn_or_cancel(
    engine: Engine,
    own: Ownership,
    facts: RolloutFacts,
    slot: AbstractAsyncContextManager[None],
    stack: AsyncExitStack,
) -> LineResult | None:
    """Wait for the slot, which ``stack`` then holds; a result when a person cancelled first."""
    cancelled: list[LineResult] = []
    waiting = asyncio.create_task(stack.enter_async_context(slot))
    asked = asyncio.create_task(_until_cancelled(engine, own, facts, cancelled))
    try:
        await asyncio.wait({waiting, asked}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, asked):
            task.cancel()
        await finish(_settled(waiting, asked))
    if not asked.cancelled():
        asked.result()
    if cancelled:
        # Also where the slot came while the cancel was being written: it is done.
        return cancelled[0]
    waiting.result()
    return None


async def _settled(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks)


async def _until_cancelled(
    engine: Engine, own: Ownership, facts: RolloutFacts, cancelled: list[LineResult]
) -> None:
    async for command in engine.tools.store.commands.pending(own):
        if command.verb == "cancel" and command.args.get("scope") != "turn":
            await finish(_cancel(engine, own, facts, command, cancelled))
            return
        error = Conflict(
            "the rollout still waits for its slot",
            where=f"rollout {own.rollout}",
            remedy="Try again when its agent runs, or cancel the run",
        )
        await finish(engine.tools.store.commands.finish(own, command.id, error=error_json(error)))
    raise AssertionError("pending() never ends by itself")


async def _cancel(
    engine: Engine,
    own: Ownership,
    facts: RolloutFacts,
    command: CommandRecord,
    cancelled: list[LineResult],
) -> None:
    keeper = engine.keeper(own)
    via = str(command.args.get("via", ""))
    result = LineResult(Outcome.CANCELLED)
    await engine.tools.store.commands.finish(
        own,
        command.id,
        ev.encode(root_event(facts)),
        ev.encode(ev.CancelRequested("run", command.actor, via)),
        ev.encode(ev.RolloutEnded(result.outcome)),
        result={"cancelled": "run"},
    )
    cancelled.append(result)
    await engine.close(own, keeper, result)
