"""How a file state is mounted and captured: the strategies the local provider can use.

A rung says why this machine cannot use it, lays out a sandbox's folder, tells
the holder what to mount there, and turns what was written into a frozen layer.
Layers of one *format* (a delta to the layers below, or a whole tree) mean
nothing to a rung of another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from core.sandboxes.identity import is_root
from core.sandboxes.layers import LayerStore
from core.sandboxes.trees import AS_OWNER, Folders, Subvolumes, Trees, clones, measure

_NO_UPPER = ("overlay", "fuse.overlayfs", "nfs", "nfs4", "9p", "virtiofs", "cifs", "vfat", "exfat")


class Rung(Protocol):
    name: str
    format: str
    """Images are understood by every rung of the same format."""
    o1_fork: bool
    live_parent: bool
    deltas: bool
    """Whether a state is a chain of layers that grows; else it is one layer."""
    mount_options: str
    """For an overlay of the layers; empty when the sandbox's tree is a plain folder."""

    @property
    def trees(self) -> Trees: ...

    def obstacles(self, root: Path) -> list[str]:
        """Sentences, each with the way out; empty when nothing obvious is in the way."""
        ...

    def weaknesses(self, root: Path) -> list[str]:
        """What is slower or missing beside the best rung, each with the way out."""
        ...

    def lay(self, store: LayerStore, folder: Path, layers: Sequence[str]) -> None:
        """Make the sandbox's own files, before its holder."""
        ...

    def capture(
        self, store: LayerStore, folder: Path, parent: str, ref: str, *, retire: bool
    ) -> tuple[str | None, int]:
        """Freeze what the sandbox holds as a layer, and say how many bytes are new.

        With ``retire`` nobody mounts its files any more. None: nothing was written.
        """
        ...


class Overlay:
    """Overlay mounts on any ordinary file system; a layer is a delta."""

    o1_fork = True
    live_parent = True
    deltas = True

    def __init__(self) -> None:
        self._root = is_root()
        self.name = "overlay" if self._root else "overlay-user"
        # Marks of deletion are kept under names that only the same kind of mount reads.
        self.format = self.name
        self.trees: Trees = Folders(user=not self._root)
        # volatile: a sandbox is thrown away, so nothing waits for the disk. redirect_dir: renaming
        # a folder of a lower layer works as on a plain file system; not offered to a user.
        special = "redirect_dir=on" if self._root else "userxattr"
        self.mount_options = f"volatile,{special},index=off,metacopy=off"

    def obstacles(self, root: Path) -> list[str]:
        found = _common_obstacles(root)
        if not _knows("overlay"):
            found.append("the kernel has no overlay file system: load it with `modprobe overlay`")
        if file_system_of(root) in _NO_UPPER:
            found.append(
                f"the store {root} lies on {file_system_of(root)}, which overlay cannot write to: "
                "put the store on a disk or a tmpfs"
            )
        return found

    def weaknesses(self, root: Path) -> list[str]:
        found = []
        if not clones(root):
            found.append(
                "a snapshot of a sandbox that goes on copies what it wrote, and the first write "
                "to a large file copies it: put the store on xfs or btrfs"
            )
        if not self._root:
            found.append(
                "renaming a folder that came with the fork is refused (EXDEV, tools then copy it): "
                "run as root"
            )
        return found

    def lay(self, store: LayerStore, folder: Path, layers: Sequence[str]) -> None:
        for name in ("upper", "work"):
            (folder / name).mkdir(mode=0o755)
        (folder / "merged").mkdir(mode=0o700)

    def capture(
        self, store: LayerStore, folder: Path, parent: str, ref: str, *, retire: bool
    ) -> tuple[str | None, int]:
        upper = folder / "upper"
        if not any(upper.iterdir()):
            store.hold(parent, ref)
            return None, 0
        size = measure(upper)
        if retire:
            return store.freeze_in_place(upper, parent, ref), size
        return store.copy(upper, parent, ref, size), size


