"""One process runs a rollout, another answers, nudges and cancels, either or both die by
kill -9 at a random moment, a third cleans up: no acknowledged act is lost, none is done
twice, no event is lost or reused, the rollout ends, and nothing is left behind.

BENCH_PAIR_RUNS sets how many iterations (default 200), BENCH_PAIR_SEED the first seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from core.store.sql import SqlStore
from tests.core.sandboxes.helpers import groups, mounts
from tests.e2e.machine import machine
from tests.e2e.packages import write_task
from tests.faults.pair_checker import Story, read_acts
from tests.faults.pair_script import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.timeout(900)]

RUNS = int(os.environ.get("BENCH_PAIR_RUNS", "200"))
FIRST_SEED = int(os.environ.get("BENCH_PAIR_SEED", "1"))
PARTS = 4
REAL_EVERY = 5
"""One iteration in so many uses the real sandbox and a real agent process."""


class Role:
    """A process that runs one role on demand, each time in a fork of itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pid = 0
        self._status: int | None = None

    def start(self, folder: Path, seed: int, real: bool, output: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(folder), seed, real, str(output)]) + "\n")
        self._process.stdin.flush()
        self._status = None
        self._pid = self._read("pid")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = self._read("status")
        return self._status

    def _read(self, what: str) -> int:
        assert self._process.stdout is not None
        said, number = self._process.stdout.readline().split()
        assert said == what
        return int(number)


@contextmanager
def role(name: str) -> Iterator[Role]:
    script = str(Path(__file__).with_name("pair_script.py"))
    with subprocess.Popen(
        [sys.executable, script, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Role(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def roles() -> Iterator[dict[str, Role]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(role(name)) for name in ("run", "act", "mend")}


def one_story(roles: dict[str, Role], folder: Path, seed: int, real: bool) -> list[str]:
    """Run, act, kill, mend; the promises that were broken."""
    chance = random.Random(seed)
    folder.mkdir()
    write_task(folder / "task")
    (folder / "script.toml").write_text(SCRIPT)
    outputs = {name: folder / f"{name}.out" for name in roles}
    victims: tuple[str, ...] = chance.choice(
        [("run",), ("act",), ("run", "act"), ("act", "run"), ()]
    )
    after = chance.uniform(0.02, 1.6 if real else 0.8)
    roles["run"].start(folder, seed, real, outputs["run"])
    roles["act"].start(folder, seed, real, outputs["act"])
    time.sleep(after)
    for name in victims:
        roles[name].kill()
    ends = {"run": roles["run"].wait()}
    if not has_rollout(folder):
        # Killed before there was anything to act on.
        roles["act"].kill()
        victims = (*victims, "act")
    ends["act"] = roles["act"].wait()
    problems = [
        f"{name} ended with {status}: {outputs[name].read_text()[-3000:]}"
        for name, status in ends.items()
        if status not in ((0, -9) if name in victims else (0,))
    ]
    roles["mend"].start(folder, seed, real, outputs["mend"])
    if roles["mend"].wait() != 0:
        problems.append(f"mend failed: {outputs['mend'].read_text()[-3000:]}")
    problems += Story(folder, read_acts(outputs["act"])).problems()
    problems += asyncio.run(fsck(folder))
    return problems + left_behind(folder)


def has_rollout(folder: Path) -> bool:
    database = folder / "home" / "store.db"
    if not database.exists():
        return False
    conn = sqlite3.connect(database)
    try:
        return bool(conn.execute("SELECT count(*) FROM rollout").fetchone()[0])
    except sqlite3.OperationalError:
        return False
    finally:
        conn.close()


async def fsck(folder: Path) -> list[str]:
    store = SqlStore(folder / "home")
    await store.open()
    try:
        return await store.fsck()
    finally:
        await store.close()


def left_behind(folder: Path) -> list[str]:
    root = folder / "home" / "sandboxes"
    if not (root / "trash").exists():
        return []
    found = [f"group {name}" for name in sorted(groups(root))]
    found += [f"mount {line}" for line in mounts(root)]
    for place in ("sandboxes", "trash"):
        found += [str(path) for path in sorted((root / place).iterdir())]
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_no_act_is_lost_or_done_twice_whoever_dies(
    roles: dict[str, Role], tmp_path: Path, part: int
) -> None:
    failed = {}
    with machine(tmp_path) as watched:
        for seed in range(FIRST_SEED + part, FIRST_SEED + RUNS, PARTS):
            real = seed % REAL_EVERY == 0
            problems = one_story(roles, tmp_path / str(seed), seed, real)
            if problems:
                failed[seed] = problems
                print(f"seed {seed} (BENCH_PAIR_SEED={seed} BENCH_PAIR_RUNS=1): {problems}")
        assert watched.started == []
    assert failed == {}
