"""Set-up: a venv is made once, never stale, and a bare machine is told what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import copy_tracked, run


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_tracked(tmp_path / "checkout")


def key(folder: Path, python: str | Path = sys.executable) -> str:
    return run([folder / ".ci/setup", "--key", python], cwd=folder).stdout.strip()


def program(folder: Path, name: str, body: str) -> Path:
    """A small stand-in for a program of the machine, first on the path."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_the_key_is_the_same_for_the_same_checkout(checkout: Path) -> None:
    assert key(checkout) == key(checkout)
    assert re.fullmatch(r"[0-9a-f]{16}", key(checkout))


@pytest.mark.parametrize("name", ["pyproject.toml", "core/__init__.py", ".ci/setup"])
def test_the_key_follows_what_a_venv_is_made_from(checkout: Path, name: str) -> None:
    before = key(checkout)
    append(checkout / name, "\n# changed\n")
    assert key(checkout) != before


def test_the_key_does_not_follow_other_files(checkout: Path) -> None:
    before = key(checkout)
    append(checkout / "README.md", "changed")
    append(checkout / "core/kernel/tree.py", "# changed")
    assert key(checkout) == before


def test_the_key_follows_the_folder_and_the_python(checkout: Path, tmp_path: Path) -> None:
    other = copy_tracked(tmp_path / "other")
    assert key(other) != key(checkout)
    newer = program(tmp_path / "bin", "python9", "echo 3.99.0")
    assert key(checkout, newer) != key(checkout)


def bare_machine(tmp_path: Path, *, root: bool) -> dict[str, str]:
    """A path on which apt only writes down what it was asked for."""
    programs = tmp_path / "programs"
    for name in ("bash", "env", "dirname", "sed", "cut", "sha256sum", "cat", "flock", "grep", "rm"):
        found = shutil.which(name)
        assert found
        programs.mkdir(exist_ok=True)
        (programs / name).symlink_to(found)
    program(programs, "id", f"echo {0 if root else 1000}")
    program(programs, "apt-get", f'echo "$@" >>{tmp_path}/apt-calls')
    return {"PATH": str(programs)}


def python_without_venv(tmp_path: Path) -> Path:
    """Debian's python3 as it ships: it runs, and has no venv."""
    return program(
        tmp_path,
        "bare-python",
        f'case "$*" in *ensurepip*|*"-m venv"*) exit 1;; esac\nexec {sys.executable} "$@"',
    )


def test_a_user_is_given_the_one_apt_line_and_nothing_is_made(
    checkout: Path, tmp_path: Path
) -> None:
    env = bare_machine(tmp_path, root=False)
    done = run([checkout / ".ci/setup", python_without_venv(tmp_path)], env=env, check=False)
    assert done.returncode != 0
    assert "sudo apt-get install -y python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()
    assert not (tmp_path / "apt-calls").exists()


def test_root_installs_what_is_missing(checkout: Path, tmp_path: Path) -> None:
    env = bare_machine(tmp_path, root=True)
    run([checkout / ".ci/setup", python_without_venv(tmp_path)], env=env, check=False)
    calls = (tmp_path / "apt-calls").read_text().splitlines()
    assert calls[0].startswith("update")
    assert calls[1].startswith("install")
    assert calls[1].endswith("python3-venv")


def test_an_old_python_is_refused_with_the_way_out(checkout: Path, tmp_path: Path) -> None:
    old = program(tmp_path, "python3.9", 'case "$*" in *exit*) exit 1;; *) echo 3.9.2;; esac')
    done = run([checkout / ".ci/setup", old], check=False)
    assert done.returncode != 0
    assert "3.9.2" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def light(folder: Path) -> Path:
    """The checkout with its dependencies taken out: set-up is what is tested, not the registry."""
    path = folder / "pyproject.toml"
    text = path.read_text()
    packages, extras = text.index("dependencies = ["), text.index("[project.optional-dependencies]")
    scripts = text.index("[project.scripts]")
    extra_names = "".join(f"{name} = []\n" for name in ("web", "tui", "docker", "dev"))
    path.write_text(
        f"{text[:packages]}\n{text[extras:].splitlines()[0]}\n{extra_names}{text[scripts:]}"
    )
    return folder


def setup(folder: Path) -> str:
    done = run(["make", "setup", f"PYTHON={sys.executable}"], cwd=folder, timeout=300)
    return done.stdout


def stamps(folder: Path) -> list[str]:
    return [path.name for path in (folder / ".venv").glob(".ready-*")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_setup_runs_once_follows_pyproject_and_never_trusts_a_copied_venv(
    checkout: Path, tmp_path: Path
) -> None:
    light(checkout)
    assert "making .venv" in setup(checkout)
    assert (checkout / ".venv/bin/bench").is_file()
    assert (checkout / ".venv/bin/benchflow-workbench").is_file()
    assert setup(checkout) == ""

    append(checkout / "pyproject.toml", "\n# changed\n")
    output = setup(checkout)
    assert "installing dependencies" in output
    assert "making .venv" not in output
    assert len(stamps(checkout)) == 1
    assert setup(checkout) == ""

    copied = Path(shutil.copytree(checkout, tmp_path / "copied", symlinks=True))
    assert "making .venv" in setup(copied)
    assert str(copied) in (copied / ".venv/bin/bench").read_text().splitlines()[0]

    os.remove(checkout / ".venv/bin/python")
    (checkout / ".venv" / stamps(checkout)[0]).unlink()
    assert "making .venv" in setup(checkout)