class Tree:
    """A whole tree per sandbox and per layer: works on any file system."""

    live_parent = True
    deltas = False
    mount_options = ""

    def __init__(self, name: str, trees: Trees, *, o1_fork: bool, format: str) -> None:
        self.name = name if is_root() else f"{name}-user"
        self.format = format if is_root() else f"{format}-user"
        self.o1_fork = o1_fork
        self.trees = trees

    def obstacles(self, root: Path) -> list[str]:
        return _common_obstacles(root)

    def weaknesses(self, root: Path) -> list[str]:
        if self.o1_fork:
            return []
        return [
            "every fork and every snapshot copies all files: put the store on a disk that overlay "
            "can write to"
        ]

    def lay(self, store: LayerStore, folder: Path, layers: Sequence[str]) -> None:
        self.trees.copy(store.layers / layers[-1] / "fs", folder / "merged")

    def capture(
        self, store: LayerStore, folder: Path, parent: str, ref: str, *, retire: bool
    ) -> tuple[str | None, int]:
        merged = folder / "merged"
        size = self._size(merged)
        if retire:
            return store.freeze_in_place(merged, None, ref), size
        return store.copy(merged, None, ref, size), size

    def _size(self, merged: Path) -> int:
        return measure(merged)


class Copy(Tree):
    """Files copied one by one, or cloned where the disk shares extents (then: ``reflink``)."""

    def __init__(self) -> None:
        super().__init__("copy", Folders(user=not is_root()), o1_fork=False, format="copy")


class Reflink(Copy):
    """The same on a disk that clones: no bytes are copied, but every file is visited."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.name.replace("copy", "reflink")

    def obstacles(self, root: Path) -> list[str]:
        found = super().obstacles(root)
        if not found and not clones(_existing(root)):
            found.append(f"the store {root} lies on a disk that cannot clone: use xfs or btrfs")
        return found

    def weaknesses(self, root: Path) -> list[str]:
        return ["every fork and every snapshot visits all files: run where overlay can be mounted"]


class Btrfs(Tree):
    """A subvolume per sandbox and per layer: a snapshot of anything costs one transaction."""

    def __init__(self) -> None:
        super().__init__("btrfs", Subvolumes(), o1_fork=True, format="btrfs")

    def obstacles(self, root: Path) -> list[str]:
        found = super().obstacles(root)
        kind = file_system_of(root)
        if kind != "btrfs":
            found.append(f"the store {root} lies on {kind}: put it on btrfs")
        return found

    def _size(self, merged: Path) -> int:
        # What a snapshot adds shows up only as the two grow apart.
        return 0


def _common_obstacles(root: Path) -> list[str]:
    found = []
    tools = ("cp",) if is_root() else ("cp", "unshare")
    for tool in tools:
        if shutil.which(tool) is None:
            package = "coreutils" if tool == "cp" else "util-linux"
            found.append(f"`{tool}` is missing: install {package}")
    if not is_root():
        found.extend(_user_obstacles(root))
    return found


def _user_obstacles(root: Path) -> list[str]:
    place = _existing(root)
    if not os.access(place, os.W_OK | os.X_OK):
        return [f"{place} cannot be written by this user: choose another folder for the store"]
    if shutil.which(AS_OWNER[0]) is None:
        return []
    done = subprocess.run([*AS_OWNER, "true"], capture_output=True, check=False)
    if done.returncode == 0:
        return []
    return [f"this machine denies user namespaces to an ordinary user: {_remedy()}"]


def _remedy() -> str:
    """Which setting stands in the way, as far as it can be seen."""
    for name, bad, way in (
        ("kernel/unprivileged_userns_clone", "0", "=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "=0"),
        ("user/max_user_namespaces", "0", "=10000"),
    ):
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == bad:
            return f"`sysctl -w {name.replace('/', '.')}{way}` enables them, or run as root"
    return (
        "run as root; in a container allow the calls `unshare`, `mount` and `pivot_root` "
        "(seccomp profile), or use another sandbox"
    )


def _knows(kind: str) -> bool:
    names = [line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()]
    return kind in names


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


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
