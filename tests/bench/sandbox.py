"""Print what a local sandbox costs: run as ``python -m tests.bench.sandbox [RUNG]`` (root).

A rung is ``overlay`` (the default is the best one here), ``reflink``, ``copy`` or ``btrfs``; set
TMPDIR to a disk that it can use. Wall medians in milliseconds, and CPU of the whole cycle with
every child, beside the floor: a bare ``bwrap`` or ``unshare`` running ``true``.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from core.contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.ladder import named
from core.sandboxes.local import LocalProvider

T = TypeVar("T")
ROUNDS = 30
TRUE = ["/bin/true"]


ACCOUNT = Path("/sys/fs/cgroup/cpuacct/benchflow-bench")


def machine_cpu() -> float:
    """CPU seconds of this process and all below it, waited for or not.

    By an accounting group that every child stays in; without one, of the whole machine.
    """
    if ACCOUNT.is_dir():
        return int((ACCOUNT / "cpuacct.usage").read_text()) / 1e9
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system = (int(value) for value in fields[:3])
    return (user + nice + system) / 100


class Table:
    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    async def time(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        began = time.perf_counter()
        result = await work()
        self.rows.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
        return result

    def print(self) -> None:
        for name, values in self.rows.items():
            ordered = sorted(values)
            high = ordered[int(len(ordered) * 0.95)]
            print(f"{name:38} p50 {statistics.median(ordered):7.1f}  p95 {high:7.1f} ms")


async def one_round(table: Table, provider: LocalProvider) -> None:
    spec = SandboxSpec("bench")

    async def first() -> Sandbox:
        sandbox = await provider.start(spec)
        await sandbox.exec(TRUE, timeout=10)
        return sandbox

    sandbox = await table.time("start to first exec", first)
    await table.time("exec", lambda: sandbox.exec(TRUE, timeout=10))
    await sandbox.exec(["sh", "-c", "echo x > x"], timeout=10)
    await table.time("snapshot, live parent", sandbox.snapshot)
    image = await table.time("snapshot, retired parent", lambda: sandbox.snapshot(retire=True))
    child = await table.time("fork to first command", lambda: forked(provider, image))
    await table.time("teardown", child.teardown)
    await sandbox.teardown()


async def forked(provider: LocalProvider, image: SandboxImage) -> Sandbox:
    (child,) = await provider.fork(image)
    await child.exec(TRUE, timeout=10)
    return child


async def cycles(provider: LocalProvider, keep: bool) -> float:
    """CPU milliseconds of start, exec, teardown; ``keep``: another sandbox keeps all warm."""
    other = await provider.start(SandboxSpec("warm")) if keep else None
    began = machine_cpu()
    for _ in range(ROUNDS):
        sandbox = await provider.start(SandboxSpec("bench"))
        await sandbox.exec(TRUE, timeout=10)
        await sandbox.teardown()
    spent = (machine_cpu() - began) / ROUNDS * 1e3
    if other is not None:
        await other.teardown()
    return spent


def floor(argv: list[str]) -> None:
    if shutil.which(argv[0]) is None:
        print(f"{argv[0]}: not installed")
        return
    began, cpu = time.perf_counter(), machine_cpu()
    for _ in range(ROUNDS):
        subprocess.run(argv, check=True)
    wall = (time.perf_counter() - began) / ROUNDS * 1e3
    print(
        f"floor: {argv[0]:31} mean {wall:6.1f} ms, CPU {(machine_cpu() - cpu) / ROUNDS * 1e3:.1f}"
    )


async def large(table: Table, provider: LocalProvider) -> None:
    """The same fork with 20,000 files below it: what grows with the size of the state."""
    sandbox = await provider.start(SandboxSpec("large"))
    script = "for d in $(seq 200); do mkdir $d; (cd $d; touch $(seq 100)); done"
    await sandbox.exec(["sh", "-c", script], timeout=120)
    image = await sandbox.snapshot(retire=True)
    await sandbox.teardown()
    for _ in range(ROUNDS // 3):
        child = await table.time(
            "fork to first command, 20,000 files", lambda: forked(provider, image)
        )
        await child.teardown()
    await provider.discard(image)


async def main(rung: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        provider = LocalProvider(Path(folder) / "store", rung=named(rung) if rung else None)
        table = Table()
        async with provider:
            found = await table.time("probe", provider.probe)
            print(f"rung {found.rung}", *found.reasons, sep="\n  ")
            for _ in range(ROUNDS):
                await one_round(table, provider)
            await large(table, provider)
        table.print()
        print(f"CPU of start + exec + teardown, alone  {await cycles(provider, False):6.1f} ms")
        print(f"CPU of start + exec + teardown, warm   {await cycles(provider, True):6.1f} ms")
    floor(["bwrap", "--bind", "/", "/", "--unshare-all", "--dev", "/dev", "true"])
    floor(["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "true"])
    floor([sys.executable, "-I", "-S", "-c", "pass"])


if __name__ == "__main__":
    if ACCOUNT.parent.is_dir():
        ACCOUNT.mkdir(exist_ok=True)
        (ACCOUNT / "cgroup.procs").write_text("0")
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else None))
