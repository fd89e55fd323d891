"""What the tests of this folder know about the checkout: its root, its files, its scripts."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("app", "core", "tui", "web")
FACE = "benchflow_workbench.py"


def load_script(name: str) -> ModuleType:
    """A script of ``.ci`` as a module; the folder is no package."""
    path = ROOT / ".ci" / name
    module_name = f"ci_{path.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def product_files() -> Iterator[Path]:
    """Every Python file that ships, the face included."""
    for folder in CODE_FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield ROOT / FACE


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def tracked_files(root: Path = ROOT) -> list[str]:
    """Paths git knows and that exist, relative to the root."""
    listed = run(["git", "ls-files", "-z"], cwd=root).stdout
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def copy_tracked(target: Path, names: Sequence[str] | None = None) -> Path:
    """The checkout as its next clone would be, without what git does not know."""
    for name in tracked_files() if names is None else names:
        goal = target / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, goal)
    return target


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would lead a child's imports back to this checkout."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | dict(extra or {})


def run(
    command: Sequence[object],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout: float = 100,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; with ``check`` a failure shows its whole output."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check:
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def python(code: str, *, cwd: Path = ROOT, interpreter: str | Path = sys.executable) -> str:
    """What a fresh interpreter prints."""
    return run([interpreter, "-c", code], cwd=cwd).stdout
