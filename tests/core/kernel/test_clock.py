"""The agent's clock on a loop whose time only moves when nothing else can happen."""

from __future__ import annotations

import asyncio

import pytest

from core.kernel.clock import AgentClock, Stopwatch
from tests.fakes.instant_loop import now, run


def test_the_limit_is_reached_at_its_second() -> None:
    async def body() -> None:
        clock = AgentClock(10)
        with pytest.raises(TimeoutError):
            async with clock.limit():
                await asyncio.sleep(100)
        assert now() == pytest.approx(10)

    run(body())


def test_without_a_limit_nothing_ends_it() -> None:
    async def body() -> None:
        clock = AgentClock(None)
        async with clock.limit():
            with clock.paused():
                await asyncio.sleep(1000)
            await asyncio.sleep(1000)
        assert clock.paused_seconds == pytest.approx(1000)

    run(body())


def test_a_pause_does_not_use_up_the_limit() -> None:
    async def body() -> None:
        clock = AgentClock(10)

        async def turn() -> None:
            async with clock.limit():
                await asyncio.sleep(4)
                with clock.paused():
                    await asyncio.sleep(500)
                await asyncio.sleep(100)

        with pytest.raises(TimeoutError):
            await turn()
        assert now() == pytest.approx(4 + 500 + 6)
        assert clock.paused_seconds == pytest.approx(500)

    run(body())


def test_pauses_that_overlap_count_once() -> None:
    async def body() -> None:
        clock = AgentClock(10)

        async def pause(after: float, seconds: float) -> None:
            await asyncio.sleep(after)
            with clock.paused():
                await asyncio.sleep(seconds)

        async def turn() -> None:
            async with clock.limit(), asyncio.TaskGroup() as group:
                group.create_task(pause(2, 10))
                group.create_task(pause(5, 20))
                await asyncio.sleep(1000)

        with pytest.raises(TimeoutError):
            await turn()
        assert clock.paused_seconds == pytest.approx(23)
        assert now() == pytest.approx(10 + 23)

    run(body())


def test_what_is_left_is_carried_from_one_turn_to_the_next() -> None:
    async def body() -> None:
        clock = AgentClock(10)
        async with clock.limit():
            await asyncio.sleep(7)
        await asyncio.sleep(1000)
        with pytest.raises(TimeoutError):
            async with clock.limit():
                await asyncio.sleep(100)
        assert now() == pytest.approx(7 + 1000 + 3)

    run(body())


def test_a_limit_entered_while_paused_starts_when_the_pause_ends() -> None:
    async def body() -> None:
        clock = AgentClock(10)

        async def pause() -> None:
            with clock.paused():
                await asyncio.sleep(50)

        pausing = asyncio.create_task(pause())
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with clock.limit():
                await asyncio.sleep(1000)
        assert now() == pytest.approx(50 + 10)
        await pausing

    run(body())


def test_a_pause_that_outlives_the_limits_block_is_harmless() -> None:
    async def body() -> None:
        clock = AgentClock(10)
        with clock.paused():
            async with clock.limit():
                await asyncio.sleep(3)
            await asyncio.sleep(3)
        assert clock.paused_seconds == pytest.approx(6)

    run(body())


def test_a_question_in_the_very_tick_of_the_limit_neither_breaks_nor_saves_it() -> None:
    async def body() -> None:
        clock = AgentClock(10)
        paused = asyncio.Event()

        async def ask() -> None:
            await asyncio.sleep(10)
            with clock.paused():
                paused.set()
                await asyncio.sleep(5)

        asking = asyncio.create_task(ask())
        # So that the question's timer is set first: its pause then comes after the limit
        # was reached, and before the task that it ends has noticed.
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with clock.limit():
                await asyncio.sleep(1000)
        await asking
        assert paused.is_set()

    run(body())


def test_a_used_up_clock_ends_the_next_turn_at_once() -> None:
    async def body() -> None:
        clock = AgentClock(5)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with clock.limit():
                    await asyncio.sleep(1000)
        assert now() == pytest.approx(5)

    run(body())


def test_a_cancellation_is_not_mistaken_for_the_limit() -> None:
    async def body() -> None:
        clock = AgentClock(10)

        async def work() -> None:
            async with clock.limit():
                await asyncio.sleep(1000)

        working = asyncio.create_task(work())
        await asyncio.sleep(1)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(body())


def test_a_stopwatch_adds_up_its_named_parts() -> None:
    async def body() -> None:
        watch = Stopwatch()
        for _ in range(2):
            with watch.part("drain"):
                await asyncio.sleep(2)
            await asyncio.sleep(1)
        assert watch.parts == {"drain": pytest.approx(4)}
        assert watch.seconds == pytest.approx(6)

    run(body())
