"""Every durable effect of the store, by name: each commit, fsync and rename.

Nothing in this package commits, fsyncs or renames except through here, so the
list of places where a crash matters is ``NAMES``, complete by construction.

Three switches, read from the environment, let a test stand in the way:
``BENCH_FAILPOINT="commit.answer:before"`` (or ``after``; ``:3`` = at the third
time) makes the process kill itself there; ``:skip`` leaves the effect out and
goes on; ``BENCH_EFFECTS_LOG=FILE`` appends a line per effect, so that a checker
knows what a power loss could have undone.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

from core.contracts.errors import ConfigError

COMMITS = (
    "answer",
    "beat",
    "claim",
    "command",
    "create",
    "deliver",
    "deregister",
    "draft",
    "events",
    "expire",
    "finish",
    "job",
    "job_end",
    "open_request",
    "register",
    "reindex",
    "release",
    "schema",
    "seal",
    "slot",
    "slot_release",
    "take",
    "update",
    "withdraw",
)
FSYNCS = (
    "blob",
    "blob_folder",
    "bundle_file",
    "bundle_folder",
    "bundle_parent",
    "manifest",
    "new_folder",
    "segment",
)
RENAMES = ("blob", "bundle_in", "bundle_out")

NAMES: tuple[str, ...] = (
    *(f"commit.{name}" for name in COMMITS),
    *(f"fsync.{name}" for name in FSYNCS),
    *(f"rename.{name}" for name in RENAMES),
)


@dataclass(slots=True)
class _Failpoint:
    name: str
    moment: str
    countdown: int


@cache
def _failpoint() -> _Failpoint | None:
    text = os.environ.get("BENCH_FAILPOINT", "")
    if not text:
        return None
    name, moment, *count = text.split(":")
    if name not in NAMES or moment not in ("before", "after", "skip"):
        raise ConfigError(
            f"{text!r} names no durable effect of the store",
            where="BENCH_FAILPOINT",
            remedy="Unset it, or use NAME:before, NAME:after or NAME:skip",
        )
    return _Failpoint(name, moment, int(count[0]) if count else 1)


@cache
def _log_path() -> str:
    return os.environ.get("BENCH_EFFECTS_LOG", "")


def _note(name: str, *facts: object) -> None:
    if not _log_path():
        return
    line = json.dumps([name, *map(str, facts)]) + "\n"
    handle = os.open(_log_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def _reach(name: str, moment: str) -> bool:
    """Die here if told to; True = leave the effect out."""
    point = _failpoint()
    if point is None or point.name != name:
        return False
    if point.moment == "skip":
        return moment == "before"
    if point.moment == moment:
        point.countdown -= 1
        if point.countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return False


def commit(conn: Connection, name: str, *, durable: bool) -> None:
    """Commit the transaction; ``durable`` is what the caller asked of the disk."""
    effect = f"commit.{name}"
    if _reach(effect, "before"):
        conn.rollback()
        return
    conn.commit()
    _note(effect, "full" if durable else "normal")
    _reach(effect, "after")


def fsync(handle: int, path: Path, name: str) -> None:
    """Force an open file or folder to the disk."""
    effect = f"fsync.{name}"
    if _reach(effect, "before"):
        return
    os.fsync(handle)
    _note(effect, path)
    _reach(effect, "after")


def fsync_folder(path: Path, name: str) -> None:
    """Force a folder's entries to the disk, so that a new name outlives a power loss."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(handle, path, name)
    finally:
        os.close(handle)


def make_folders(path: Path, mode: int = 0o777) -> None:
    """Make a folder and what lacks above it, each entry forced to the disk."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)
        _note("mkdir", folder)
        fsync_folder(folder.parent, "new_folder")


def write_file(path: Path, chunks: Iterable[bytes], name: str) -> None:
    """Write a new file and force it to the disk."""
    with path.open("xb") as handle:
        for chunk in chunks:
            handle.write(chunk)
        handle.flush()
        _note("write", path)
        fsync(handle.fileno(), path, name)


def rename(source: Path, target: Path, name: str) -> None:
    """Put a finished file or folder in place, replacing a file of that name."""
    effect = f"rename.{name}"
    if _reach(effect, "before"):
        return
    source.replace(target)
    _note(effect, source, target)
    _reach(effect, "after")
