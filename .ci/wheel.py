"""Builds the wheel: nests the flat folders of the checkout below one package.

In the checkout the folder is the import path (``from core.kernel.tree import
X``). Installed, names like ``core`` would collide with other people's, so this
hook copies the four code folders below ``benchflow_workbench/``, makes the face
module its ``__init__``, and prefixes the import lines. Line numbers stay: each
import is edited in place, found by the syntax tree and never by pattern.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "benchflow_workbench"
FOLDERS = ("app", "core", "tui", "web")
PACKED = frozenset({".py", ".toml", ".tcss", ".mako", ".sql", ".json", ".sh"})
"""Kinds of files in the code folders; a tracked file of another kind fails the packaging test."""
MAIN = f'''"""Runs the ``bench`` command: ``python -m {PACKAGE}``."""

from {PACKAGE} import main

main()
'''


class NestingError(Exception):
    """An import that cannot be nested; says file, line and what to write instead."""


def _ours(name: str | None) -> bool:
    return (name or "").partition(".")[0] in FOLDERS


def _refuse(where: str, line: int, problem: str) -> NestingError:
    return NestingError(f"{where}:{line}: {problem}")


def _edit(node: ast.Import | ast.ImportFrom, where: str) -> tuple[bytes, bytes] | None:
    """The words of one import statement to look for and to put in place, or None to leave it."""
    if isinstance(node, ast.ImportFrom):
        if node.level or not _ours(node.module):
            return None
        name = str(node.module)
        return f"from {name} ".encode(), f"from {PACKAGE}.{name} ".encode()
    ours = [alias for alias in node.names if _ours(alias.name)]
    if not ours:
        return None
    if len(node.names) > 1:
        raise _refuse(where, node.lineno, "write one import per line, this one names several")
    (alias,) = ours
    if alias.asname:
        return f"import {alias.name} ".encode(), f"import {PACKAGE}.{alias.name} ".encode()
    if "." in alias.name:
        parent, _, leaf = alias.name.rpartition(".")
        advice = f"write `from {parent} import {leaf}`"
        raise _refuse(
            where, node.lineno, f"`import {alias.name}` binds only its first part; {advice}"
        )
    new = f"from {PACKAGE} import {alias.name}"
    return f"import {alias.name}".encode(), new.encode()


def nest(source: bytes, where: str) -> bytes:
    """Prefix every absolute import of our folders; raises NestingError where it cannot."""
    lines = source.splitlines(keepends=True)
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        edit = _edit(node, where)
        if edit is None:
            continue
        line, (old, new) = node.lineno - 1, edit
        head, tail = lines[line][: node.col_offset], lines[line][node.col_offset :]
        if not tail.startswith(old):
            raise _refuse(
                where, node.lineno, f"write it as `{old.decode().strip()} ...`, single spaces"
            )
        lines[line] = head + new + tail[len(old) :]
    nested = b"".join(lines)
    _prove(nested, where)
    return nested


def _prove(nested: bytes, where: str) -> None:
    """Read the result again: it must parse, and no import of ours may be left."""
    for node in ast.walk(ast.parse(nested)):
        left = False
        if isinstance(node, ast.ImportFrom):
            left = not node.level and _ours(node.module)
        elif isinstance(node, ast.Import):
            left = any(_ours(alias.name) for alias in node.names)
        if left and isinstance(node, ast.stmt):
            raise _refuse(where, node.lineno, "an import of ours was left as it is")


def packed(path: Path) -> bool:
    """Whether a file of the code folders ships: never a key, cache or swap file."""
    return path.is_file() and path.suffix in PACKED and "__pycache__" not in path.parts


def lay_out(root: Path, target: Path) -> None:
    """Write the nested package's Python and its data files into ``target``."""
    for folder in FOLDERS:
        for path in sorted(filter(packed, (root / folder).rglob("*"))):
            relative = path.relative_to(root)
            goal = target / relative
            goal.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                goal.write_bytes(nest(path.read_bytes(), str(relative)))
                shutil.copymode(path, goal)
            else:
                shutil.copy(path, goal)
    face = root / f"{PACKAGE}.py"
    (target / "__init__.py").write_bytes(nest(face.read_bytes(), face.name))
    (target / "__main__.py").write_text(MAIN, "utf-8")
    (target / "py.typed").touch()


class NestingHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatch calls it; an editable install is left flat."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        if version == "editable":
            return
        self._target = Path(tempfile.mkdtemp(prefix="benchflow-wheel-"))
        try:
            lay_out(Path(self.root), self._target)
        except BaseException:
            shutil.rmtree(self._target)  # hatch calls finalize only after a build that worked
            raise
        included = build_data["force_include"]
        assert isinstance(included, dict)
        for path in self._target.rglob("*"):
            if path.is_file():
                included[str(path)] = f"{PACKAGE}/{path.relative_to(self._target).as_posix()}"

    def finalize(self, version: str, build_data: dict[str, object], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._target)
