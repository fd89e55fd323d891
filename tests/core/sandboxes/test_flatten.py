"""A deep chain of layers is merged into one, and nobody inside can tell."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from core.contracts.errors import SnapshotError
from core.contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Overlay
from tests.core.sandboxes.helpers import descendants, files, until

pytestmark = pytest.mark.sandbox
SPEC = SandboxSpec("deep")
LOOK = r"""
find . -printf '%p %y %m %s %l %T@\n' | sort; find . -type f | sort | xargs -r sha256sum
"""


async def sh(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.exec(["sh", "-c", script], timeout=60)
    assert done.ok, (script, done)
    return done.stdout.decode()


async def step(provider: LocalProvider, image: SandboxImage, script: str) -> SandboxImage:
    """One generation: fork, change, give up for a snapshot."""
    (sandbox,) = await provider.fork(image)
    try:
        await sh(sandbox, script)
        return await sandbox.snapshot(retire=True)
    finally:
        await sandbox.teardown()


async def begin(provider: LocalProvider, script: str) -> SandboxImage:
    sandbox = await provider.start(SPEC)
    try:
        await sh(sandbox, script)
        return await sandbox.snapshot(retire=True)
    finally:
        await sandbox.teardown()


async def look(provider: LocalProvider, image: SandboxImage) -> str:
    (sandbox,) = await provider.fork(image)
    try:
        return await sh(sandbox, LOOK)
    finally:
        await sandbox.teardown()


CHANGES = (
    "rm gone; rm -r tree/old; echo new > tree/new; chmod 640 kept",
    "mv tree moved; mkdir tree; echo fresh > tree/fresh",
    "mv moved/deep moved/deeper; rm moved/deeper/a; ln -s kept link; ln kept twin",
    "mv moved again; echo more >> again/deeper/b; rm -r tree; echo file > tree",
    "mkfifo pipe; mkdir -m 0 shut; mkdir gone; echo back > gone/back; touch -d @5 again/deeper",
    "setfattr -n user.mark -v yes again/deeper 2>/dev/null; rm twin; rm again/new",
)
FIRST = "mkdir -p tree/old tree/deep; echo k > kept; echo g > gone; cd tree; echo a > deep/a; \
echo b > deep/b; echo o > old/o; chmod 755 deep"


async def test_a_flat_state_shows_exactly_what_the_chain_showed(tmp_path: Path) -> None:
    deep, flat = LocalProvider(tmp_path / "deep"), LocalProvider(tmp_path / "flat", flatten_at=2)
    async with deep, flat:
        images = [await begin(deep, FIRST), await begin(flat, FIRST)]
        for change in CHANGES:
            one = await step(deep, images[0], change)
            two = await step(flat, images[1], change)
            await flat.flattener.close()
            shown = [_no_times(await look(deep, one)), _no_times(await look(flat, two))]
            assert shown[0] == shown[1], change
            images = [one, two]
        assert len(images[0].layers) == 8
        assert len(images[1].layers) <= 3


def _no_times(listing: str) -> list[str]:
    """Two worlds are made at two moments; a time that was set stays."""
    return [
        line if "@" in line or line.endswith(" 5.0000000000") else line.rpartition(" ")[0]
        for line in listing.splitlines()
    ]


async def test_references_follow_the_flat_layer(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, flatten_at=2)
    async with provider:
        images = [await begin(provider, "echo 0 > n")]
        for number in range(1, 4):
            images.append(await step(provider, images[-1], f"echo {number} > n; touch f{number}"))
        (runs,) = await provider.fork(images[-1])
        await provider.flattener.close()
        flats = list((tmp_path / "layers").glob("f*"))
        assert flats
        (child,) = await provider.fork(images[-1])
        below = await child.snapshot()
        # All images of the old chain go; what stands on the flat layer stays.
        for image in images:
            await provider.discard(image)
        assert await sh(runs, "cat n; ls") == "3\nf1\nf2\nf3\nn\n"
        assert await sh(child, "cat n; ls") == "3\nf1\nf2\nf3\nn\n"
        await runs.teardown()
        await child.teardown()
        assert [path.name[0] for path in (tmp_path / "layers").iterdir()].count("l") == 0
        assert "3" in await look(provider, below)
        await provider.discard(below)
    assert files(tmp_path) == set()


async def test_eight_children_of_a_deep_state_flatten_it_once(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, flatten_at=2)
    async with provider:
        image = await begin(provider, "echo 1 > n")
        children = await provider.fork(image, 8)
        await asyncio.gather(*(sh(child, "echo $$ >> n") for child in children))
        await provider.flattener.close()
        assert len(list((tmp_path / "layers").glob("f*"))) == 1
        made = await asyncio.gather(*(child.snapshot(retire=True) for child in children))
        await asyncio.gather(*(child.teardown() for child in children))
        assert len(await provider.chain(made[0])) <= 3


async def test_a_snapshot_lets_go_of_a_chain_that_became_flat_meanwhile(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, flatten_at=3)
    async with provider:
        first = await begin(provider, "echo 1 > n")
        second = await step(provider, first, "echo 2 >> n")
        (sandbox,) = await provider.fork(second)
        await provider.flattener.close()
        await sh(sandbox, "echo 3 >> n")
        third = await sandbox.snapshot()
        assert [layer[0] for layer in third.layers] == ["f", "l"]
        for image in (first, second):
            await provider.discard(image)
        # The parent still stands on the old chain.
        assert await sh(sandbox, "cat n") == "1\n2\n3\n"
        assert len(list((tmp_path / "layers").glob("l*"))) == 3
        await sandbox.teardown()
        assert len(list((tmp_path / "layers").glob("l*"))) == 1
        (child,) = await provider.fork(third)
        assert await sh(child, "cat n") == "1\n2\n3\n"
        await child.teardown()
        await provider.discard(third)
    assert files(tmp_path) == set()


async def test_a_flattening_cut_short_leaves_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, flatten_at=2)
    async with provider:
        script = "i=0; while [ $i -lt 3000 ]; do echo x > f$i; i=$((i+1)); done"
        image = await begin(provider, script)
        for delay in (0.0, 0.02, 0.1):
            work = provider.flattener.begin(image.layers)
            await asyncio.sleep(delay)
            work.cancel()
            await asyncio.wait([work])
        names = {path.name[:3] for path in (tmp_path / "layers").iterdir()}
        assert "tmp" not in names
        (refs,) = (tmp_path / "layers").glob("l*/refs")
        assert os.listdir(refs) == [f"image-{image.id}"]
        await provider.discard(image)
    assert files(tmp_path) == set()
    await until(lambda: not descendants(os.getpid()))


async def test_a_deep_chain_that_cannot_be_flattened_says_why(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    async with provider:
        image = await begin(provider, "echo 1 > n")
        (tmp_path / "layers" / image.layers[-1] / "layer.json").unlink()
        with pytest.raises(SnapshotError, match="may be damaged"):
            await provider.fork(image)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_chain_of_six_hundred_states(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, rung=Overlay())
    async with provider:
        image = await begin(provider, "mkdir d; echo 0 > n; echo 0 >> all; touch d/f0")
        kept = {0: image}
        deepest = 0
        for number in range(1, 601):
            script = (
                f"echo {number} > n; echo {number} >> all; rm d/f{number - 1}; touch d/f{number}"
            )
            after = await step(provider, image, script)
            deepest = max(deepest, len(after.layers))
            if number % 100 == 0:
                kept[number] = after
            if number - 1 not in kept:
                await provider.discard(image)
            image = after
        assert deepest <= 170
        for number, state in kept.items():
            shown = await look(provider, state)
            assert f"./d/f{number} f" in shown
            assert shown.count("./d/f") == 2  # listed once, hashed once
            (sandbox,) = await provider.fork(state)
            lines = (await sh(sandbox, "cat n all")).split()
            assert lines == [str(number), *map(str, range(number + 1))]
            await sandbox.teardown()
        for state in kept.values():
            await provider.discard(state)
    assert files(tmp_path) == set()
