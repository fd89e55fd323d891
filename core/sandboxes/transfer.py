"""The engine's side of upload and download: a host tree to records and back.

What comes out of a sandbox is hostile: names are checked, files are created
anew and never through a link, modes are masked, and the total is bounded.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path

from core.contracts.errors import SandboxError
from core.sandboxes.carry import Record, pack, safe_parts, unpack

MAX_DOWNLOAD = 8 << 30
"""Bytes one download may bring out."""
_MAX_RECORD = 1 << 16
_CHUNK = 1 << 18


def send_tree(local: Path, fd: int) -> None:
    """Write ``local`` as records to a pipe, and close it. Blocks."""
    with os.fdopen(fd, "wb") as out, contextlib.suppress(BrokenPipeError):
        root = Path(os.path.realpath(local))
        if root.is_dir():
            out.write(pack("d"))
            _send_folder(root, root, out.write)
        else:
            _send_file(root, "", out.write)
        out.write(pack("e"))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[bytes], object]


def _send_folder(root: Path, folder: Path, write: Write) -> None:
    for path in sorted(folder.iterdir()):
        rel = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = os.readlink(path)
            _refuse_leaving(root, path, target)
            data = os.fsencode(target)
            write(pack("l", rel, 0o777, len(data)) + data)
        elif stat.S_ISDIR(mode):
            write(pack("d", rel, stat.S_IMODE(mode)))
            _send_folder(root, path, write)
        elif stat.S_ISREG(mode):
            _send_file(path, rel, write)


def _refuse_leaving(root: Path, path: Path, target: str) -> None:
    inside = os.path.normpath(path.parent / target)
    if target.startswith("/") or not Path(inside).is_relative_to(root):
        raise SandboxError(
            f"a link in the folder to upload leads out of it, to {target}",
            where=str(path),
            remedy="Replace the link by a copy of what it points to",
        )


def _send_file(path: Path, rel: str, write: Write) -> None:
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        write(pack("f", rel, stat.S_IMODE(info.st_mode), info.st_size))
        left = info.st_size
        while left:
            part = file.read(min(left, _CHUNK))
            if not part:
                raise SandboxError(
                    "a file became shorter while it was uploaded",
                    where=str(path),
                    remedy="Do not change the folder during a run",
                )
            write(part)
            left -= len(part)


def receive_tree(fd: int, local: Path) -> None:
    """Read records from a pipe into ``local``, which must not exist yet or be a folder. Blocks.

    Raises SandboxError when the stream is not whole; what arrived stays.
    """
    total = 0
    with os.fdopen(fd, "rb") as stream:
        while True:
            kind, rel, mode, size = _record(stream.read(4), stream.read)
            if kind == "e":
                return
            try:
                target = local.joinpath(*safe_parts(rel))
            except ValueError as error:
                raise SandboxError(str(error), where="download") from error
            if kind == "d":
                target.mkdir(mode=0o700, parents=not rel, exist_ok=True)
                target.chmod((mode & 0o777) | 0o700)
                continue
            total += size
            if total > MAX_DOWNLOAD:
                raise SandboxError(
                    f"the download is larger than {MAX_DOWNLOAD >> 30} GiB",
                    where=rel,
                    remedy="Download the parts you need",
                )
            _receive_file(target, mode, size, stream.read)


if TYPE_CHECKING:
    Read = Callable[[int], bytes]


def _record(head: bytes, read: Read) -> Record:
    try:
        (length,) = struct.unpack("<I", head)
        if length > _MAX_RECORD:
            raise ValueError("a record is too long")
        return unpack(read(length))
    except (struct.error, ValueError, EOFError, TypeError) as error:
        raise SandboxError("the sandbox sent less than it announced", where="download") from error


def _receive_file(target: Path, mode: int, size: int, read: Read) -> None:
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        left = size
        while left:
            part = read(min(left, _CHUNK))
            if not part:
                raise SandboxError("the sandbox sent less than it announced", where=target.name)
            file.write(part)
            left -= len(part)
        os.fchmod(file.fileno(), (mode & 0o777) | 0o600)
