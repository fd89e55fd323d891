"""Random trees of fork, write, snapshot, restore and discard, against a model in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.contracts.errors import SnapshotError
from core.contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Btrfs, Copy, Overlay, Rung
from tests.core.sandboxes.disks import disk
from tests.core.sandboxes.helpers import files

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
SHOW = "find . -type f -printf '%P ' -exec cat {} ';' | sort"
World = dict[str, str]


class Model:
    """What every living sandbox and every stored image must show."""

    def __init__(self, provider: LocalProvider, seed: int) -> None:
        self.provider = provider
        self.random = random.Random(seed)
        self.running: list[tuple[Sandbox, World]] = []
        self.stored: list[tuple[SandboxImage, World]] = []
        self.count = 0

    async def step(self) -> None:
        if not self.running and not self.stored:
            self.running.append((await self.provider.start(SandboxSpec("random")), {}))
        can: list[str] = ["write", "write", "snapshot", "retire"] if self.running else []
        can += ["fork", "fork"] if self.stored and len(self.running) < 5 else []
        can += ["restore"] if self.running and self.stored else []
        can += ["discard"] if len(self.stored) > 6 else []
        await getattr(self, "_" + self.random.choice(can))()

    async def _write(self) -> None:
        sandbox, world = self.random.choice(self.running)
        script = []
        for _ in range(3):
            self.count += 1
            folder, name = self.random.choice("abc"), self.random.choice("xyz")
            match self.random.choice(("put", "put", "remove", "drop", "move")):
                case "put":
                    script.append(f"mkdir -p {folder}; echo {self.count} > {folder}/{name}")
                    world[f"{folder}/{name}"] = str(self.count)
                case "remove":
                    script.append(f"rm -f {folder}/{name}")
                    world.pop(f"{folder}/{name}", None)
                case "drop":
                    script.append(f"rm -rf {folder}")
                    _drop(world, folder)
                case "move":
                    other = "abc".replace(folder, "")[0]
                    # Only with something inside: the model knows no empty folders.
                    full = f'[ -n "$(ls -A {folder} 2>&-)" ]'
                    script.append(f"if {full}; then rm -rf {other}; mv {folder} {other}; fi")
                    _move(world, folder, other)
        done = await sandbox.exec(["sh", "-c", "; ".join(script)], timeout=30)
        assert done.stderr == b"", (script, done)

    async def _snapshot(self) -> None:
        sandbox, world = self.random.choice(self.running)
        self.stored.append((await sandbox.snapshot(), dict(world)))

    async def _retire(self) -> None:
        sandbox, world = self.running.pop(self.random.randrange(len(self.running)))
        self.stored.append((await sandbox.snapshot(retire=True), world))
        await sandbox.teardown()

    async def _fork(self) -> None:
        image, world = self.random.choice(self.stored)
        made = await self.provider.fork(image, self.random.choice((1, 1, 2)))
        self.running += [(sandbox, dict(world)) for sandbox in made]

    async def _restore(self) -> None:
        index = self.random.randrange(len(self.running))
        sandbox, _ = self.running[index]
        image, world = self.random.choice(self.stored)
        await sandbox.restore(image)
        self.running[index] = (sandbox, dict(world))

    async def _discard(self) -> None:
        image, _ = self.stored.pop(self.random.randrange(len(self.stored)))
        await self.provider.discard(image)

    async def check(self) -> None:
        for sandbox, world in self.running:
            assert await shown(sandbox) == world

    async def end(self) -> None:
        await self.check()
        for sandbox, _ in self.running:
            await sandbox.teardown()
        for image, world in self.stored:
            (sandbox,) = await self.provider.fork(image)
            assert await shown(sandbox) == world
            await sandbox.teardown()
        for image, _ in self.stored:
            await self.provider.discard(image)


def _move(world: World, folder: str, other: str) -> None:
    moved = {key[1:]: value for key, value in world.items() if key.startswith(f"{folder}/")}
    if moved:
        _drop(world, other)
        _drop(world, folder)
        world.update({other + rest: value for rest, value in moved.items()})


def _drop(world: World, folder: str) -> None:
    for key in [key for key in world if key.startswith(f"{folder}/")]:
        del world[key]


async def shown(sandbox: Sandbox) -> World:
    done = await sandbox.exec(["sh", "-c", SHOW], timeout=30)
    assert done.ok, done
    pairs = [line.split() for line in done.stdout.decode().splitlines()]
    return {name: content for name, content in pairs}  # noqa: C416 (dict wants typed pairs)


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with disk("btrfs", tmp_path_factory.mktemp("btrfs"), 600) as place:
        yield place


async def live(provider: LocalProvider, seed: int, steps: int) -> None:
    async with provider:
        model = Model(provider, seed)
        for number in range(steps):
            await model.step()
            if number % 10 == 0:
                await model.check()
        await model.end()
    assert files(provider.store.root) == set()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rung", [Overlay, Copy])
async def test_every_world_is_what_its_history_says(
    tmp_path: Path, rung: type[Rung], seed: int
) -> None:
    await live(LocalProvider(tmp_path, rung=rung(), flatten_at=3), seed, 60)


@pytest.mark.parametrize("seed", range(2))
async def test_every_world_on_btrfs_is_what_its_history_says(btrfs: Path, seed: int) -> None:
    await live(LocalProvider(btrfs / f"store{seed}", rung=Btrfs()), seed, 60)


async def test_a_discarded_state_is_gone(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, rung=Copy())
    sandbox = await provider.start(SandboxSpec("gone"))
    image = await sandbox.snapshot()
    await provider.discard(image)
    with pytest.raises(SnapshotError, match="gone"):
        await provider.fork(image)
    await sandbox.teardown()
