"""What a sandbox's writable folders start with, and how that is named by content."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_RACY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Seed:
    """One writable folder: its name on the layer, its owner and mode, and where it comes from."""

    slot: str
    owner: tuple[int, int]
    """uid and gid"""
    mode: int
    source: Path | None


def digest_of(
    seeds: Sequence[Seed], format: str, seen: MutableMapping[tuple[int, ...], str]
) -> str:
    """A name for exactly this content, laid out for one format of layers.

    ``seen`` remembers files that did not change since: a file is read again unless its
    inode, size and change time are those of a reading made well after that change.
    """
    total = hashlib.sha256(f"{format}\0".encode())
    for seed in seeds:
        total.update(f"{seed.slot}\0{seed.owner}\0{seed.mode:o}\0".encode())
        if seed.source is not None:
            for rel, info in _walk(seed.source):
                total.update(f"{rel}\0{_kept_mode(info):o}\0".encode("utf-8", "surrogateescape"))
                total.update(_content(seed.source / rel, info, seen))
                total.update(b"\0")
    return total.hexdigest()


def _content(path: Path, info: os.stat_result, seen: MutableMapping[tuple[int, ...], str]) -> bytes:
    if stat.S_ISLNK(info.st_mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(info.st_mode):
        return b""
    key = (info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns)
    known = seen.get(key)
    if known is None:
        with path.open("rb") as file:
            known = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time() - info.st_ctime > _RACY_SECONDS:
            seen[key] = known
    return known.encode()


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files, folders and links below ``folder``, in one order everywhere."""
    for name in sorted(os.listdir(folder)):
        info = os.lstat(folder / name)
        if stat.S_ISDIR(info.st_mode):
            yield name, info
            for rel, below in _walk(folder / name):
                yield f"{name}/{rel}", below
        elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
            yield name, info


def _kept_mode(info: os.stat_result) -> int:
    kind = stat.S_IFMT(info.st_mode)
    return kind | (0 if stat.S_ISLNK(info.st_mode) else info.st_mode & 0o777)


def plant(seed: Seed, layer: Path) -> None:
    """Lay one seed out on a layer, owned by its compartment; links stay links."""
    top = layer / seed.slot
    top.mkdir(parents=True)
    if seed.source is not None:
        for rel, info in _walk(seed.source):
            target = top / rel
            if stat.S_ISDIR(info.st_mode):
                target.mkdir()
            elif stat.S_ISLNK(info.st_mode):
                target.symlink_to(os.readlink(seed.source / rel))
            else:
                shutil.copyfile(seed.source / rel, target, follow_symlinks=False)
            os.chown(target, *seed.owner, follow_symlinks=False)
            if not stat.S_ISLNK(info.st_mode):
                target.chmod(info.st_mode & 0o777)
    os.chown(top, *seed.owner)
    top.chmod(seed.mode)
