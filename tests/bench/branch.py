"""Print what a branch costs, rung by rung: ``python -m tests.bench.branch [--quick]`` (root).

Beside each rung stand what one would do without it: ``cp -a`` of the same state,
``docker commit`` and ``run`` where a daemon answers, and bare starts of the same
programs at once. Nothing here is asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from core.contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from core.kernel.checkpoint import Checkpoint, capture
from core.kernel.children import Proof
from core.kernel.world import WorldPlan, fork_world
from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Btrfs, Copy, Overlay, Reflink, Rung
from tests.branch.ledger_world import STOCK, ledger_plan, ledger_world

TRUE = ["/bin/true"]
CHILDREN = 4
SPEC = SandboxSpec("bench")
MAKERS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
LADDER: list[tuple[str, str, Callable[[], Rung]]] = [
    ("btrfs", "btrfs", Btrfs),
    ("overlay on xfs", "xfs", Overlay),
    ("overlay", "", Overlay),
    ("overlay on tmpfs", "tmpfs", Overlay),
    ("reflink on xfs", "xfs", Reflink),
    ("copy", "", Copy),
]


@dataclass(frozen=True)
class Size:
    name: str
    megabytes: int
    files: int

    @property
    def script(self) -> str:
        per_file = (self.megabytes << 20) // self.files
        return (
            "import os\n"
            f"for number in range({self.files}):\n"
            "    folder = f'state/{number // 500}'\n"
            "    os.makedirs(folder, exist_ok=True)\n"
            f"    open(f'{{folder}}/{{number}}', 'wb').write(os.urandom({per_file}))\n"
        )


FULL = [Size("1 GB, 100 files", 1024, 100), Size("100 MB, 20,000 files", 100, 20_000)]
QUICK = [Size("64 MB, 2,000 files", 64, 2000)]


class Column:
    """Milliseconds of one kind of act."""

    def __init__(self) -> None:
        self.values: list[float] = []

    async def time(self, work: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        await work()
        self.values.append((time.perf_counter() - began) * 1e3)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        ordered = sorted(self.values)
        return f"p50 {self.p50:9.1f}  p95 {ordered[int(len(ordered) * 0.95)]:9.1f} ms"


@contextlib.contextmanager
def place_on(kind: str, folder: Path, megabytes: int) -> Iterator[Path | None]:
    """A folder on a disk of that kind; None, with the reason printed, where there is none."""
    if not kind:
        yield folder
        return
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if kind != "tmpfs":
        if shutil.which(MAKERS[kind][0]) is None:
            print(f"  no {MAKERS[kind][0]} here")
            yield None
            return
        image = folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run([*MAKERS[kind], str(image)], check=True, capture_output=True)
        mount = ["mount", "-o", "loop", str(image), str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"  cannot be mounted here: {done.stderr.strip()}")
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def first_command(provider: LocalProvider, image: SandboxImage) -> Sandbox:
    (child,) = await provider.fork(image)
    await child.exec(TRUE, timeout=60)
    return child


async def one_rung(provider: LocalProvider, size: Size, rounds: int, copying: float) -> None:
    sandbox = await provider.start(SPEC)
    wrote = await sandbox.exec(["python3", "-I", "-c", size.script], timeout=600)
    assert wrote.ok, wrote.stderr.decode()
    image = await sandbox.snapshot(retire=True)
    await sandbox.teardown()
    fork, live, retired = Column(), Column(), Column()
    await (await first_command(provider, image)).teardown()
    for _ in range(rounds):
        children: list[Sandbox] = []

        async def forked(into: list[Sandbox] = children) -> None:
            into.append(await first_command(provider, image))

        await fork.time(forked)
        (child,) = children
        # What an agent writes between two questions: 10 MB in a few files.
        await child.exec(["sh", "-c", "head -c 10000000 /dev/urandom > delta"], timeout=60)
        made: list[SandboxImage] = []

        async def alive(one: Sandbox = child, into: list[SandboxImage] = made) -> None:
            into.append(await one.snapshot())

        async def given_up(one: Sandbox = child, into: list[SandboxImage] = made) -> None:
            into.append(await one.snapshot(retire=True))

        await live.time(alive)
        await retired.time(given_up)
        await child.teardown()
        for one in made:
            await provider.discard(one)
    ratio = copying / fork.p50
    print(f"  fork to first command     {fork}   ({ratio:.0f} x faster than cp -a)")
    print(f"  snapshot, parent goes on  {live}   (frozen meanwhile; 10 MB written)")
    print(f"  snapshot, parent retired  {retired}   (its programs ended on the way)")
    await rates(provider, image, rounds)
    await provider.discard(image)


async def rates(provider: LocalProvider, image: SandboxImage, rounds: int) -> None:
    root = provider.store.root
    count = 4 * rounds

    async def some(number: int) -> list[Sandbox]:
        return [await first_command(provider, image) for _ in range(number)]

    before = _used(root)
    began = time.perf_counter()
    groups = await asyncio.gather(*(some(count // 4) for _ in range(4)))
    spent = time.perf_counter() - began
    each = (_used(root) - before) / count
    print(f"  forks, four at a time     {count / spent:9.1f} a second, {each / 1024:.0f} KB each")
    for child in [one for group in groups for one in group]:
        await child.teardown()


def _used(root: Path) -> int:
    """Bytes in use on the store's disk, what waits in memory included."""
    os.sync()
    info = os.statvfs(root)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def copying(size: Size, folder: Path) -> float:
    """Milliseconds of ``cp -a`` of the same state, its files in the cache."""
    source = folder / "plain"
    source.mkdir()
    subprocess.run([sys.executable, "-c", size.script], cwd=source, check=True)
    took = []
    for _ in range(3):
        target = folder / "copied"
        began = time.perf_counter()
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
        took.append((time.perf_counter() - began) * 1e3)
        shutil.rmtree(target)
    shutil.rmtree(source)
    return statistics.median(took)


