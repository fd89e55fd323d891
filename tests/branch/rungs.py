"""The ladder, rung by rung, each on a disk that it works on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Btrfs, Copy, Overlay, Reflink, Rung
from tests.core.sandboxes.disks import disk

BEST = "overlay"
"""The rung of an ordinary machine: what is proven once is proven here."""
OTHERS = ("overlay on tmpfs", "overlay on xfs", "reflink on xfs", "btrfs", "copy")
SIZE_MB = 700


def make_rung(name: str) -> Rung:
    kinds: dict[str, Callable[[], Rung]] = {
        "overlay": Overlay,
        "reflink": Reflink,
        "btrfs": Btrfs,
        "copy": Copy,
    }
    return kinds[name.split()[0]]()


@contextlib.contextmanager
def place_for(name: str, folder: Path) -> Iterator[Path]:
    """A folder on the disk of that rung; skips the test where it cannot be made."""
    kind = name.partition(" on ")[2] or (name if name == "btrfs" else "")
    if not kind:
        yield folder
        return
    with disk(kind, folder, SIZE_MB) as place:
        yield place


@contextlib.contextmanager
def provider_on(name: str, folder: Path) -> Iterator[LocalProvider]:
    """A provider forced onto one rung."""
    with place_for(name, folder) as place:
        yield LocalProvider(place / "store", rung=make_rung(name))
