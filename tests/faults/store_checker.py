"""What must hold after a crash: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.store.bundle_format import verify_folder
from core.store.sql import SqlStore

SCRIPT = Path(__file__).with_name("store_script.py")
MUST_BE_FULL = {
    "answer",
    "claim",
    "command",
    "create",
    "deliver",
    "expire",
    "finish",
    "job",
    "job_end",
    "open_request",
    "reindex",
    "schema",
    "seal",
    "take",
    "update",
    "withdraw",
}
"""Commits that a power loss must not undo."""


@dataclass(frozen=True, slots=True)
class Run:
    status: int
    """Exit status; -9 when the process killed itself."""
    acks: list[tuple[str, str, object]]
    output: str


class Runner:
    """A process that runs the script on demand."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, **environment: str) -> Run:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output = folder / "output"
        self._process.stdin.write(json.dumps([str(folder), str(output), environment]) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        text = output.read_text()
        acks = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("ack ")]
        return Run(status, [(what, sql, expected) for what, sql, expected in acks], text)


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Runner(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(30)


def check_acks(folder: Path, acks: list[tuple[str, str, object]]) -> list[str]:
    """Acknowledged acts that are not there, and acts that are there twice."""
    database = folder / "store" / "store.db"
    if not acks:
        return []
    problems = []
    conn = sqlite3.connect(database)
    try:
        for what, sql, expected in acks:
            found = conn.execute(sql).fetchone()
            if found is None or found[0] != expected:
                problems.append(f"lost: {what}: {sql} gave {found}, not {expected!r}")
        twice = "SELECT kind, json_extract(payload, '$.key') AS k, count(*) FROM event"
        for kind, key, count in conn.execute(f"{twice} GROUP BY kind, k HAVING count(*) > 1"):
            problems.append(f"twice: {kind} {key} is there {count} times")
        gaps = "SELECT rollout, count(*), max(seq) FROM event GROUP BY rollout"
        for rollout, count, last in conn.execute(gaps):
            if count != last:
                problems.append(f"gap: {rollout} has {count} events up to {last}")
    except sqlite3.DatabaseError as error:
        problems.append(f"lost: {error}")
    finally:
        conn.close()
    return problems


def check_ended(folder: Path) -> list[str]:
    """After a run to the end: the bundle proves itself and the store agrees with it."""
    bundles = list((folder / "jobs").rglob("manifest.json"))
    problems = [] if len(bundles) == 1 else [f"{len(bundles)} sealed bundles, not 1"]
    for manifest in bundles:
        problems += verify_folder(manifest.parent)
    found = asyncio.run(_fsck(folder / "store"))
    # A crash may leave garbage; it may not leave damage.
    return problems + [problem for problem in found if "safe to remove" not in problem]


async def _fsck(folder: Path) -> list[str]:
    store = SqlStore(folder)
    await store.open()
    try:
        return await store.fsck()
    finally:
        await store.close()


def weak_commits(log: Path) -> list[str]:
    """Commits of acts that were not forced to the disk."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        name
        for name, *facts in entries
        if name.removeprefix("commit.") in MUST_BE_FULL and facts != ["full"]
    ]


def lose_power(log: Path) -> None:
    """Undo what the disk was never forced to keep, as a power loss may: contents that
    were not fsynced, and names in folders that were not."""
    contents: set[str] = set()
    names: set[str] = set()
    for line in log.read_text().splitlines():
        effect, *facts = json.loads(line)
        if effect == "write":
            contents.add(facts[0])
            names.add(facts[0])
        elif effect == "mkdir":
            names.add(facts[0])
        elif effect.startswith("fsync."):
            contents.discard(facts[0])
            names = {name for name in names if os.path.dirname(name) != facts[0]}
        elif effect.startswith("rename."):
            source, target = facts
            contents = {_moved(path, source, target) for path in contents}
            names = {_moved(path, source, target) for path in names} | {target}
    for path in map(Path, contents):
        if path.exists():
            path.write_bytes(b"")
    for path in map(Path, sorted(names)):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def _moved(path: str, source: str, target: str) -> str:
    if path == source or path.startswith(source + "/"):
        return target + path[len(source) :]
    return path
