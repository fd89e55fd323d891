from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.agents.stream import UpdateStream
from core.contracts.agent import MessageText, SessionUpdate


def text(number: int) -> MessageText:
    return MessageText(str(number))


async def read_all(stream: UpdateStream, into: list[SessionUpdate]) -> None:
    async for update in stream.read():
        into.append(update)


async def test_updates_leave_in_order_and_end_with_close() -> None:
    stream = UpdateStream()
    for i in range(5):
        await stream.put(text(i))
    stream.close()
    seen: list[SessionUpdate] = []
    await read_all(stream, seen)
    assert seen == [text(i) for i in range(5)]


@pytest.mark.parametrize("sizes", [[1] * 3, [10, 1], [4, 4, 4]])
async def test_a_writer_waits_while_the_stream_is_full(sizes: list[int]) -> None:
    stream = UpdateStream(max_items=3, max_bytes=10)
    for i, size in enumerate(sizes):
        stream.put_now(text(i), size)
    assert stream.full
    writer = asyncio.create_task(stream.put(text(99)))
    await asyncio.sleep(0)
    assert not writer.done()
    reader = stream.read()
    for _ in sizes:
        await anext(reader)
    await writer
    assert await anext(reader) == text(99)


async def test_settle_waits_until_the_reader_asks_for_more() -> None:
    stream = UpdateStream()
    stream.put_now(text(1))
    reader = stream.read()
    assert await anext(reader) == text(1)
    settled = asyncio.create_task(stream.settle())
    await asyncio.sleep(0.01)
    assert not settled.done()
    following = asyncio.ensure_future(anext(reader))
    await settled
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_settle_ignores_what_comes_after_it_was_called() -> None:
    stream = UpdateStream()
    stream.put_now(text(1))
    reader = stream.read()
    await anext(reader)
    settled = asyncio.create_task(stream.settle())
    await asyncio.sleep(0)
    stream.put_now(text(2))
    await anext(reader)
    await asyncio.wait_for(settled, 5)


async def test_a_reader_that_is_cancelled_frees_who_settles() -> None:
    stream = UpdateStream()
    seen: list[SessionUpdate] = []
    reading = asyncio.create_task(read_all(stream, seen))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    stream.put_now(text(1))
    await asyncio.wait_for(stream.settle(), 5)


async def test_close_frees_a_writer_that_waits_and_drops_its_update() -> None:
    stream = UpdateStream(max_items=1)
    stream.put_now(text(1))
    writer = asyncio.create_task(stream.put(text(2)))
    await asyncio.sleep(0)
    stream.close()
    await writer
    seen: list[SessionUpdate] = []
    await read_all(stream, seen)
    assert seen == [text(1)]


async def test_quiet_restarts_its_silence_with_each_update() -> None:
    stream = UpdateStream()
    loop = asyncio.get_running_loop()
    ended: list[float] = []
    came: list[float] = []
    waiting = asyncio.create_task(stream.quiet(0.2, 10.0))
    waiting.add_done_callback(lambda _: ended.append(loop.time()))
    for i in range(4):
        await asyncio.sleep(0.1)
        came.append(loop.time())
        stream.put_now(text(i))
    await waiting
    assert ended[0] - max(when for when in came if when <= ended[0]) >= 0.19


async def test_quiet_gives_up_at_its_limit() -> None:
    stream = UpdateStream()

    async def chatter() -> None:
        while True:
            stream.put_now(text(0))
            await asyncio.sleep(0.01)

    noisy = asyncio.create_task(chatter())
    await asyncio.wait_for(stream.quiet(0.2, 0.3), 5)
    noisy.cancel()
    await asyncio.gather(noisy, return_exceptions=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["put", "read", "tick"]), max_size=60))
def test_any_mix_of_writing_and_reading_keeps_order_and_bound(steps: list[str]) -> None:
    async def run() -> None:
        stream = UpdateStream(max_items=3)
        written = 0
        writers: list[asyncio.Task[None]] = []
        seen: list[SessionUpdate] = []
        reader = stream.read()
        for step in steps:
            if step == "put":
                writers.append(asyncio.create_task(stream.put(text(written))))
                written += 1
            elif step == "read" and len(seen) < written:
                seen.append(await anext(reader))
            await asyncio.sleep(0)
            assert stream.received - len(seen) <= 3
        while len(seen) < written:
            seen.append(await anext(reader))
        await asyncio.gather(*writers)
        assert seen == [text(i) for i in range(written)]

    asyncio.run(run())
