"""Run a state script as the services' compartment would: by path, isolated, one JSON line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from core.environments.files import FilesState
from core.environments.sqlite import SqliteState


class Script:
    """One state kind's script on this host."""

    def __init__(self, path: Path) -> None:
        self._argv = [sys.executable, "-I", "-S", str(path)]

    def run(self, verb: str, data: bytes = b"", **args: Any) -> tuple[dict[str, Any], bytes]:
        """Its JSON line, and what came after it. A fault comes back as ``{"error": ...}``."""
        done = subprocess.run(
            [*self._argv, verb, json.dumps(args)], input=data, capture_output=True, timeout=60
        )
        assert not done.stderr, done.stderr
        line, _, rest = done.stdout.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        assert done.returncode == (3 if "error" in answer else 0)
        return answer, rest

    def digest(self, path: Path) -> str:
        answer, _ = self.run("digest", paths=[str(path)])
        return str(answer["states"][0]["digest"])

    def restore(self, path: Path, data: bytes) -> dict[str, Any]:
        """Stage a copy and make it the state."""
        answer, _ = self.run("stage", data, paths=[str(path)])
        if "error" not in answer:
            answer, _ = self.run("swap", paths=[str(path)], absent=[])
        return answer


SQLITE = Script(SqliteState.script)
FILES = Script(FilesState.script)
