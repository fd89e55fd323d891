"""A machine that cannot run local sandboxes is told so, with the way out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from core.contracts.errors import SandboxUnavailable, SnapshotError
from core.contracts.sandbox import SandboxImage, SandboxSpec
from core.sandboxes.layers import LayerStore
from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Overlay, file_system_of


class Refuses(Overlay):
    """A rung on a machine with something in the way."""

    def obstacles(self, root: Path) -> list[str]:
        return ["the moon is full: wait a day"]


class BadOption(Overlay):
    """A rung whose mount the kernel refuses, which only a real try can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.mount_options = "no-such-option=1"


async def test_an_obstacle_is_named_with_its_remedy(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, rung=Refuses())
    found = await provider.probe()
    assert (found.available, found.rung) == (False, "none")
    assert found.reasons == ("the moon is full: wait a day",)
    with pytest.raises(SandboxUnavailable, match="wait a day"):
        await provider.start(SandboxSpec("x"))


@pytest.mark.sandbox
async def test_the_probe_really_mounts(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, rung=BadOption())
    found = await provider.probe()
    assert not found.available
    assert "mount overlay" in found.reasons[0]
    with pytest.raises(SandboxUnavailable, match="mount overlay"):
        await provider.start(SandboxSpec("x"))
    assert list((tmp_path / "sandboxes").iterdir()) == []


@pytest.mark.sandbox
def test_a_store_on_an_overlay_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "x", "-o", options, str(merged)], check=True)
    try:
        assert file_system_of(merged / "store") == "overlay"
        (reason,) = Overlay().obstacles(merged / "store")
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert "put the store on a disk" in reason
    assert Overlay().obstacles(tmp_path) == []


@pytest.mark.sandbox
async def test_an_image_of_another_provider_is_refused(tmp_path: Path) -> None:
    image = SandboxImage(
        id="i1",
        provider="docker",
        parent=None,
        rung="overlay",
        layers=("l1",),
        new_bytes=0,
        seconds=0,
        captured=frozenset(),
        spec=SandboxSpec("x"),
    )
    with pytest.raises(SnapshotError, match="docker"):
        await LocalProvider(tmp_path).fork(image)


def test_a_store_is_closed_to_everyone_else(tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "store")
    store.open()
    for name in ("layers", "images", "sandboxes", "trash"):
        assert (tmp_path / "store" / name).stat().st_mode & 0o777 == 0o700
