"""State comes back whole or not at all: under an open connection, and from a mixed record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from core.contracts.errors import CheckpointError, StateError
from core.contracts.sandbox import Sandbox
from core.environments.manifest import ManifestEnvironment
from core.kernel.checkpoint import Checkpoint, capture
from core.kernel.children import Proof
from core.kernel.world import World, WorldPlan, fork_world
from core.sandboxes.local import LocalProvider
from tests.branch.ledger_world import count_in_memory, ledger_plan, ledger_world, look
from tests.branch.standin import FrontProvider
from tests.core.environments.worlds import ask, counter_manifest, running

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

DATABASE = "/state/c.db"
MORE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    rows = [("x" * 100,) for _ in range(int(sys.argv[2]))]
    database.executemany("INSERT INTO rows (text) VALUES (?)", rows)
"""
SOUND = """
import json, sqlite3, sys
try:
    with sqlite3.connect(sys.argv[1]) as database:
        checked = database.execute("PRAGMA integrity_check").fetchone()[0]
        print(json.dumps([database.execute("SELECT count(*) FROM rows").fetchone()[0], checked]))
except sqlite3.Error as error:
    print(json.dumps([-1, str(error)]))
"""
KEEP = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as live, sqlite3.connect("/tmp/kept.db") as kept:
    live.backup(kept)
"""


async def beside(sandbox: Sandbox, script: str, *words: str) -> str:
    done = await sandbox.exec(["python3", "-I", "-c", script, *words], user="service", timeout=60)
    assert done.ok, done.stderr.decode()
    return done.stdout.decode()


async def faults(sandbox: Sandbox, rows: int) -> list[str]:
    """What is wrong with a database that should hold ``rows`` rows for everybody."""
    own = await ask(sandbox, "GET", "/count")
    fresh, checked = json.loads(await beside(sandbox, SOUND, DATABASE))
    found = [] if own == rows else [f"the service still sees {own} rows"]
    if fresh != rows or checked != "ok":
        found.append(f"a new connection sees {fresh} rows: {checked}")
    return found


async def by_the_environment(sandbox: Sandbox, environment: ManifestEnvironment) -> None:
    snapshot = await environment.snapshot()
    await beside(sandbox, MORE, DATABASE, "1500")
    assert await ask(sandbox, "GET", "/count") == 3500
    await environment.restore(snapshot)


async def by_copying_the_file(sandbox: Sandbox, environment: ManifestEnvironment) -> None:
    """What must not be done: a good copy put over the file that a service has open."""
    await beside(sandbox, KEEP, DATABASE)
    await beside(sandbox, MORE, DATABASE, "1500")
    assert await ask(sandbox, "GET", "/count") == 3500
    done = await sandbox.exec(["cp", "/tmp/kept.db", DATABASE], user="service", timeout=20)
    assert done.ok


@pytest.mark.parametrize(
    ("way", "works"),
    [
        pytest.param(by_the_environment, True, id="by the environment"),
        pytest.param(by_copying_the_file, False, id="by copying the file"),
    ],
)
async def test_a_restore_under_an_open_connection(
    tmp_path: Path,
    way: Callable[[Sandbox, ManifestEnvironment], Awaitable[None]],
    works: bool,
) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with running(tmp_path, environment) as sandbox:
        await beside(sandbox, MORE, DATABASE, "2000")
        assert await faults(sandbox, 2000) == []
        await way(sandbox, environment)
        assert (await faults(sandbox, 2000) == []) is works


async def two_checkpoints(world: World) -> tuple[Checkpoint, Checkpoint]:
    """One, then a row more, then another."""
    first = await capture(world, None, node="n1", epoch=4)
    reader, writer = await world.sandbox.connect(8091)
    writer.write(b"POST /add HTTP/1.0\r\nContent-Length: 3\r\n\r\nkey")
    await writer.drain()
    assert (await reader.read()).endswith(b"key")
    writer.close()
    return first, await capture(world, None, node="n2", epoch=5)


async def refused(plan: WorldPlan, mixed: Checkpoint) -> None:
    await fork_world(plan, mixed.image, seed=0, check=Proof(mixed).check)


async def test_a_sandbox_of_one_epoch_with_the_state_of_the_next_is_refused(
    tmp_path: Path,
) -> None:
    spawned: list[str] = []

    async def at(step: str, sandbox: Sandbox) -> None:
        spawned.append(step)

    async with LocalProvider(tmp_path) as real:
        provider = FrontProvider(real, at=at)
        plan = ledger_plan(provider)
        async with ledger_world(plan) as world:
            first, second = await two_checkpoints(world)
            mixed = dataclasses.replace(first, state=second.state, epoch=second.epoch)
            spawned.clear()
            with pytest.raises(StateError, match="not the one that was captured"):
                await refused(plan, mixed)
            # Its services never ran, and the fork is gone.
            assert any("sqlite.py" in step for step in spawned)
            assert not any("ledger.py" in step for step in spawned)
            assert [one.name for one in (tmp_path / "sandboxes").iterdir()] == [world.sandbox.id]
            for image in (first.image, second.image):
                await provider.discard(image)


async def test_a_record_whose_layers_name_two_epochs_is_refused(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as real:
        plan = ledger_plan(real)
        async with ledger_world(plan) as world:
            whole = await capture(world, None, node="n1", epoch=4)
            assert whole.state is not None
            mixed = dataclasses.replace(whole, state=dataclasses.replace(whole.state, epoch=5))
            with pytest.raises(CheckpointError, match="of epoch 5"):
                await refused(plan, mixed)
            fork = await fork_world(plan, whole.image, seed=0, check=Proof(whole).check)
            assert await count_in_memory(fork.sandbox) == 0
            assert (await look(fork.sandbox)).agree
            await fork.teardown()
            await real.discard(whole.image)
