"""A real world with the stock ledger running in it, under load from where the agent lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core.contracts.environment import Environment
from core.contracts.sandbox import Mount, Process, Sandbox, SandboxProvider, SandboxSpec
from core.environments.manifest import ManifestEnvironment
from core.kernel.world import World, WorldPlan, start_world
from core.tasks.models import Manifest, ReadinessSpec, ServiceSpec, StateSpec

STOCK = Path(__file__).parent / "stock"
PORT = 8091
DATABASE = "/state/ledger.db"
LINES = "/state/files/lines.txt"


def ledger_manifest() -> Manifest:
    return Manifest(
        name="ledger",
        folder=STOCK,
        services=(
            ServiceSpec(
                "ledger", f"exec python3 -I -S ledger.py {PORT} {DATABASE} {LINES}", PORT, "/count"
            ),
        ),
        readiness=ReadinessSpec(timeout_sec=30),
        state=(StateSpec("sqlite", (DATABASE,)), StateSpec("files", ("/state/files",))),
    )


def ledger_plan(provider: SandboxProvider) -> WorldPlan:
    def environment() -> Environment:
        return ManifestEnvironment(ledger_manifest())

    load = Mount("/opt/load", source=STOCK, seen_by=frozenset({"agent"}))
    spec = SandboxSpec("ledger", mounts=(*environment().mounts(), load))
    return WorldPlan(provider, spec, environment)


@asynccontextmanager
async def ledger_world(plan: WorldPlan) -> AsyncIterator[World]:
    world = await start_world(plan)
    try:
        await world.provision(fresh=True, seed=0)
        await world.ready()
        yield world
    finally:
        await world.teardown()


@dataclass
class Entry:
    """What one side of a copy of the ledger holds."""

    rows: list[str]
    lines: list[str]
    error: str = ""

    @property
    def agree(self) -> bool:
        return not self.error and sorted(self.rows) == sorted(self.lines)


async def look(sandbox: Sandbox, *how: str, database: str = DATABASE, lines: str = LINES) -> Entry:
    """Read a copy of the ledger with a program of its own."""
    done = await sandbox.exec(
        ["python3", "-I", "-S", "/environment/look.py", *how, database, lines],
        user="service",
        timeout=60,
    )
    assert done.stdout, done.stderr.decode()
    found = json.loads(done.stdout)
    error = str(found.get("error", "")) or ("" if found.get("sound", "ok") == "ok" else "damaged")
    return Entry(found.get("rows", []), found["lines"], error)


async def count_in_memory(sandbox: Sandbox) -> int:
    """What the running service has counted, asked from beside it."""
    reader, writer = await sandbox.connect(PORT, user="service", timeout=10)
    try:
        async with asyncio.timeout(20):
            writer.write(b"GET /count HTTP/1.0\r\n\r\n")
            await writer.drain()
            raw = await reader.read()
    finally:
        writer.close()
    return int(raw.partition(b"\r\n\r\n")[2])


@dataclass
class Load:
    """What the load said of every acknowledged key: when it was sent, and acknowledged."""

    process: Process
    sent: dict[str, float] = field(default_factory=dict)
    acknowledged: dict[str, float] = field(default_factory=dict)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        while line := await self.process.stdout.readline():
            key, sent, done = line.decode().split()
            self.sent[key], self.acknowledged[key] = float(sent), float(done)
            self.more.set()

    async def grown_by(self, count: int) -> None:
        """Wait until that many more keys were acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(30):
            while len(self.acknowledged) < goal:
                self.more.clear()
                await self.more.wait()


@asynccontextmanager
async def under_load(world: World, *, threads: int = 6, prefix: str = "k") -> AsyncIterator[Load]:
    process = await world.sandbox.spawn(
        ["python3", "-I", "-S", "/opt/load/load.py", str(PORT), str(threads), prefix]
    )
    load = Load(process)
    reading = asyncio.create_task(load.read())
    try:
        await load.grown_by(threads)
        yield load
    finally:
        await process.kill(grace=0)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
