"""What is in a frozen state: looked at through a fork of its own, or hashed on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path

from core.contracts.sandbox import Compartment, SandboxImage, SandboxProvider

_FILES = """
import json, os, stat
found = {}
for place, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.join(place, name)[2:]
        info = os.lstat(path)
        text = open(path).read() if stat.S_ISREG(info.st_mode) else None
        found[path] = [oct(stat.S_IMODE(info.st_mode)), text]
print(json.dumps(found))
"""
_ROWS = """
import json, sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    print(json.dumps(database.execute(sys.argv[2]).fetchall()))
"""
Files = dict[str, tuple[str, str | None]]


async def run_inside(
    provider: SandboxProvider, image: SandboxImage, *argv: str, user: Compartment = "verifier"
) -> str:
    """What a program prints in a fork of the image that nothing else runs in."""
    (fork,) = await provider.fork(image)
    try:
        done = await fork.exec(argv, user=user, timeout=60)
        assert done.ok, done.stderr.decode()
        return done.stdout.decode()
    finally:
        await fork.teardown()


async def workspace_of(provider: SandboxProvider, image: SandboxImage) -> Files:
    """Path to mode and content of everything in the workspace."""
    found = json.loads(await run_inside(provider, image, "python3", "-I", "-c", _FILES))
    return {path: (mode, text) for path, (mode, text) in found.items()}


async def rows_of(
    provider: SandboxProvider, image: SandboxImage, database: str, query: str
) -> list[list[object]]:
    """Rows of a query on a database of the state."""
    argv = ("python3", "-I", "-c", _ROWS, database, query)
    rows: list[list[object]] = json.loads(await run_inside(provider, image, *argv))
    return rows


def tree_digest(root: Path) -> str:
    """Names, kinds, modes, owners and content of everything below ``root``."""
    whole = hashlib.sha256()
    for place, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            path = Path(place, name)
            info = path.lstat()
            facts = (path.relative_to(root), info.st_mode, info.st_uid, info.st_rdev)
            whole.update(repr(facts).encode())
            if stat.S_ISREG(info.st_mode):
                whole.update(path.read_bytes())
            elif stat.S_ISLNK(info.st_mode):
                whole.update(os.readlink(path).encode())
    return whole.hexdigest()


def frozen_digests(layers: Path) -> dict[str, str]:
    """Layer to digest, of every layer that is whole and stays."""
    found = {}
    for layer in layers.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if not layer.name.startswith("tmp-"):
                found[layer.name] = tree_digest(layer / "fs")
    return found


def files_holding(root: Path, text: str) -> list[str]:
    """Files below ``root`` with ``text`` in their content or name."""
    found = []
    for place, _, files in os.walk(root):
        for name in files:
            path = Path(place, name)
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode):
                continue
            if text in name or text.encode() in path.read_bytes():
                found.append(str(path))
    return found
