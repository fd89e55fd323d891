"""Merge a chain of overlay layers into one tree, in a process of its own.

The kernel itself says what the chain shows (a read-only mount of it), so marks
of deletion, opaque and renamed folders need no second reading of the format.
Files are linked, not copied: frozen layers never change, and the one behind
each name is found by its inode, which such a mount reports as it is.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import signal
import stat
import sys

from core.sandboxes import linux

_NICE = 10


def main() -> None:
    """Read ``(layers, lowers, place, options, user)`` from stdin; exit 0, or 1 with a reason."""
    layers, lowers, place, options, user = marshal.loads(sys.stdin.buffer.read())
    linux.set_parent_death_signal(signal.SIGKILL)
    os.nice(_NICE)
    try:
        if user:
            linux.new_user_namespace(0, 0)
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)
        os.chdir(layers)
        view = f"{place}/merged"
        os.mkdir(view, 0o700)
        chain = ":".join(f"{layer}/fs" for layer in reversed(lowers))
        # lowerdir only: the mount cannot be written.
        linux.mount("overlay", view, "overlay", linux.MS_RDONLY, f"lowerdir={chain},{options}")
        rebuild(view, f"{place}/fs", files_by_inode(f"{layer}/fs" for layer in lowers))
        linux.umount(view)
        os.rmdir(view)
    except OSError as error:
        sys.exit(f"{error.filename or place}: {error.strerror or error}")


def files_by_inode(trees: Iterable[str]) -> dict[int, str]:
    """A path of every file below ``trees``, which lie on one file system."""
    found: dict[int, str] = {}
    for tree in trees:
        pending = [tree]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        found[entry.inode()] = entry.path
    return found


def rebuild(view: str, target: str, files: dict[int, str]) -> None:
    """Make ``target`` equal to ``view``, every file a link to the one in ``files``."""
    folders = [""]
    for rel in folders:
        os.mkdir(target + rel, 0o700)
        with os.scandir(view + rel) as entries:
            for entry in entries:
                name = f"{rel}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                else:
                    _link(entry.stat(follow_symlinks=False), files, view + name, target + name)
    # From below, because filling a folder changes its time.
    for rel in reversed(folders):
        _like(view + rel, target + rel)


def _link(shown: os.stat_result, files: dict[int, str], name: str, target: str) -> None:
    source = files.get(shown.st_ino)
    if source is None or not _same(shown, os.lstat(source)):
        raise OSError(errno.ESTALE, "the file behind a name was not found", name)
    os.link(source, target, follow_symlinks=False)


def _same(shown: os.stat_result, real: os.stat_result) -> bool:
    return (shown.st_mode, shown.st_size, shown.st_mtime_ns, shown.st_uid, shown.st_rdev) == (
        real.st_mode,
        real.st_size,
        real.st_mtime_ns,
        real.st_uid,
        real.st_rdev,
    )


def _like(shown: str, target: str) -> None:
    info = os.lstat(shown)
    os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    with contextlib.suppress(OSError):
        for name in os.listxattr(shown):
            os.setxattr(target, name, os.getxattr(shown, name))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
