"""An engine that is stopped past its lease and wakes up again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from core.contracts.errors import Conflict
from core.contracts.store import EventDraft
from core.store.sql import SqlStore

SCRIPT = Path(__file__).with_name("store_stopped.py")


async def test_a_stopped_owner_is_fenced_off_and_writes_nothing_when_it_wakes(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(tmp_path / "store"), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    rollout = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(_wait_until_stopped, process.pid)

    # Our clock is a minute ahead: the stopped engine's lease is over for us.
    store = SqlStore(tmp_path / "store", clock=lambda: time.time() + ahead)
    await store.open()
    ahead = 0
    engine = await store.engines.register()
    with pytest.raises(Conflict, match=str(process.pid)):
        await store.rollouts.claim(engine, rollout)
    ahead = 60
    await store.engines.beat(engine)
    heir = await store.rollouts.claim(engine, rollout)
    await store.log.recorder(heir).commit(EventDraft("heir", {}))
    process.send_signal(signal.SIGCONT)
    process.stdin.write(b"go on\n")
    output = (await process.stdout.read()).decode()
    assert await process.wait() == 0
    assert output == "fenced 10\n"

    events = await store.log.read(rollout, limit=100_000)
    await store.close()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.payload.get("key") for event in events] == [*range(10), None]
    assert (events[-1].term, events[-1].kind) == (2, "heir")


def _wait_until_stopped(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
