"""Nudges: promised before the last turn is over, or refused."""

from __future__ import annotations

import asyncio

import pytest

from core.contracts.errors import Conflict
from core.contracts.user import Nudge
from core.kernel.nudges import Nudges

ONE, TWO = Nudge("one", "ann"), Nudge("two", "ann")


async def test_nudges_are_given_in_the_order_they_came() -> None:
    nudges = Nudges()
    nudges.put(ONE)
    nudges.put(TWO)
    assert [nudges.take(), await nudges.last(), nudges.take()] == [ONE, TWO, None]


async def test_whoever_waits_for_one_wakes_when_it_comes() -> None:
    nudges = Nudges()
    waiting = asyncio.create_task(nudges.come())
    await asyncio.sleep(0)
    assert not waiting.done()
    nudges.put(ONE)
    await asyncio.wait_for(waiting, 5)
    assert nudges.take() == ONE


async def test_the_last_one_waits_for_a_promise_and_gives_it() -> None:
    nudges = Nudges()
    with nudges.promised():
        last = asyncio.create_task(nudges.last())
        await asyncio.sleep(0)
        assert not last.done()
        nudges.put(ONE)
    assert await asyncio.wait_for(last, 5) == ONE
    with nudges.promised():
        pass


async def test_a_promise_that_fails_lets_the_line_end() -> None:
    nudges = Nudges()
    with nudges.promised():
        last = asyncio.create_task(nudges.last())
        await asyncio.sleep(0)
        assert not last.done()
    assert await asyncio.wait_for(last, 5) is None


async def test_after_the_last_turn_nothing_is_promised() -> None:
    nudges = Nudges()
    assert await nudges.last() is None
    with pytest.raises(Conflict, match="had its last turn"), nudges.promised():
        raise AssertionError("not reached")
    closed = Nudges()
    closed.close()
    with pytest.raises(Conflict), closed.promised():
        raise AssertionError("not reached")
