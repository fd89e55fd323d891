"""Run a state script's verbs: in this process, or alone as the services' compartment does."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core.environments import files_inside, sqlite_inside


class Script:
    """One state kind's script on this host."""

    def __init__(self, main: Callable[[list[str]], int], path: Path) -> None:
        self._main = main
        self.path = path

    def run(self, verb: str, data: bytes = b"", **args: Any) -> tuple[dict[str, Any], bytes]:
        """Its JSON line, and what came after it. A fault comes back as ``{"error": ...}``."""
        output = io.BytesIO()
        with standard_streams(data, output):
            code = self._main([str(self.path), verb, json.dumps(args)])
        return parted(code, output.getvalue())

    def run_alone(self, verb: str, data: bytes = b"", **args: Any) -> tuple[dict[str, Any], bytes]:
        """The same by file path in an isolated interpreter of the system."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(self.path), verb, json.dumps(args)],
            input=data,
            capture_output=True,
            timeout=60,
        )
        assert not done.stderr, done.stderr
        return parted(done.returncode, done.stdout)

    def digest(self, path: Path) -> str:
        answer, _ = self.run("digest", paths=[str(path)])
        return str(answer["states"][0]["digest"])

    def restore(self, path: Path, data: bytes) -> dict[str, Any]:
        """Stage a copy and make it the state."""
        answer, _ = self.run("stage", data, paths=[str(path)])
        if "error" not in answer:
            answer, _ = self.run("swap", paths=[str(path)], absent=[])
        return answer


def parted(code: int, output: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, rest = output.partition(b"\n")
    answer = json.loads(line)
    assert isinstance(answer, dict)
    assert code == (3 if "error" in answer else 0)
    return answer, rest


@contextlib.contextmanager
def standard_streams(data: bytes, output: io.BytesIO) -> Iterator[None]:
    text = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(text):
            yield
    finally:
        sys.stdin = before
        text.detach()


SQLITE = Script(sqlite_inside.main, Path(sqlite_inside.__file__))
FILES = Script(files_inside.main, Path(files_inside.__file__))
