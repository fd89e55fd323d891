"""Write files so that each is, at any moment, the whole old one or the whole new one.

Temporary file in the same folder, fsync, rename, then fsync of the folder.
Blocking: call it from a thread.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from core.contracts.errors import StoreError, StoreFull


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a mapping of relative paths below ``folder``, making folders as needed.

    Raises StoreFull without space, StoreError for a path that leaves the folder
    (before anything is written) and for any other failure.
    """
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise StoreError(f"{name!r} is no path inside a folder", where=str(folder))
    touched: set[Path] = set()
    for name, data in files.items():
        target = folder / name
        try:
            made = _make_folder(target.parent)
            _replace(target, data)
        except OSError as error:
            raise _translated(error, target) from error
        touched |= {target.parent, *made}
    for path in touched:
        try:
            _sync_folder(path)
        except OSError as error:
            raise _translated(error, path) from error


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns the folders whose entries changed."""
    changed: list[Path] = []
    missing = folder
    while not missing.exists():
        missing = missing.parent
        changed.append(missing)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _translated(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            "there is no space left", where=str(path), remedy="Free some space and try again"
        )
    return StoreError(
        f"a file could not be written: {error.strerror}",
        where=str(path),
        remedy="Check that the folder exists and may be written",
    )
