"""Carry files through a pipe, from inside a compartment with its own user.

Runs in the holder's child after it took the compartment's identity: a link
that the agent planted can lead only where the agent could go itself.

Stream: records ``marshal((kind, path, mode, size))`` led by a 4-byte length;
kind ``d`` folder, ``f`` file followed by exactly ``size`` bytes, ``l`` link
followed by its target in ``size`` bytes (only towards the sandbox), ``e`` the end.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import stat
import struct

_CHUNK = 1 << 18
Record = tuple[str, str, int, int]


def pack(kind: str, path: str = "", mode: int = 0, size: int = 0) -> bytes:
    body = marshal.dumps((kind, path, mode, size))
    return struct.pack("<I", len(body)) + body


def unpack(body: bytes) -> Record:
    """A record's body, checked. Raises ValueError."""
    kind, path, mode, size = marshal.loads(body)
    if not (isinstance(kind, str) and isinstance(path, str)):
        raise ValueError("not a record")  # noqa: TRY004 (one kind of failure for a caller)
    return kind, path, int(mode), int(size)


def safe_parts(path: str) -> list[str]:
    """The components of a relative path. Raises ValueError for one that could lead out."""
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"unsafe path {path!r}")
    return parts


def serve(call: list[str]) -> int:
    """Run ``["put", path]`` (stdin to path) or ``["get", path]`` (path to stdout)."""
    verb, path = call
    try:
        if verb == "put":
            _put(path)
        else:
            _get(path)
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", None) or path
        what = getattr(error, "strerror", None) or str(error)
        os.write(2, f"{where}: {what}".encode())
        return 1
    return 0


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise ValueError("the stream ended early")
        data += part
    return data


def _put(path: str) -> None:
    parent = os.path.dirname(path) or "/"
    os.makedirs(parent, exist_ok=True)
    root = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    name = os.path.basename(path)
    while True:
        kind, rel, mode, size = unpack(_read(struct.unpack("<I", _read(4))[0]))
        if kind == "e":
            return
        parts = [name, *safe_parts(rel)] if name else safe_parts(rel)
        if not parts:
            continue
        if kind == "d":
            os.close(_walk(root, parts))
        elif kind == "l":
            _put_link(root, parts, os.fsdecode(_read(size)))
        else:
            _put_file(root, parts, mode, size)


def _walk(root: int, parts: list[str]) -> int:
    """Open a folder below ``root``, making what is missing, following no link."""
    fd = os.dup(root)
    for part in parts:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=fd)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(part, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _put_link(root: int, parts: list[str], target: str) -> None:
    folder = _walk(root, parts[:-1])
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=folder)
        os.symlink(target, parts[-1], dir_fd=folder)
    finally:
        os.close(folder)


def _put_file(root: int, parts: list[str], mode: int, size: int) -> None:
    folder = _walk(root, parts[:-1])
    try:
        # A new file beside the old name: whatever stood there is replaced, never written through.
        temporary = f".{parts[-1][:200]}.{os.getpid()}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            left = size
            while left:
                part = os.read(0, min(left, _CHUNK))
                if not part:
                    raise ValueError("the stream ended early")
                left -= len(part)
                _write(out, part)
            os.fchmod(out, mode & 0o777)
        finally:
            os.close(out)
        os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _get(path: str) -> None:
    info = os.lstat(path)
    if stat.S_ISDIR(info.st_mode):
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        _write(1, pack("d", "", stat.S_IMODE(info.st_mode)))
        _get_folder(root, "")
    elif stat.S_ISREG(info.st_mode):
        parent = os.open(os.path.dirname(path) or "/", os.O_PATH | os.O_CLOEXEC)
        _get_file(parent, os.path.basename(path), "")
    else:
        raise ValueError("not a regular file or folder")
    _write(1, pack("e"))


def _get_folder(folder: int, prefix: str) -> None:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            rel = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(entry.name, flags, dir_fd=folder)
                _write(1, pack("d", rel, stat.S_IMODE(os.fstat(below).st_mode)))
                _get_folder(below, rel + "/")
            elif entry.is_file(follow_symlinks=False):
                _get_file(folder, entry.name, rel)
    finally:
        os.close(folder)


def _get_file(folder: int, name: str, rel: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=folder)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return
        _write(1, pack("f", rel, stat.S_IMODE(info.st_mode), info.st_size))
        left = info.st_size
        while left:
            part = os.read(fd, min(left, _CHUNK))
            # A file cut short while it was read keeps its announced size, so that the stream holds.
            part = part or b"\0" * min(left, _CHUNK)
            _write(1, part)
            left -= len(part)
    finally:
        os.close(fd)
