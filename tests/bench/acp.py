"""How fast a session takes updates, and how soon it notices the end of a turn.

Run it: ``python -m tests.bench.acp``. It prints; nothing is asserted.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from core.agents.acp.agent import AcpAgent, AcpCommand
from core.agents.acp.turn import Deadlines, Dialect
from core.agents.bench_agent.agent import BenchAgent
from core.contracts.agent import Role, Session
from core.contracts.sandbox import SandboxSpec
from tests.fakes.host_sandbox import HostSandbox

ROGUE = Path(__file__).parents[1] / "core" / "agents" / "rogue_agent.py"
UPDATES = 50_000
TURNS = 30


async def drain(session: Session) -> int:
    count = 0
    async for _ in session.updates():
        count += 1
    return count


async def connect(folder: Path, mode: str, deadlines: Deadlines | None = None) -> Session:
    command = AcpCommand((sys.executable, "-I", "-S", str(ROGUE), mode))
    agent = AcpAgent(Dialect("bench"), command, deadlines=deadlines)
    return await agent.connect(HostSandbox(folder, SandboxSpec("bench")), Role())


async def updates_per_second(folder: Path) -> None:
    session = await connect(folder, "many_updates")
    reader = asyncio.create_task(drain(session))
    wall, cpu = time.perf_counter(), time.process_time()
    await session.prompt(str(UPDATES))
    await session.settle()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await session.close()
    print(f"updates through a session   {await reader / wall:10,.0f} /s wall", end="")
    print(f"   {UPDATES / cpu:10,.0f} /s of our CPU")


async def parse_only() -> None:
    body = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "1"}}
    line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"update": body}})
    began = time.process_time()
    for _ in range(UPDATES):
        json.loads(line)
    print(f"json.loads alone            {UPDATES / (time.process_time() - began):10,.0f} /s")


async def end_of_turn(folder: Path) -> None:
    """From the agent's answer in our pipe to ``prompt`` returning, with and without the grace."""
    for label, silence in (("noticed", 0.0), ("closed, after 100 ms of silence", 0.1)):
        session = await connect(folder, "stamps_end", Deadlines(silence=silence))
        reader = asyncio.create_task(drain(session))
        delays: list[float] = []
        for _ in range(TURNS):
            await session.prompt("x")
            answered = float((folder / "workspace" / "stamp").read_text())
            delays.append((time.monotonic() - answered) * 1000)
        await session.close()
        await reader
        print(f"end of turn {label}: median {statistics.median(delays):.1f} ms", end="")
        print(f", worst {max(delays):.1f} ms")


async def start_up(folder: Path) -> None:
    play = folder / "play.toml"
    play.write_text('[[turn]]\n[[turn.step]]\nsay = "hi"\n')
    agent = BenchAgent(play)
    sandbox = HostSandbox(folder, SandboxSpec("bench", mounts=agent.mounts()))
    walls: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(10):
        began = time.perf_counter()
        session = await agent.connect(sandbox, Role())
        walls.append((time.perf_counter() - began) * 1000)
        await session.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    print(f"bench-agent connected: median {statistics.median(walls):.0f} ms", end="")
    print(f", {used * 100:.0f} ms of its CPU per start and end")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await parse_only()
        await updates_per_second(folder)
        await end_of_turn(folder)
        await start_up(folder)


if __name__ == "__main__":
    asyncio.run(main())
