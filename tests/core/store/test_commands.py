from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from core.contracts.errors import Conflict, Fenced, NotFound, OwnerSilent
from core.contracts.store import CommandState
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, opened, owned, said


async def send(store: SqlStore, rollout: str, key: str, verb: str = "nudge") -> str:
    record = await store.commands.send(rollout, verb, {"text": "go on"}, actor="ann", idem_key=key)
    return record.id


async def test_a_command_reaches_the_owner_in_another_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as owner, opened(tmp_path / "store") as caller:
        own = await owned(owner, tmp_path)

        async def serve() -> None:
            async for command in owner.commands.pending(own):
                await owner.commands.finish(
                    own, command.id, said(command.verb), result={"done": command.verb}
                )

        serving = asyncio.create_task(serve())
        for number in range(5):
            command = await send(caller, own.rollout, f"k{number}", f"verb{number}")
            done = await caller.commands.wait(command)
            assert (done.state, done.result) == (CommandState.DONE, {"done": f"verb{number}"})
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        events = await owner.log.read(own.rollout)
        assert [event.payload["text"] for event in events] == [f"verb{n}" for n in range(5)]


async def test_the_same_key_is_the_same_command(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    first = await send(store, own.rollout, "key")
    assert await send(store, own.rollout, "key") == first
    with pytest.raises(Conflict, match="used for nudge"):
        await send(store, own.rollout, "key", "cancel")
    assert (await store.commands.take(own)) is not None
    assert await store.commands.take(own) is None
    with pytest.raises(NotFound):
        await send(store, "nothing", "key2")


async def test_commands_are_taken_in_order_of_arrival(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    sent = [await send(store, own.rollout, f"k{number}") for number in range(5)]
    taken = [await store.commands.take(own) for _ in range(5)]
    assert [record.id for record in taken if record] == sent


async def test_a_failed_command_carries_its_error(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    command = await send(store, own.rollout, "k")
    await store.commands.take(own)
    await store.commands.finish(own, command, error={"category": "usage", "what": "no"})
    done = await store.commands.wait(command)
    assert (done.state, done.error) == (
        CommandState.FAILED,
        {"category": "usage", "what": "no"},
    )


async def test_what_a_dead_owner_took_is_done_once_by_the_next(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    finished, left = [await send(store, own.rollout, key) for key in ("a", "b")]
    await store.commands.take(own)
    await store.commands.finish(own, finished, said("a"))
    await store.commands.take(own)
    clock.now += 60
    heir = await store.rollouts.claim(await store.engines.register(), own.rollout)
    with pytest.raises(Fenced):
        await store.commands.finish(own, left, said("ghost"))
    with pytest.raises(Fenced):
        await store.commands.take(own)
    record = await store.commands.take(heir)
    assert record is not None
    assert (record.id, record.term) == (left, 2)
    await store.commands.finish(heir, left, said("b"))
    with pytest.raises(Conflict, match="done"):
        await store.commands.finish(heir, left, said("b"))
    assert await store.commands.take(heir) is None
    texts = [event.payload["text"] for event in await store.log.read(own.rollout)]
    assert texts == ["a", "b"]


async def test_a_silent_live_owner_is_named(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    command = await send(store, own.rollout, "k")
    with pytest.raises(OwnerSilent, match=f"process {os.getpid()}"):
        await store.commands.wait(command, silent_after=0.05)


async def test_nobody_alive_to_do_it_is_said_at_once(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    await store.rollouts.release(own)
    command = await send(store, own.rollout, "k")
    with pytest.raises(OwnerSilent, match="no live process owns"):
        await store.commands.wait(command, silent_after=60)


async def test_waiting_for_commands_ends_when_the_rollout_is_lost(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    following = store.commands.pending(own)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    clock.now += 60
    await store.rollouts.claim(await store.engines.register(), own.rollout)
    with pytest.raises(Fenced):
        await first
