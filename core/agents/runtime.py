"""Which host files a command needs, as read-only mounts at the same paths.

Invariant: only what the command is made of is mounted: its virtual environment
and that one's base interpreter, its ``node_modules`` folder and node itself, or
the single file. System folders are in every view already and never mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.contracts.sandbox import Mount

SYSTEM = tuple(
    Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_MAX_HOPS = 20
_MANAGERS = ("pyenv", "rbenv", "nodenv")


@dataclass(frozen=True, slots=True)
class Runtime:
    """A command that can run in a sandbox: absolute argv, mounts, and PATH."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...]
    path: str


@dataclass(slots=True)
class _Found:
    mounts: dict[Path, Path] = field(default_factory=dict)
    """Target to source."""
    folders: list[str] = field(default_factory=list)
    """Folders to put on PATH."""


def locate(argv: Sequence[str]) -> Runtime | None:
    """The command as it can be run in a sandbox; None when it is not on this machine.

    Every argument that is an existing file of the host is mounted too, and made
    absolute, because the sandbox's current folder is another one.
    """
    path = shutil.which(argv[0])
    if path is None:
        return None
    found = _Found()
    executable = _take(_behind_shim(Path(os.path.abspath(path))), found)
    arguments = [_argument(item, found) for item in argv[1:]]
    mounts = tuple(
        Mount(str(target), source=source, seen_by=frozenset({"agent"}))
        for target, source in sorted(found.mounts.items())
        if not any(parent in found.mounts for parent in target.parents)
    )
    path_value = ":".join([*dict.fromkeys(found.folders), SYSTEM_PATH])
    return Runtime((str(executable), *arguments), mounts, path_value)


def interpreter(executable: str) -> Runtime | None:
    """A Python interpreter with its standard library, without any virtual environment."""
    real = Path(executable).resolve()
    return locate([str(real)]) if real.exists() else None


def _behind_shim(path: Path) -> Path:
    """The program that a version manager's shim would start; the path itself elsewhere.

    pyenv, rbenv and nodenv put scripts named after every program into a folder
    ``shims``; run in a sandbox they would look for a manager that is not there.
    """
    manager = path.parent.parent
    if path.parent.name != "shims" or not (manager / "versions").is_dir():
        return path
    tool = next((item for item in _MANAGERS if shutil.which(item)), None)
    if tool is None:
        return path
    try:
        done = subprocess.run(
            [tool, "which", path.name], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return path
    real = Path(done.stdout.strip() or path)
    return real if done.returncode == 0 and real.is_file() else path


def _take(path: Path, found: _Found) -> Path:
    """Mount what one executable needs; returns the path to run it by."""
    for _ in range(_MAX_HOPS):
        venv = _above(path, "pyvenv.cfg")
        if venv is not None:
            _take_venv(venv, found)
            break
        if not path.is_symlink():
            _take_file(path, found)
            break
        # The name matters inside a virtual environment only: there links are kept.
        path = Path(os.path.normpath(path.parent / path.readlink()))
    if not _in_system(path):
        found.folders.append(str(path.parent))
    _take_interpreter(path, found)
    return path


def _take_file(path: Path, found: _Found) -> None:
    if _in_system(path):
        return
    modules = _node_root(path)
    prefix = _python_prefix(path)
    root = modules or prefix or path
    found.mounts[root] = root


def _take_venv(venv: Path, found: _Found) -> None:
    found.mounts[venv] = venv
    for line in (venv / "pyvenv.cfg").read_text(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            base = Path(value.strip()).parent
            if not _in_system(base):
                found.mounts[base] = base
    python = venv / "bin" / "python"
    if python.exists():
        _take_base(python.resolve(), found)


def _take_base(python: Path, found: _Found) -> None:
    base = _python_prefix(python) or python
    if not _in_system(base):
        found.mounts[base] = base


def _take_interpreter(path: Path, found: _Found) -> None:
    """The program that a script's first line names."""
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return
    if not first.startswith(b"#!"):
        return
    words = first[2:].decode("utf-8", errors="replace").split()
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        program = shutil.which(named[0]) if named else None
    else:
        program = words[0] if words else None
    if program and os.path.exists(program) and Path(program) != path:
        _take(_behind_shim(Path(os.path.abspath(program))), found)


def _argument(item: str, found: _Found) -> str:
    name, equals, value = item.partition("=")
    if item.startswith("-") and equals and os.path.isfile(value):
        return f"{name}={_argument(value, found)}"
    if not os.path.isfile(item):
        return item
    path = Path(os.path.abspath(item))
    if not _in_system(path):
        found.mounts[path] = path.resolve()
    return str(path)


def _above(path: Path, marker: str) -> Path | None:
    return next((folder for folder in path.parents if (folder / marker).is_file()), None)


def _node_root(path: Path) -> Path | None:
    """The outermost ``node_modules`` around the file, since packages share it, else its package."""
    modules = [folder for folder in path.parents if folder.name == "node_modules"]
    if modules:
        return modules[-1]
    package = _above(path, "package.json")
    # A package.json high up the tree (a home folder, say) would mount far too much.
    return package if package in list(path.parents)[:3] else None


def _python_prefix(path: Path) -> Path | None:
    """The installation around ``<prefix>/bin/pythonX`` when its library is there."""
    if not path.name.startswith("python") or path.parent.name != "bin":
        return None
    prefix = path.parent.parent
    return prefix if any((prefix / "lib").glob("python3*")) else None


def _in_system(path: Path) -> bool:
    return any(path == root or root in path.parents for root in SYSTEM)
