from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.contracts.errors import Conflict, NotFound
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, opened


async def test_a_job_is_listed_and_ends(store: SqlStore, clock: Clock) -> None:
    made = await store.jobs.create("2026-01-01__10-00-00", "/jobs/a", {"n": 1})
    clock.now += 5
    await store.jobs.create("2026-01-02__10-00-00", "/jobs/b", {})
    await store.jobs.end(made.id)
    assert (await store.jobs.get("2026-01-01")).ended_at == clock.now
    assert [job.folder for job in await store.jobs.select()] == ["/jobs/b", "/jobs/a"]
    assert (await store.jobs.get("last")).folder == "/jobs/b"
    with pytest.raises(Conflict):
        await store.jobs.create(made.id, "/x", {})
    with pytest.raises(NotFound):
        await store.jobs.end("nothing")


async def test_no_more_run_than_the_limit_over_all_engines(tmp_path: Path) -> None:
    running = most = 0
    pair = asyncio.Barrier(2)
    async with opened(tmp_path / "s") as one, opened(tmp_path / "s") as two:
        stores = [(one, await one.engines.register()), (two, await two.engines.register())]

        async def run(number: int) -> None:
            nonlocal running, most
            store, engine = stores[number % 2]
            await store.slots.acquire(engine, f"r{number}", limit=2)
            running += 1
            most = max(most, running)
            # Nobody leaves before a second one runs, so that two do run at once.
            await pair.wait()
            running -= 1
            await store.slots.release(engine, f"r{number}")

        await asyncio.gather(*(run(number) for number in range(10)))
    assert most == 2


async def test_slots_are_given_in_the_order_they_were_asked_for(store: SqlStore) -> None:
    engine = await store.engines.register()
    await store.slots.acquire(engine, "holder", limit=1)
    order: list[str] = []

    async def queue(name: str) -> None:
        await store.slots.acquire(engine, name, limit=1)
        order.append(name)
        await store.slots.release(engine, name)

    tasks = []
    for name in ("first", "second", "third"):
        tasks.append(asyncio.create_task(queue(name)))
        await store.jobs.select()
        await store.database.file_work(lambda: None)
    await store.slots.release(engine, "holder")
    await asyncio.gather(*tasks)
    assert order == ["first", "second", "third"]


async def test_whoever_stops_waiting_leaves_the_queue(store: SqlStore) -> None:
    engine = await store.engines.register()
    await store.slots.acquire(engine, "holder", limit=1)
    waiting = asyncio.create_task(store.slots.acquire(engine, "gone", limit=1))
    await store.database.file_work(lambda: None)
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await store.slots.release(engine, "holder")
    await store.slots.acquire(engine, "next", limit=1)


async def test_a_slot_of_a_dead_engine_is_free(store: SqlStore, clock: Clock) -> None:
    dead = await store.engines.register()
    await store.slots.acquire(dead, "r1", limit=1)
    clock.now += 60
    alive = await store.engines.register()
    await store.slots.acquire(alive, "r2", limit=1)
    # Asking again for a slot one has is no second slot.
    await store.slots.acquire(alive, "r2", limit=1)
