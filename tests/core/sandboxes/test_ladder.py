"""The best rung that really works is found, kept, and said with what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.contracts.errors import SandboxUnavailable, SnapshotError, StoreFull
from core.contracts.sandbox import Mount, Sandbox, SandboxImage, SandboxSpec
from core.sandboxes import trees
from core.sandboxes.ladder import RECORD
from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Btrfs, Copy, Overlay, Reflink
from tests.core.sandboxes.disks import disk
from tests.core.sandboxes.helpers import files

pytestmark = pytest.mark.sandbox
SPEC = SandboxSpec("ladder")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts disks")


@pytest.fixture
def on_overlay(tmp_path: Path) -> Iterator[Path]:
    """A folder that lies on an overlay, as everything in a container does."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "x", "-o", options, str(merged)], check=True)
    yield merged
    subprocess.run(["umount", str(merged)], check=True)


async def sh(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.exec(["sh", "-c", script], timeout=30)
    assert done.ok, done
    return done.stdout.decode()


async def image_of(provider: LocalProvider, script: str) -> SandboxImage:
    sandbox = await provider.start(SPEC)
    try:
        await sh(sandbox, script)
        return await sandbox.snapshot(retire=True)
    finally:
        await sandbox.teardown()


@root_only
async def test_a_store_on_an_overlay_gets_copies_and_is_told_why(on_overlay: Path) -> None:
    provider = LocalProvider(on_overlay / "store")
    found = await provider.probe()
    assert (found.rung, found.available, found.o1_fork) == ("copy", True, False)
    text = "\n".join(found.reasons)
    assert "overlay: the store" in text
    assert "put the store on a disk or a tmpfs" in text
    assert "every fork and every snapshot copies all files" in text
    assert files(on_overlay / "store") == set()


@root_only
@pytest.mark.parametrize(("kind", "rung"), [("btrfs", "btrfs"), ("xfs", "overlay")])
async def test_the_disk_decides(tmp_path: Path, kind: str, rung: str) -> None:
    with disk(kind, tmp_path, 400) as place:
        provider = LocalProvider(place / "store")
        found = await provider.probe()
        assert (found.rung, found.o1_fork, found.live_parent) == (rung, True, True)
        assert not any("copies" in reason for reason in found.reasons)
        image = await image_of(provider, "head -c 3000000 /dev/urandom > big; echo 1 > n")
        (child,) = await provider.fork(image)
        assert await sh(child, "echo 2 >> n; cat n; stat -c %s big") == "1\n2\n3000000\n"
        second = await child.snapshot()
        await child.teardown()
        for item in (image, second):
            await provider.discard(item)
        assert files(place / "store") == set()


async def test_a_store_keeps_the_rung_of_its_images(tmp_path: Path) -> None:
    first = LocalProvider(tmp_path, rung=Copy())
    image = await image_of(first, "echo 1 > n")
    record = {"boot_id": "of another boot", "euid": os.geteuid(), "rung": Copy().name, "passed": []}
    (tmp_path / RECORD).write_text(json.dumps(record))
    again = LocalProvider(tmp_path)
    (child,) = await again.fork(image)
    assert again.rung.name == Copy().name
    assert await sh(child, "cat n") == "1\n"
    await child.teardown()
    await again.discard(image)
    # Nothing holds it there any more: the best one again.
    (tmp_path / RECORD).unlink()
    free = LocalProvider(tmp_path)
    await (await free.start(SPEC)).teardown()
    assert free.rung.name == Overlay().name


async def test_images_of_another_format_are_refused(tmp_path: Path) -> None:
    image = await image_of(LocalProvider(tmp_path, rung=Copy()), "echo 1 > n")
    with pytest.raises(SnapshotError, match=r"made by local/copy"):
        await LocalProvider(tmp_path, rung=Overlay()).fork(image)


@root_only
async def test_what_was_copied_can_be_cloned(tmp_path: Path) -> None:
    with disk("xfs", tmp_path, 400) as place:
        image = await image_of(LocalProvider(place / "s", rung=Copy()), "echo 1 > n")
        (child,) = await LocalProvider(place / "s", rung=Reflink()).fork(image)
        assert await sh(child, "cat n") == "1\n"
        await child.teardown()


@root_only
async def test_a_subvolume_made_inside_is_not_lost_in_silence(tmp_path: Path) -> None:
    with disk("btrfs", tmp_path, 400) as place:
        provider = LocalProvider(place / "store", rung=Btrfs())
        sandbox = await provider.start(SPEC)
        merged = place / "store" / "sandboxes" / sandbox.id / "merged"
        trees.Subvolumes().make(merged / "workspace" / "own")
        with pytest.raises(SnapshotError, match="subvolume of its own"):
            await sandbox.snapshot()
        assert await sh(sandbox, "echo goes on") == "goes on\n"
        await sandbox.teardown()
        assert files(place / "store") == set()


@root_only
async def test_a_full_disk_refuses_a_start_and_a_capture_leaves_the_parent_running(
    tmp_path: Path,
) -> None:
    with disk("tmpfs", tmp_path, 200) as place:
        provider = LocalProvider(place / "store", rung=Overlay())
        sandbox = await provider.start(SPEC)
        await sh(sandbox, "head -c 60M /dev/zero > big; echo 1 > n")
        with (place / "ballast").open("wb") as file:
            file.write(bytes(100 << 20))
        with pytest.raises(SnapshotError, match="disk of the sandboxes is full"):
            await sandbox.snapshot()
        assert await sh(sandbox, "cat n") == "1\n"
        with pytest.raises(StoreFull, match="MB are free"):
            await provider.start(SPEC)
        (place / "ballast").unlink()
        image = await sandbox.snapshot()
        assert image.new_bytes > 60 << 20
        await sandbox.teardown()
        await provider.discard(image)
        assert files(place / "store") == set()


async def test_after_a_reboot_only_what_reached_the_disk_counts(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    async with provider:
        safe = await image_of(provider, "echo safe > n")
    assert (tmp_path / "layers" / safe.layers[-1] / "synced").exists()
    torn = await image_of(provider, "echo torn > n")
    for layer in (tmp_path / "layers").iterdir():
        record = json.loads((layer / "layer.json").read_text())
        (layer / "layer.json").write_text(json.dumps({**record, "boot_id": "the one before"}))
    after = LocalProvider(tmp_path)
    (child,) = await after.fork(safe)
    assert await sh(child, "cat n") == "safe\n"
    await child.teardown()
    with pytest.raises(SnapshotError, match="may be damaged: the machine went down"):
        await after.fork(torn)


async def test_first_files_that_may_be_damaged_are_laid_out_again(tmp_path: Path) -> None:
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "f").write_text("whole")
    spec = SandboxSpec("x", mounts=(Mount("/workspace", seed=tmp_path / "seed"),))
    store = tmp_path / "store"
    await (await LocalProvider(store).start(spec)).teardown()
    for layer in (store / "layers").glob("b*"):
        record = json.loads((layer / "layer.json").read_text())
        (layer / "layer.json").write_text(json.dumps({**record, "boot_id": "the one before"}))
        if (layer / "fs" / "workspace" / "f").exists():
            (layer / "fs" / "workspace" / "f").write_text("")
    sandbox = await LocalProvider(store).start(spec)
    assert await sh(sandbox, "cat f") == "whole"
    await sandbox.teardown()


class NoTool(Overlay):
    """A rung without any tool on the machine."""

    def obstacles(self, root: Path) -> list[str]:
        return ["`cp` is missing: install coreutils"]


async def test_where_nothing_works_the_person_reads_every_reason(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, rung=NoTool())
    with pytest.raises(SandboxUnavailable, match="install coreutils"):
        await provider.require()
    assert not (await provider.probe()).available
