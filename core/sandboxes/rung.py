"""How a file state is mounted and captured: the strategies the local provider can use.

A rung says why this machine cannot use it, with which options the holder
mounts it, and how what was written becomes a frozen layer.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from core.sandboxes.layers import LayerStore


class Rung(Protocol):
    name: str
    mount_options: str
    o1_fork: bool
    live_parent: bool

    def obstacles(self, root: Path) -> list[str]:
        """Sentences, each with the way out; empty when nothing obvious is in the way."""
        ...

    def capture(
        self, store: LayerStore, upper: Path, parent: str, ref: str, *, retire: bool
    ) -> str:
        """Freeze ``upper`` as a layer. With ``retire`` nobody mounts it any more."""
        ...


class OverlayAsRoot:
    """Overlay mounts by root, on any ordinary file system."""

    name = "overlay"
    # volatile: a sandbox is thrown away, so nothing waits for the disk. redirect_dir: renaming
    # a folder of a lower layer works as on a plain file system.
    mount_options = "volatile,redirect_dir=on,index=off,metacopy=off"
    o1_fork = True
    live_parent = True

    def obstacles(self, root: Path) -> list[str]:
        found: list[str] = []
        if os.geteuid() != 0:
            found.append(
                "overlay needs root: run as root, or use --sandbox docker where it is available"
            )
        if not _knows("overlay"):
            found.append("the kernel has no overlay file system: load it with `modprobe overlay`")
        if file_system_of(root) in ("overlay", "fuse.overlayfs", "nfs", "nfs4", "9p"):
            found.append(
                f"the store {root} lies on {file_system_of(root)}, which overlay cannot write to: "
                "put the store on a disk or a tmpfs"
            )
        if shutil.which("cp") is None:
            found.append("`cp` is missing: install coreutils")
        return found

    def capture(
        self, store: LayerStore, upper: Path, parent: str, ref: str, *, retire: bool
    ) -> str:
        if retire:
            return store.freeze_in_place(upper, parent, ref)
        return store.copy(upper, parent, ref)


def _knows(kind: str) -> bool:
    names = [line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()]
    return kind in names


def file_system_of(path: Path) -> str:
    """The type of the file system that holds ``path`` (or its nearest existing parent)."""
    place = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        where = left.split()[4].encode().decode("unicode_escape")
        inside = place == where or place.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, right.split()[0]
    return kind
