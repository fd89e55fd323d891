from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.store.doorbell import Doorbell


def deep(folder: Path) -> Path:
    """A folder whose sockets' paths exceed the 107 bytes of an address."""
    return folder / ("x" * 120) / "bells"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Doorbell, Doorbell]]:
    folder = deep(tmp_path)
    folder.parent.mkdir()
    one, two = Doorbell(folder, "one", 600), Doorbell(folder, "two", 600)
    one.open()
    two.open()
    yield one, two
    one.close()
    two.close()


async def test_a_ring_wakes_another_process_by_topic(pair: tuple[Doorbell, Doorbell]) -> None:
    one, two = pair
    mark, other = two.mark("r1"), two.mark("r2")
    one.ring("r1")
    async with asyncio.timeout(10):
        while two.mark("r1") == mark:
            await two.wait("r1", mark)
    assert two.mark("r2") == other


async def test_a_ring_between_mark_and_wait_is_not_missed(
    pair: tuple[Doorbell, Doorbell],
) -> None:
    one, _ = pair
    mark = one.mark("")
    one.ring("")
    await asyncio.wait_for(one.wait("", mark), 0.5)


async def test_a_wait_without_a_ring_ends_by_itself(pair: tuple[Doorbell, Doorbell]) -> None:
    one, _ = pair
    await asyncio.wait_for(one.wait("", one.mark(""), 0.01), 5)


async def test_the_bell_of_a_dead_process_is_taken_down(
    pair: tuple[Doorbell, Doorbell], tmp_path: Path
) -> None:
    one, _ = pair
    folder = deep(tmp_path)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.chdir(folder):
        dead.bind("dead.sock")
    dead.close()
    assert (folder / "dead.sock").exists()
    one.ring("")
    assert not (folder / "dead.sock").exists()
    assert (folder / "two.sock").exists()


async def test_ringing_somebody_who_never_listens_does_not_block(
    pair: tuple[Doorbell, Doorbell], tmp_path: Path
) -> None:
    one, two = pair
    folder = deep(tmp_path)
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.chdir(folder):
        deaf.bind("deaf.sock")
    for _ in range(2000):
        one.ring("r")
    deaf.close()
    mark = two.mark("q")
    one.ring("q")
    await two.wait("q", mark)


async def test_a_missed_ring_costs_no_more_than_the_poll(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "bells", "me", 0.01)
    bell.open()
    await asyncio.wait_for(bell.wait("", bell.mark("")), 5)
    await asyncio.wait_for(bell.wait("", bell.mark(""), 60), 5)
    bell.close()


async def test_closing_wakes_who_waits_and_leaves_no_socket(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "bells", "me", 600)
    bell.open()
    waiting = asyncio.create_task(bell.wait("", bell.mark("")))
    await asyncio.sleep(0)
    bell.close()
    await waiting
    assert list((tmp_path / "bells").iterdir()) == []
