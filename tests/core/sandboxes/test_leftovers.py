"""Nothing is left: after teardown, after a failure, and after kill -9 and a reap."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.contracts.errors import SandboxError, SandboxLost, SnapshotError
from core.contracts.sandbox import Mount, SandboxImage, SandboxSpec
from core.sandboxes.cgroups import discover
from core.sandboxes.identity import is_root
from core.sandboxes.local import LocalProvider
from core.sandboxes.waiting import finish
from tests.core.sandboxes.helpers import descendants, files, groups, mounts, until, with_argument

pytestmark = pytest.mark.sandbox
SPEC = SandboxSpec("leftovers")

ENGINE = """
import asyncio, sys
from pathlib import Path
from core.contracts.sandbox import SandboxSpec
from core.sandboxes.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]), {"engine": "doomed"})
    sandbox = await provider.start(SandboxSpec("doomed"))
    await sandbox.exec(["sh", "-c", "echo x > x"], timeout=20)
    await sandbox.snapshot()
    await sandbox.spawn(["sleep", sys.argv[2]])
    await sandbox.spawn(["sh", "-c", f"setsid sleep {sys.argv[2]} & exec sleep {sys.argv[2]}"])
    other = await provider.start(SandboxSpec("doomed"))
    await other.spawn(["sleep", sys.argv[2]])
    if sys.argv[3] == "frozen":
        await sandbox.freeze()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def dead(labels: Mapping[str, str]) -> bool:
    return False


def nothing_left(root: Path) -> None:
    assert descendants(os.getpid()) == set()
    assert mounts(root) == []
    assert groups(root) == set()
    assert files(root) == set()


async def test_teardown_leaves_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    sandbox = await provider.start(SPEC)
    await sandbox.spawn(["sleep", "60"])
    await sandbox.exec(["sh", "-c", "mkdir -p a/b; chmod 0 a; mkfifo f"], timeout=20)
    assert files(tmp_path) != set()
    assert bool(groups(tmp_path)) == bool(discover())
    await sandbox.relay.forward(9000)
    await sandbox.expose_port(9001)
    image = await sandbox.snapshot()
    child, other = await provider.fork(image, 2)
    await asyncio.gather(sandbox.teardown(), child.teardown(), other.teardown())
    await provider.discard(image)
    nothing_left(tmp_path)


async def test_a_hundred_cycles_leak_no_descriptor(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)

    async def cycle() -> None:
        sandbox = await provider.start(SPEC)
        await sandbox.exec(["true"], timeout=20)
        program = await sandbox.spawn(["cat"])
        await sandbox.relay.forward(9000)
        await program.kill(grace=0)
        await sandbox.teardown()

    async with provider:
        await cycle()
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(25):
            await asyncio.gather(*(cycle() for _ in range(4)))
        await asyncio.sleep(0)
        assert sorted(os.listdir("/proc/self/fd")) == before
    nothing_left(tmp_path)


async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    (tmp_path / "tool").mkdir()
    bad = SandboxSpec(
        "bad", mounts=(Mount("/workspace", source=tmp_path / "tool"), Mount("/workspace/new"))
    )
    sandbox = await provider.start(bad)
    with pytest.raises(SandboxError, match="Read-only"):
        await sandbox.exec(["true"], timeout=10)
    await sandbox.teardown()
    for wrong in ("relative", "/proc/x", "/usr/lib/x", "/", "/a/../b"):
        with pytest.raises(SandboxError, match="mount target"):
            await provider.start(SandboxSpec("bad", mounts=(Mount(wrong),)))
    (tmp_path / "tool").rmdir()
    nothing_left(tmp_path)


async def start_and_fork(provider: LocalProvider, image: SandboxImage) -> None:
    first = await provider.start(SPEC)
    made = [first]
    try:
        made += await provider.fork(image, 3)
    finally:
        await finish(asyncio.gather(*(one.teardown() for one in made)))


