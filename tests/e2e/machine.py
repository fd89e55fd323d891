"""``bench`` as a person has it: real processes, one store and one jobs folder a test."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.core.sandboxes.helpers import descendants, groups, mounts

ROOT = Path(__file__).resolve().parents[2]
_SET_CHILD_SUBREAPER = 36


@dataclass
class Machine:
    """One person's machine. Everything it starts is ended by ``machine()``."""

    folder: Path
    actor: str = "ann"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    """Variables of the environment besides, or instead."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    def run(self, *words: str, actor: str | None = None) -> subprocess.CompletedProcess[bytes]:
        """One command to its end."""
        return subprocess.run(
            self._words(words), cwd=ROOT, env=self.env(actor), capture_output=True, timeout=110
        )

    def json(self, *words: str, code: int = 0, actor: str | None = None) -> Any:
        """One command with ``--json``, its exit code checked."""
        done = self.run(*words, "--json", actor=actor)
        assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
        return json.loads(done.stdout)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """One command that runs beside the test, its output piped."""
        process = subprocess.Popen(
            self._words(words),
            cwd=ROOT,
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def _words(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "benchflow_workbench", *words]

    def env(self, actor: str | None = None) -> dict[str, str]:
        # Without bytecode every one of these many starts would compile its imports again.
        kept = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
        return {
            **kept,
            "BENCH_HOME": str(self.home),
            "BENCH_JOBS_DIR": str(self.jobs),
            "BENCH_ACTOR": actor or self.actor,
            **self.more,
        }

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What the store holds, read past the program. Empty while there is no store."""
        database = self.home / "store.db"
        if not database.exists():
            return []
        conn = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
        try:
            return conn.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            conn.close()

    def value(self, sql: str) -> Any:
        found = self.rows(sql)
        return found[0][0] if found else None

    def until(self, sql: str, seconds: float = 60) -> Any:
        """The first value of a query that is neither missing nor 0."""
        return wait_for(lambda: self.value(sql), sql, seconds)

    def until_event(self, kind: str, where: str = "1") -> None:
        self.until(f"SELECT count(*) FROM event WHERE kind = '{kind}' AND {where}")

    def until_asked(self) -> str:
        """The id of the request that waits."""
        return str(self.until("SELECT id FROM request WHERE state = 'open'"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = self.rows(f"SELECT payload FROM event WHERE kind = '{kind}' ORDER BY seq")
        return [json.loads(text) for (text,) in found]

    def state(self) -> str:
        return str(self.value("SELECT state FROM rollout ORDER BY created_at DESC LIMIT 1"))

    def left_behind(self) -> list[str]:
        """Processes, control groups, mounts and live sandbox folders that are still there."""
        root = self.home / "sandboxes"
        found = [f"process {pid}" for pid in sorted(descendants(os.getpid()))]
        if not (root / "trash").exists():
            return found
        found += [f"group {name}" for name in sorted(groups(root))]
        found += [f"mount {line}" for line in mounts(root)]
        for folder in ("sandboxes", "trash"):
            found += [str(path) for path in sorted((root / folder).iterdir())]
        return found


def wait_for(look: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of ``look``. No event comes from another process's database."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds:g} s: {what}")


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine on which nothing is left running afterwards; orphans become ours to see."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1)
    made = Machine(folder)
    try:
        yield made
    finally:
        for process in made.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()
        if made.left_behind():
            made.run("reap")
        prctl(_SET_CHILD_SUBREAPER, 0)


def ended(process: subprocess.Popen[bytes], seconds: float = 60) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that runs beside the test."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.decode(), err.decode()
