from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.contracts.errors import Fenced, StoreError, StoreFull
from core.contracts.store import Event, EventDraft, Ownership, RolloutState
from core.store.recorder import BATCH_EVENTS, CAPACITY
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, opened, owned, said


async def test_events_are_numbered_without_gaps_per_rollout_and_per_line(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    for number in range(450):
        await recorder.put(said(str(number), line=number % 3))
    await recorder.close()
    events = await store.log.read(own.rollout)
    assert [event.seq for event in events] == list(range(1, 451))
    for line in range(3):
        mine = [event for event in events if event.line == line]
        assert [event.line_seq for event in mine] == list(range(1, 151))
        assert [int(str(event.payload["text"])) % 3 for event in mine] == [line] * 150


async def test_commit_returns_what_a_reader_then_finds(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    await recorder.put(said("before"))
    events = await recorder.commit(said("a"), said("b", line=2))
    assert [(event.seq, event.line_seq, event.cursor) for event in events] == [
        (2, 2, "1.2"),
        (3, 1, "1.3"),
    ]
    assert (await store.log.read(own.rollout))[1:] == list(events)
    assert (await store.log.read(own.rollout, after=2, limit=1)) == [events[1]]


async def test_a_queued_event_is_committed_without_being_asked(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    await store.log.recorder(own).put(said("alone"))
    async for batch in store.log.follow(own.rollout):
        assert [event.payload for event in batch] == [{"text": "alone"}]
        break


async def test_put_waits_while_the_queue_is_full(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The writer thread is held, so nothing can leave the queue.
    held = asyncio.create_task(
        store.database.file_work(
            lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        )
    )
    produced = 0

    async def produce() -> None:
        nonlocal produced
        for number in range(CAPACITY + BATCH_EVENTS + 5):
            await recorder.put(said(str(number)))
            produced += 1

    producer = asyncio.create_task(produce())
    done, _ = await asyncio.wait([producer], timeout=0.3)
    assert not done
    assert produced <= CAPACITY + BATCH_EVENTS
    gate.set()
    await held
    await producer
    await recorder.close()
    assert len(await store.log.read(own.rollout, limit=10_000)) == produced


async def test_a_fenced_writer_changes_nothing_and_is_told_every_time(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    await recorder.commit(said("mine"))
    clock.now += 60
    heir = await store.engines.register()
    await store.rollouts.claim(heir, own.rollout)
    with pytest.raises(Fenced, match="term 2"):
        await recorder.commit(said("late"))
    for _ in range(2):
        with pytest.raises(Fenced):
            await recorder.put(said("later"))
    with pytest.raises(Fenced):
        await recorder.close()
    assert [event.payload["text"] for event in await store.log.read(own.rollout)] == ["mine"]


async def test_a_full_disk_stops_the_recorder_and_leaves_whole_batches(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    await recorder.commit(said("kept"))
    await store.database.write(
        "update",
        lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=80").scalar_one(),
        durable=False,
    )

    async def fill() -> None:
        for _ in range(100):
            await recorder.commit(*[said("x" * 4000) for _ in range(20)])

    with pytest.raises(StoreFull, match="no space"):
        await fill()
    with pytest.raises(StoreFull):
        await recorder.put(said("more"))
    count = len(await store.log.read(own.rollout, limit=10_000))
    assert (count - 1) % 20 == 0
    assert (await store.rollouts.get(own.rollout)).head_seq == count


async def test_a_closed_recorder_takes_nothing(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    await recorder.close()
    with pytest.raises(StoreError, match="closed"):
        await recorder.put(said("late"))


async def test_a_cancelled_commit_leaves_the_store_usable(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    for number in range(30):
        task = asyncio.create_task(recorder.commit(said(str(number))))
        await asyncio.sleep(0.0002 * (number % 7))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await recorder.commit(said("last"))
    events = await store.log.read(own.rollout)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].payload == {"text": "last"}


async def test_closing_the_store_commits_what_is_queued(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        own = await owned(store, tmp_path)
        await store.log.recorder(own).put(said("queued"))
    async with opened(tmp_path / "store") as store:
        assert [event.payload["text"] for event in await store.log.read(own.rollout)] == ["queued"]


async def test_a_follower_sees_every_event_once_and_ends_with_the_rollout(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    seen: list[Event] = []

    async def follow() -> None:
        async for batch in store.log.follow(own.rollout, after=1):
            seen.extend(batch)

    follower = asyncio.create_task(follow())
    recorder = store.log.recorder(own)
    for number in range(700):
        await recorder.put(said(str(number)))
        if number % 50 == 0:
            await asyncio.sleep(0)
    await store.rollouts.update(own, state=RolloutState.SCORED, reward=1.0)
    await follower
    assert [event.seq for event in seen] == list(range(2, 701))


async def test_a_follower_in_another_store_object_is_woken(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as writer, opened(tmp_path / "store") as reader:
        own = await owned(writer, tmp_path)
        following = reader.log.follow(own.rollout)
        first = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        await writer.log.recorder(own).commit(said("across"))
        assert [event.payload["text"] for event in await first] == ["across"]
        await following.aclose()  # type: ignore[attr-defined]


_ops = st.lists(
    st.tuples(st.sampled_from(["put", "commit", "claim"]), st.integers(0, 3)), max_size=25
)


@settings(max_examples=25, deadline=None)
@given(ops=_ops)
def test_any_mix_of_writes_and_takeovers_gives_a_gapless_log(
    tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[str, int]]
) -> None:
    async def run(folder: Path) -> None:
        clock = Clock()
        async with opened(folder / "store", clock=clock) as store:
            own = await owned(store, folder)
            for op, line in ops:
                own = await _apply(store, own, op, line, clock)
            await store.log.recorder(own).close()
            events = await store.log.read(own.rollout)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [event.term for event in events] == sorted(event.term for event in events)
            for key in {(event.line, event.attempt) for event in events}:
                mine = [e.line_seq for e in events if (e.line, e.attempt) == key]
                assert mine == list(range(1, len(mine) + 1))

    asyncio.run(run(tmp_path_factory.mktemp("log")))


async def _apply(store: SqlStore, own: Ownership, op: str, line: int, clock: Clock) -> Ownership:
    recorder = store.log.recorder(own)
    draft = EventDraft("said", {"text": op}, line=line)
    if op == "put":
        await recorder.put(draft)
    elif op == "commit":
        await recorder.commit(draft, draft)
    else:
        await recorder.close()
        clock.now += 60
        engine = await store.engines.register()
        return await store.rollouts.claim(engine, own.rollout, new_attempt=line > 1)
    return own