async def test_cancelling_a_start_or_a_fork_leaves_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    sandbox = await provider.start(SPEC)
    image = await sandbox.snapshot(retire=True)
    for delay in range(12):
        task = asyncio.create_task(start_and_fork(provider, image))
        await asyncio.sleep(delay * 0.008)
        task.cancel()
        await asyncio.wait([task])
    await sandbox.teardown()
    await provider.discard(image)
    nothing_left(tmp_path)


async def test_a_killed_holder_is_noticed_and_cleaned(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    sandbox = await provider.start(SPEC)
    program = await sandbox.spawn(["sleep", "60"])
    nursery = _only_child(os.getpid())
    if not is_root():
        # The nursery works one process further down, in its own pid namespace.
        nursery = _only_child(nursery)
    holder = _only_child(nursery)
    os.kill(holder, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(program.wait(), 10)
    with pytest.raises(SandboxLost):
        await sandbox.exec(["true"], timeout=10)
    await sandbox.teardown()
    nothing_left(tmp_path)


def _only_child(pid: int) -> int:
    (child,) = [below for below in descendants(pid) if _parent(below) == pid]
    return child


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("state", ["running", "frozen"])
async def test_after_kill_9_of_the_engine_a_reap_leaves_nothing(tmp_path: Path, state: str) -> None:
    mark = f"4{os.getpid()}.{state.count('n')}"
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE, str(tmp_path), mark, state, stdout=asyncio.subprocess.PIPE
    )
    assert engine.stdout is not None
    assert await asyncio.wait_for(engine.stdout.readline(), 30) == b"ready\n"
    assert len(with_argument(f"sleep\0{mark}")) == 4
    engine.kill()
    await engine.wait()
    provider = LocalProvider(tmp_path, {"engine": "heir"})
    if state == "running":
        # The kernel ends everything by itself; a reap only removes what lies around.
        await until(lambda: not with_argument(f"sleep\0{mark}"))
    assert len(files(tmp_path)) > 2
    kept = await provider.reap(is_live=lambda labels: labels.get("engine") == "doomed")
    assert kept == []
    removed = await provider.reap(is_live=dead)
    assert sum("sandbox" in line for line in removed) >= 2
    await until(lambda: not with_argument(f"sleep\0{mark}"))
    nothing_left(tmp_path)
    assert await provider.reap(is_live=dead) == []


async def test_a_reap_spares_what_lives_and_what_is_pinned(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, {"engine": "me"})
    sandbox = await provider.start(SPEC)
    await sandbox.exec(["sh", "-c", "echo kept > x"], timeout=20)
    image = await sandbox.snapshot()
    assert await provider.reap(is_live=lambda labels: labels.get("image") == image.id) == []
    (child,) = await provider.fork(image)
    # The image goes, its layer stays: a sandbox stands on it.
    assert await provider.reap(is_live=dead) == [f"image {image.id}"]
    assert (await child.exec(["cat", "x"], timeout=20)).stdout == b"kept\n"
    await child.teardown()
    await sandbox.teardown()
    with pytest.raises(SnapshotError, match="gone"):
        await provider.fork(image)
    nothing_left(tmp_path)


async def test_seed_layers_are_shared_and_named_by_content(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.mkdir()
    (seed / "f").write_text("one")
    provider = LocalProvider(tmp_path / "store")
    spec = SandboxSpec("seeded", mounts=(Mount("/workspace", seed=seed),))

    async def content() -> bytes:
        sandbox = await provider.start(spec)
        try:
            return (await sandbox.exec(["cat", "f"], timeout=20)).stdout
        finally:
            await sandbox.teardown()

    def layers() -> set[str]:
        return {path.name for path in (tmp_path / "store" / "layers").iterdir()}

    assert await content() == b"one"
    first = layers()
    assert await content() == b"one"
    assert layers() == first
    (seed / "f").write_text("two")
    assert await content() == b"two"
    assert len(layers()) == len(first) + 1
