"""Build what one compartment sees, in the holder's private mount namespace.

A view is a small read-only file system of its own (folders, generated /etc,
device nodes) on which the allowed paths are bound. Paths are walked by
descriptor and never through a link: the writable parts may hold what an agent
left there.
"""

from __future__ import annotations

import contextlib
import os
import stat

from core.sandboxes import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class ViewPlan(TypedDict):
        """Entries in the order they are made; paths inside have no leading slash."""

        files: list[tuple[str, bytes]]
        links: list[tuple[str, str]]
        folders: list[tuple[str, int]]
        binds: list[tuple[str, str, bool]]
        """(path inside, source on the holder's side, writable)"""
else:
    ViewPlan = dict


_DEVICES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def build(place: str, plan: ViewPlan) -> int:
    """Mount the view on ``place``; returns a descriptor of its root."""
    linux.mount("view", place, "tmpfs", linux.MS_NOSUID, "mode=755,size=16m,nr_inodes=16k")
    root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _devices(place)
    for path, mode in plan["folders"]:
        full = f"{place}/{path}"
        os.makedirs(full, exist_ok=True)
        os.chmod(full, mode)
    for path, data in plan["files"]:
        _file(place, path, data)
    for path, target in plan["links"]:
        os.makedirs(os.path.dirname(f"{place}/{path}"), exist_ok=True)
        os.symlink(target, f"{place}/{path}")
    for path, source, writable in plan["binds"]:
        _bind(root, path, source, writable)
    flags = linux.MS_REMOUNT | linux.MS_NOSUID | linux.MS_RDONLY
    linux.mount("view", place, "tmpfs", flags, "mode=755,size=16m,nr_inodes=16k")
    return root


def _devices(place: str) -> None:
    dev = f"{place}/dev"
    for folder in (dev, f"{dev}/pts", f"{dev}/shm", f"{place}/proc"):
        os.mkdir(folder, 0o755)
    for name, major, minor in _DEVICES:
        _device(f"{dev}/{name}", name, os.makedev(major, minor))
    for name, target in _DEVICE_LINKS:
        os.symlink(target, f"{dev}/{name}")
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("shm", f"{dev}/shm", "tmpfs", flags, "mode=1777,size=64m")


def _device(path: str, name: str, number: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        os.chmod(path, 0o666)
    except PermissionError:
        # Nobody makes devices in a user namespace; the host's own are as good.
        with open(path, "wb") as file:
            linux.bind(f"/dev/{name}", file.fileno(), linux.MOUNT_ATTR_NOSUID)


def _file(place: str, path: str, data: bytes) -> None:
    full = f"{place}/{path}"
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb") as file:
        file.write(data)
    os.chmod(full, 0o644)


def _bind(root: int, path: str, source: str, writable: bool) -> None:
    info = os.stat(source)
    parts = path.split("/")
    parent = _open_folder(root, parts[:-1])
    try:
        target = _mount_point(parent, parts[-1], stat.S_ISDIR(info.st_mode))
    finally:
        os.close(parent)
    attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
    try:
        linux.bind(source, target, attributes | (0 if writable else linux.MOUNT_ATTR_RDONLY))
    finally:
        os.close(target)


def _open_folder(root: int, parts: list[str]) -> int:
    fd = os.dup(root)
    for part in parts:
        try:
            below = _mount_point(fd, part, True)
        finally:
            os.close(fd)
        fd = below
    return fd


def _mount_point(parent: int, name: str, folder: bool) -> int:
    """Open ``name`` in ``parent``, putting an empty one in place of whatever else is there."""
    flags = _FOLDER if folder else os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        pass
    else:
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind) if folder else stat.S_ISREG(kind):
            return fd
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    if folder:
        os.mkdir(name, 0o755, dir_fd=parent)
    else:
        made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, made, 0o644, dir_fd=parent))
    return os.open(name, flags, dir_fd=parent)
