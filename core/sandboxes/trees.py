"""Folders of files on the store's disk: make, copy, measure and remove whole trees.

Two kinds: plain folders, and btrfs subvolumes, whose copy costs one
transaction whatever their size. Every function blocks. ``user`` says that an
ordinary user works: a program may leave folders that their owner cannot enter,
so copies are made in a user namespace, where the owner may do everything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from core.sandboxes import linux
from core.sandboxes.identity import is_root

AS_OWNER = ("unshare", "--user", "--map-root-user", "--")
"""Runs a command with every power over the files of the user who starts it."""
_FICLONE = 0x40049409
_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_ROOTREF = 0xD000943D
_SUBVOLUME_INODE = 256


class Trees(Protocol):
    """How the trees of one store are made and copied."""

    def make(self, place: Path) -> None: ...

    def copy(self, source: Path, place: Path) -> None:
        """An equal tree at ``place``, which must not exist. Raises OSError."""
        ...


class Folders:
    """Plain folders, copied file by file; extents are shared where the disk can."""

    def __init__(self, *, user: bool) -> None:
        self._prefix = AS_OWNER if user else ()

    def make(self, place: Path) -> None:
        place.mkdir()

    def copy(self, source: Path, place: Path) -> None:
        argv = [*self._prefix, "cp", "-a", "--reflink=auto", "--", str(source), str(place)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            full = "No space left" in done.stderr
            code = errno.ENOSPC if full else errno.EIO
            raise OSError(code, done.stderr.strip()[-500:], str(source))


class Subvolumes:
    """btrfs subvolumes, copied by snapshot."""

    def make(self, place: Path) -> None:
        with _opened(place.parent) as parent:
            fcntl.ioctl(parent, _SUBVOL_CREATE, _named(place))

    def copy(self, source: Path, place: Path) -> None:
        with _opened(source) as tree, _opened(place.parent) as parent:
            below = bytearray(4096)
            fcntl.ioctl(tree, _SUBVOL_ROOTREF, below)
            if below[4088]:
                raise OSError(
                    errno.ENOTSUP,
                    "a program made a btrfs subvolume of its own, which a snapshot leaves out",
                    str(source),
                )
            name = os.fsencode(place.name)
            args = struct.pack("<qQQ32s4040s", tree, 0, 0, b"", name)
            fcntl.ioctl(parent, _SNAP_CREATE_V2, bytearray(args))


def _named(tree: Path) -> bytearray:
    return bytearray(struct.pack("<q4088s", 0, os.fsencode(tree.name)))


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def clones(folder: Path) -> bool:
    """Whether files in ``folder`` can share their extents, found by really doing it."""
    one, two = folder / f".clone-{os.getpid()}-a", folder / f".clone-{os.getpid()}-b"
    try:
        one.write_bytes(b"x" * 8192)
        with one.open("rb") as source, two.open("wb") as target:
            fcntl.ioctl(target, _FICLONE, source.fileno())
    except OSError:
        return False
    finally:
        one.unlink(missing_ok=True)
        two.unlink(missing_ok=True)
    return True


def measure(folder: Path) -> int:
    """Bytes on disk below ``folder``, links not followed. Raises OSError."""
    total = 0
    pending = [folder]
    try:
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    total += info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(Path(entry.path))
    except OSError:
        return int(_by_tool("du", "-s", "--block-size=1", "--", str(folder)).split()[0])
    return total


def remove(folder: Path) -> None:
    """Delete a folder whatever a program left in it. Raises OSError for what cannot go."""
    for name in ("fs", "merged"):
        _destroy(folder / name)
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Too deep for us, or closed to its owner: the tool knows no depth, and may do all.
        _by_tool("rm", "-rf", "--", str(folder))


def _by_tool(*argv: str) -> str:
    prefix = () if is_root() else AS_OWNER
    done = subprocess.run([*prefix, *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.strip()[-500:], argv[-1])
    return done.stdout


def _destroy(tree: Path) -> None:
    """Drop a subvolume at once; what is none, or may not be dropped, is left to rmtree."""
    try:
        if tree.lstat().st_ino != _SUBVOLUME_INODE:
            return
        with _opened(tree.parent) as parent:
            fcntl.ioctl(parent, _SNAP_DESTROY, _named(tree))
    except OSError:
        return


def sync(folder: Path) -> None:
    """Wait until everything written so far to the file system of ``folder`` is on its disk."""
    with _opened(folder) as fd:
        linux.sync_file_system(fd)
