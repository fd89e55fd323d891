"""The state scripts need nothing but an interpreter: they run by path, isolated, without site."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.core.environments.scripts import FILES, SQLITE, Script


def make_state(script: Script, path: Path) -> None:
    if script is FILES:
        path.mkdir()
        (path / "a.txt").write_text("a")
        return
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")


@pytest.mark.parametrize("script", [SQLITE, FILES], ids=["sqlite", "files"])
def test_every_verb_runs_alone_as_it_does_here(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "state"
    make_state(script, path)
    kept = str(tmp_path / "kept")
    for verb in ("flush", "digest", "query", "export"):
        args: dict[str, Any] = {"paths": [str(path)], "rows": 10, "bytes": 1000}
        assert script.run_alone(verb, **args) == script.run(verb, **args)
    _, copy = script.run("export", paths=[str(path)])
    for verb, data in (("keep", b""), ("stage", copy), ("swap", b""), ("reset", b"")):
        answer, _ = script.run_alone(verb, data, paths=[str(path)], absent=[], folder=kept)
        assert answer == {}
    assert script.run("export", paths=[str(path)])[1] == copy


@pytest.mark.parametrize("script", [SQLITE, FILES], ids=["sqlite", "files"])
def test_a_fault_is_one_json_line_and_exit_code_three(script: Script, tmp_path: Path) -> None:
    answer, _ = script.run_alone("stage", b"neither", paths=[str(tmp_path / "state")])
    assert answer["error"]
