"""Small disks of a wanted kind in a file, for stores that need one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MAKERS = {
    "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q"),
    "ext4": ("mkfs.ext4", "-q"),
}


@contextlib.contextmanager
def disk(kind: str, folder: Path, size_mb: int) -> Iterator[Path]:
    """A mounted disk of ``kind``; skips the test where none can be made."""
    place = folder / "disk"
    place.mkdir()
    if kind == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(place)]
    else:
        maker = MAKERS[kind]
        if shutil.which(maker[0]) is None or not Path("/dev/loop-control").exists():
            pytest.skip(f"no {maker[0]}, or no loop devices, on this machine")
        image = folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(size_mb << 20)
        subprocess.run([*maker, str(image)], check=True, capture_output=True)
        mount = ["mount", "-o", "loop", str(image), str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine does not mount a {kind} disk: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
