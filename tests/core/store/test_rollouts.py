from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.contracts.errors import Conflict, Fenced, NotFound, StoreError, UsageError
from core.contracts.store import RolloutState
from core.contracts.values import Phase
from core.store import host
from core.store.ids import new_id, new_name
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, new_rollout, opened, owned, said


async def test_a_new_rollout_is_queued_and_owned(store: SqlStore, tmp_path: Path) -> None:
    engine = await store.engines.register()
    new = new_rollout(tmp_path)
    own = await store.rollouts.create(engine, new)
    record = await store.rollouts.get(new.id)
    assert (own.term, own.attempt, record.owner) == (1, 1, engine)
    assert (record.state, record.head_seq, record.config) == (RolloutState.QUEUED, 0, {"seed": 7})
    with pytest.raises(Conflict, match="already"):
        await store.rollouts.create(engine, new)


async def test_a_rollout_is_found_by_id_prefix_name_and_last(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    engine = await store.engines.register()
    first = dataclasses.replace(new_rollout(tmp_path), id="aab1")
    second = dataclasses.replace(new_rollout(tmp_path), id="aac1")
    await store.rollouts.create(engine, first)
    clock.now += 1
    await store.rollouts.create(engine, second)
    assert (await store.rollouts.get("aab")).id == "aab1"
    assert (await store.rollouts.get(second.name)).id == "aac1"
    assert (await store.rollouts.get("last")).id == "aac1"
    with pytest.raises(UsageError, match="more than one"):
        await store.rollouts.get("aa")
    for unknown in ("zz", "", "%"):
        with pytest.raises(NotFound, match="bench ls"):
            await store.rollouts.get(unknown)


async def test_lists_are_newest_first_or_by_revision(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    engine = await store.engines.register()
    owns = []
    for _ in range(3):
        owns.append(await store.rollouts.create(engine, new_rollout(tmp_path)))
        clock.now += 1
    seen = await store.revision()
    await store.rollouts.update(owns[1], state=RolloutState.RUNNING, phase=Phase.SETUP, steps=2)
    await store.rollouts.update(owns[0], state=RolloutState.SCORED, reward=0.5)
    ids = [own.rollout for own in owns]
    assert [row.id for row in await store.rollouts.select()] == ids[::-1]
    changed = await store.rollouts.select(after_revision=seen)
    assert [row.id for row in changed] == [ids[1], ids[0]]
    assert [row.id for row in await store.rollouts.select(states=[RolloutState.RUNNING])] == [
        ids[1]
    ]
    assert await store.rollouts.select(job="other") == []
    assert changed[0].started_at is not None
    assert changed[1].ended_at is not None


async def test_a_change_of_a_list_wakes_whoever_waits_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store, opened(tmp_path / "store") as other:
        own = await owned(store, tmp_path)
        seen = await other.revision()
        waiting = asyncio.create_task(other.changed(seen, timeout=30))
        await asyncio.sleep(0)
        await store.rollouts.update(own, steps=1)
        assert await waiting > seen
        assert await store.changed(await store.revision(), timeout=0) == await store.revision()


@pytest.mark.parametrize(
    "fields",
    [{"color": "red"}, {"steps": True}, {"reward": float("nan")}, {"head_seq": 3}, {"state": 1}],
)
async def test_a_field_that_cannot_be_set_is_named(
    store: SqlStore, tmp_path: Path, fields: dict[str, object]
) -> None:
    own = await owned(store, tmp_path)
    with pytest.raises(StoreError, match=next(iter(fields))):
        await store.rollouts.update(own, **fields)  # type: ignore[arg-type]


async def test_a_live_owner_is_named_and_keeps_its_rollout(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    other = await store.engines.register()
    with pytest.raises(Conflict, match=str(os.getpid())):
        await store.rollouts.claim(other, own.rollout)
    with pytest.raises(Conflict):
        await store.rollouts.claim(own.engine, own.rollout)
    assert await store.rollouts.orphans() == []


async def test_an_owner_may_start_a_new_attempt_and_fences_its_old_one(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    again = await store.rollouts.claim(own.engine, own.rollout, new_attempt=True)
    assert (again.term, again.attempt) == (2, 2)
    with pytest.raises(Fenced):
        await store.rollouts.update(own, steps=1)
    await store.rollouts.update(again, steps=1)


async def test_beating_keeps_the_lease_and_silence_loses_it(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    for _ in range(5):
        clock.now += 10
        await store.engines.beat(own.engine)
    other = await store.engines.register()
    with pytest.raises(Conflict):
        await store.rollouts.claim(other, own.rollout)
    clock.now += 14
    await store.engines.beat(other)
    with pytest.raises(Conflict):
        await store.rollouts.claim(other, own.rollout)
    clock.now += 2
    assert [row.id for row in await store.rollouts.orphans()] == [own.rollout]
    assert [engine.id for engine in await store.engines.live()] == [other]
    heir = await store.rollouts.claim(other, own.rollout)
    with pytest.raises(Fenced, match="another engine took"):
        await store.rollouts.update(own, steps=9)
    with pytest.raises(Fenced):
        await store.rollouts.release(own)
    assert (heir.term, heir.attempt) == (2, 1)


async def test_a_released_rollout_is_free_at_once(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    await store.log.recorder(own).put(said("last words"))
    await store.rollouts.release(own)
    assert (await store.rollouts.get(own.rollout)).head_seq == 1
    assert (await store.rollouts.claim(own.engine, own.rollout)).term == 2


async def test_a_deregistered_engine_leaves_its_rollouts_free(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    await store.engines.deregister(own.engine)
    assert [row.id for row in await store.rollouts.orphans()] == [own.rollout]
    with pytest.raises(NotFound, match="not registered"):
        await store.engines.beat(own.engine)


_OWNER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from core.store.sql import SqlStore
from tests.core.store.helpers import owned

async def main():
    store = SqlStore(Path(sys.argv[1]))
    await store.open()
    own = await owned(store, Path(sys.argv[1]))
    print(own.rollout, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_owner_is_dead_at_once_and_its_pid_is_never_mistaken(
    tmp_path: Path,
) -> None:
    root = str(Path(__file__).parents[3])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _OWNER,
        str(tmp_path / "store"),
        root,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    rollout = (await process.stdout.readline()).decode().strip()
    async with opened(tmp_path / "store") as store:
        engine = await store.engines.register()
        with pytest.raises(Conflict, match=str(process.pid)):
            await store.rollouts.claim(engine, rollout)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert (await store.rollouts.claim(engine, rollout)).term == 2
        assert len(await store.engines.live()) == 1


def test_a_process_is_known_by_its_start_and_boot() -> None:
    start = host.process_start(os.getpid())
    assert start is not None
    facts = {"host": host.host_name(), "pid": os.getpid(), "boot": host.boot_id()}
    assert host.process_lives(**facts, start=start) is True  # type: ignore[arg-type]
    assert host.process_lives(**facts, start=start + 1) is False  # type: ignore[arg-type]
    facts["boot"] = "an earlier boot"
    assert host.process_lives(**facts, start=start) is False  # type: ignore[arg-type]
    facts["host"] = "elsewhere"
    assert host.process_lives(**facts, start=start) is None  # type: ignore[arg-type]


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert host.process_start(process.pid) is None
    process.wait()
    process.stdout.close()


def test_ids_sort_by_time_and_names_fit_a_folder() -> None:
    ids = [new_id() for _ in range(2000)]
    assert sorted({part[:8] for part in ids}) == [part[:8] for part in ids]
    assert {len(part) for part in ids} == {12}
    assert new_name("a/b c\n").startswith("a-b-c__")
    assert new_name("..").startswith("task__")


async def test_one_that_ended_and_was_never_let_go_is_an_orphan_once_its_owner_is_dead(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    await store.rollouts.update(own, state=RolloutState.SCORED.value)
    assert await store.rollouts.orphans() == []
    clock.now += 60
    assert [row.id for row in await store.rollouts.orphans()] == [own.rollout]
    heir = await store.rollouts.claim(await store.engines.register(), own.rollout)
    await store.rollouts.release(heir)
    assert await store.rollouts.orphans() == []
