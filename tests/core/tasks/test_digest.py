"""The digest changes with what is run or scored, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from core.tasks.package import load_task
from tests.core.tasks.packages import package


def digest(root: Path) -> str:
    return load_task(root).digest


def test_it_is_the_same_for_a_copy_elsewhere(tmp_path: Path) -> None:
    root = package(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    assert digest(copy) == digest(root)
    assert digest(root).startswith("sha256:")


@pytest.mark.parametrize(
    "name",
    ["verifier/__pycache__/x.pyc", "evidence/run.json", ".git/HEAD", "environment/.DS_Store"],
)
def test_caches_history_and_evidence_do_not_count(tmp_path: Path, name: str) -> None:
    root = package(tmp_path, files={"environment/a": "a"})
    before = digest(root)
    package(tmp_path, files={name: "anything"})
    assert digest(root) == before


@pytest.mark.parametrize(
    "name", ["verifier/test.sh", "environment/seed.sql", "oracle/solve.sh", "prompts/role.a.md",
             "environment/evidence/a.txt", "verifier/hidden.pyc"],
)  # fmt: skip
def test_every_other_file_counts(tmp_path: Path, name: str) -> None:
    root = package(tmp_path)
    before = digest(root)
    package(tmp_path, files={name: "changed"})
    assert digest(root) != before


def test_moving_a_byte_between_files_or_renaming_one_counts(tmp_path: Path) -> None:
    seen = {
        digest(package(tmp_path / str(i), files=files))
        for i, files in enumerate(
            (
                {"environment/a": "xy", "environment/b": "z"},
                {"environment/a": "x", "environment/b": "yz"},
                {"environment/c": "xy", "environment/b": "z"},
            )
        )
    }
    assert len(seen) == 3


def test_the_executable_bit_and_a_links_target_count(tmp_path: Path) -> None:
    root = package(tmp_path, files={"environment/workspace/tool": "#!/bin/sh\n"})
    before = digest(root)
    (root / "environment" / "workspace" / "tool").chmod(0o755)
    executable = digest(root)
    (root / "environment" / "link").symlink_to("workspace")
    linked = digest(root)
    (root / "environment" / "link").unlink()
    (root / "environment" / "link").symlink_to("workspace/tool")
    assert len({before, executable, linked, digest(root)}) == 4
