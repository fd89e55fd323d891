"""Rules every source file keeps, whoever writes it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.repository import CODE_FOLDERS, ROOT, parse, product_files, run

OUR_MODULE = re.compile(rf"({'|'.join(CODE_FOLDERS)})(\.[A-Za-z_]\w*)+(:\w+)?")
FILE_SUFFIXES = (".py", ".toml", ".json", ".html", ".css", ".db", ".sock", ".log", ".txt", ".md")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def names_our_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String constants that an import could be made from; prose and file names are not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip()
            if OUR_MODULE.fullmatch(text) and not text.endswith(FILE_SUFFIXES):
                yield node.lineno, text


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 'core.store'", 1),
        ("x = 'web.main:app'", 1),
        ("x = f'core.kernel.tree'", 1),
        ("x = '.local:LocalSandbox'", 0),
        ("x = 'core.db'", 0),
        ("x = 'tui.toml'", 0),
        ("x = 'app'", 0),
        ("x = 'core.kernel decides'", 0),
    ],
)
def test_a_string_that_names_our_module_is_seen(source: str, found: int) -> None:
    assert len(list(names_our_modules(ast.parse(source)))) == found


def test_no_string_names_our_modules() -> None:
    """The wheel prefixes imports, never strings: such a string breaks once installed."""
    found = [
        f"{relative(path)}:{line}: {text!r}"
        for path in product_files()
        for line, text in names_our_modules(parse(path))
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    missing = [
        relative(path)
        for path in product_files()
        if path.read_text("utf-8").strip()
        and path != ROOT / "core/__init__.py"
        and not ast.get_docstring(parse(path))
    ]
    assert missing == []


def test_package_files_are_empty() -> None:
    """A package file that re-exports makes cycles; the version is the one exception."""
    full = [
        relative(path)
        for path in product_files()
        if path.name == "__init__.py" and path.read_text("utf-8").strip()
    ]
    assert full == ["core/__init__.py"]
    assert len((ROOT / "core/__init__.py").read_text("utf-8").splitlines()) == 1


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for path in product_files()} - {ROOT}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_contracts_promise_types_without_any() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in sorted((ROOT / "core/contracts").glob("*.py"))
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Name | ast.alias | ast.Attribute)
        and "Any" in (getattr(node, "id", ""), getattr(node, "name", ""), getattr(node, "attr", ""))
    ]
    assert found == []


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_imports_are_absolute() -> None:
    """The folder is the import path; a relative import would say it a second way."""
    found = [
        f"{relative(path)}: {name}"
        for path in product_files()
        for name in imported(path)
        if name.startswith(".")
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["core/contracts", "core/kernel"])
def test_contracts_and_kernel_need_only_the_standard_library(folder: str) -> None:
    strange = {
        f"{relative(path)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imported(path)
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "core"}
    }
    assert strange == set()


@pytest.mark.slow
def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    """No output, no file, no thread, no child process, whatever is imported."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in product_files()
        if path.name != "__init__.py" and runs_on_import(path)
    ]
    code = f"""
import importlib, os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
sys.dont_write_bytecode = True
import benchflow_workbench
for name in {modules!r}:
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
assert not os.listdir(), os.listdir()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError('a child process was started')
"""
    done = run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path)
    assert done.stdout + done.stderr == ""


def runs_on_import(path: Path) -> bool:
    """Migration scripts are run by Alembic inside its own context and cannot be imported alone."""
    return "migrations" not in path.parts and path.stem.isidentifier()


def test_git_ignores_no_source_file() -> None:
    """A line such as ``core`` or ``jobs`` in .gitignore would drop folders from wheel and clone."""
    names = [relative(path) for path in product_files()]
    ignored = run(["git", "check-ignore", "--no-index", *names], check=False).stdout.split()
    assert ignored == []