def docker(size: Size) -> None:
    """Commit and run of a container with the same state, where a daemon answers."""

    def run(*words: str) -> str:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        run("image", "inspect", "python:3.11-slim")
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("  docker commit + run: skipped (no daemon, or no image python:3.11-slim)")
        return
    parent = run("run", "-d", "python:3.11-slim", "sleep", "3600")
    try:
        run("exec", parent, "python3", "-c", size.script)
        began = time.perf_counter()
        image = run("commit", parent)
        child = run("run", "-d", image, "sleep", "3600")
        run("exec", child, "true")
        print(f"  docker commit + run           {(time.perf_counter() - began) * 1e3:9.1f} ms")
        run("rm", "-f", child)
        run("rmi", image)
    finally:
        run("rm", "-f", parent)


async def branch_of_four(provider: LocalProvider, folder: Path, rounds: int) -> None:
    """Four children with a service each, beside four bare starts of that service."""
    plan = ledger_plan(provider)
    branch, frozen = Column(), Column()
    async with ledger_world(plan) as world:
        for epoch in range(rounds):
            checkpoint = await capture(world, None, node="n1", epoch=epoch)
            frozen.values.append(checkpoint.frozen_seconds * 1e3)
            worlds: list[Awaitable[None]] = []

            async def four(
                one: Checkpoint = checkpoint, into: list[Awaitable[None]] = worlds
            ) -> None:
                into.extend(await children(plan, one))

            await branch.time(four)
            for ending in worlds:
                await ending
            await provider.discard(checkpoint.image)
    bare = Column()
    for number in range(rounds):
        place = folder / f"bare{number}"
        place.mkdir()
        began = time.perf_counter()
        processes = await bare_starts(place)
        bare.values.append((time.perf_counter() - began) * 1e3)
        for process in processes:
            process.kill()
            await process.wait()
    print(f"  four children, services ready   {branch}")
    print(f"  the same four programs, bare    {bare}")
    print(f"  our overhead                    p50 {branch.p50 - bare.p50:9.1f} ms (goal 300)")
    print(f"  frozen during a capture         {frozen} (goal p95 50)")


async def children(plan: WorldPlan, checkpoint: Checkpoint) -> list[Awaitable[None]]:
    proof = Proof(checkpoint)
    made = await asyncio.gather(
        *(
            fork_world(plan, checkpoint.image, seed=number, check=proof.check)
            for number in range(CHILDREN)
        )
    )
    return [world.teardown() for world in made]


async def bare_starts(place: Path) -> list[asyncio.subprocess.Process]:
    """Start the service four times at once; return once each answers."""
    ports = []
    for _ in range(CHILDREN):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    argv = [sys.executable, "-I", "-S", str(STOCK / "ledger.py")]
    processes = [
        await asyncio.create_subprocess_exec(
            *argv, str(port), str(place / f"{port}.db"), str(place / f"files{port}" / "lines.txt")
        )
        for port in ports
    ]
    async with asyncio.timeout(60):
        for port in ports:
            while not await _answers(port):  # noqa: ASYNC110 (a bare program tells nobody)
                await asyncio.sleep(0.002)
    return processes


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def floor(rounds: int) -> None:
    """A bare isolated command: what no fork can be faster than on this machine now."""
    argv = ["bwrap", "--bind", "/", "/", "--unshare-all", "--dev", "/dev", "true"]
    if shutil.which(argv[0]) is None:
        argv = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "true"]
    bare = Column()
    for _ in range(rounds):
        await bare.time(lambda: asyncio.to_thread(subprocess.run, argv, check=True))
    print(f"floor: {argv[0]} of true      {bare}")


async def main(quick: bool) -> None:
    rounds = 5 if quick else 20
    await floor(rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in QUICK if quick else FULL:
            print(f"\n{size.name}")
            took = copying(size, folder)
            print(f"  cp -a                         {took:9.1f} ms")
            docker(size)
            for label, kind, make in LADDER:
                print(f" {label}")
                place = Path(tempfile.mkdtemp(dir=folder))
                with place_on(kind, place, size.megabytes * 3 + 2000) as store:
                    if store is not None:
                        async with LocalProvider(store / "store", rung=make()) as provider:
                            await one_rung(provider, size, rounds, took)
        print("\na branch of four")
        async with LocalProvider(folder / "store") as provider:
            await branch_of_four(provider, folder, rounds)


if __name__ == "__main__":
    asyncio.run(main("--quick" in sys.argv[1:]))
