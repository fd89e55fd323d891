"""The files of a package: which they are, whether they are safe, and their digest.

The digest covers every file that changes what is run or scored: sorted
relative paths, whether each may be executed, and contents. Caches, version
control and ``evidence/`` are left out. Blocking: call it from a thread.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.tasks.located import Faults

MAX_FILES = 20_000
MAX_BYTES = 4 * 1024**3
"""All files of a package together; a sparse file would take hours to hash."""
IGNORED = frozenset({"__pycache__", ".git", ".DS_Store", ".pytest_cache"})
IGNORED_AT_TOP = frozenset({"evidence"})


@dataclass(frozen=True, slots=True)
class PackageFile:
    """``path`` is relative, with ``/``. ``link`` is the target of a symbolic link."""

    path: str
    executable: bool
    size: int = 0
    link: str | None = None


def list_files(folder: Path, faults: Faults) -> list[PackageFile]:
    """Every file that counts, sorted by path.

    Adds a fault for a link that leaves the package, for anything that is
    neither file, folder nor link, and for what cannot be read.
    """
    found: list[PackageFile] = []
    root = os.path.realpath(folder)
    for relative, entry in _walk(root, "", faults):
        if len(found) >= MAX_FILES:
            faults.add_beside(
                "", f"holds more than {MAX_FILES:,} files", "Pack data into fewer files"
            )
            break
        file = _inspect(root, relative, entry, faults)
        if file is not None:
            found.append(file)
    if sum(file.size for file in found) > MAX_BYTES:
        faults.add_beside("", "holds more than 4 GiB", "Fetch large data when the world is set up")
        return []
    return sorted(found, key=lambda file: file.path)


def _walk(root: str, under: str, faults: Faults) -> Iterator[tuple[str, os.DirEntry[str]]]:
    pending = [under]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, folder)), key=lambda e: e.name)
        except OSError as error:
            faults.add_beside(folder, f"cannot be read: {error.strerror}", "Check its permissions")
            continue
        for entry in entries:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if _ignored(relative):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(relative)
            else:
                yield relative, entry


def _ignored(relative: str) -> bool:
    name = relative.rsplit("/", 1)[-1]
    return name in IGNORED or relative in IGNORED_AT_TOP


def _inspect(
    root: str, relative: str, entry: os.DirEntry[str], faults: Faults
) -> PackageFile | None:
    try:
        relative.encode("utf-8")
    except UnicodeEncodeError:
        faults.add_beside(ascii(relative), "has a name that is not UTF-8", "Rename it")
        return None
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if target != root and not target.startswith(root + os.sep):
            faults.add_beside(
                relative,
                "is a link that leaves the package",
                "Copy the file into the package, or link inside it",
            )
            return None
        return PackageFile(relative, False, link=os.readlink(entry.path))
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        faults.add_beside(relative, f"cannot be read: {error.strerror}", "Check its permissions")
        return None
    if not stat.S_ISREG(status.st_mode):
        faults.add_beside(relative, "is neither a file nor a folder", "Remove it from the package")
        return None
    return PackageFile(relative, bool(status.st_mode & stat.S_IXUSR), status.st_size)


def package_digest(
    folder: Path, files: list[PackageFile], faults: Faults, *, beside: dict[str, bytes]
) -> str:
    """``sha256:<hex>``. ``beside`` are files outside the package that also count, by name."""
    total = hashlib.sha256()
    for file in files:
        if file.link is not None:
            kind, digest = "link", hashlib.sha256(file.link.encode(errors="surrogateescape"))
        else:
            kind = "exec" if file.executable else "file"
            try:
                with open(folder / file.path, "rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256")
            except OSError as error:
                faults.add_beside(
                    file.path, f"cannot be read: {error.strerror}", "Check its permissions"
                )
                continue
        total.update(f"{kind} {digest.hexdigest()} {file.path}\0".encode())
    for name in sorted(beside):
        total.update(f"beside {hashlib.sha256(beside[name]).hexdigest()} {name}\0".encode())
    return f"sha256:{total.hexdigest()}"
