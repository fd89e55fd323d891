"""The public face: its three lists agree, it is light, and it claims the checkout's folders."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

import benchflow_workbench as bf
from tests.architecture.repository import FACE, ROOT, parse, python, run

OFFERED_WHOLE = ("agent", "environment", "reward", "sandbox", "user", "values")
DEFINED_HERE = {"__version__", "main", "run"}
HEAVY = {
    "acp",
    "alembic",
    "asyncio",
    "docker",
    "fastapi",
    "httpx",
    "jinja2",
    "numpy",
    "plotly",
    "pydantic",
    "pydantic_settings",
    "rich",
    "sqlalchemy",
    "sqlmodel",
    "starlette",
    "textual",
    "uvicorn",
    "websockets",
    "yaml",
}


def names_for_checkers() -> set[str]:
    """What the TYPE_CHECKING block imports."""
    blocks = [
        node
        for node in parse(ROOT / FACE).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_checkers_and_programs_are_offered_the_same_names() -> None:
    assert names_for_checkers() | DEFINED_HERE == set(bf.__all__)
    assert dir(bf) == sorted(bf.__all__)
    assert len(bf.__all__) == len(set(bf.__all__))


@pytest.mark.parametrize("name", bf.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(bf, name) is not None


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sandboks'"):
        _ = bf.sandboks  # type: ignore[attr-defined]


@pytest.mark.parametrize("contract", OFFERED_WHOLE)
def test_every_public_name_of_a_contract_is_offered(contract: str) -> None:
    tree = ast.parse(inspect.getsource(import_module(f"core.contracts.{contract}")))
    public = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            public.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            public.add(node.target.id)
    assert {name for name in public if not name.startswith("_")} <= set(bf.__all__), (
        f"add the missing names of core/contracts/{contract}.py to the three lists of {FACE}"
    )


def loaded_after(code: str) -> set[str]:
    code = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    return {name.partition(".")[0] for name in python(code).splitlines()[-1].split()}


def test_importing_the_face_loads_only_the_version() -> None:
    assert loaded_after("import benchflow_workbench") <= {
        "benchflow_workbench",
        "core",
        "__future__",
    }


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_and_version_load_no_heavy_library(arguments: list[str]) -> None:
    code = (
        f"import benchflow_workbench, sys\nsys.argv = ['bench', *{arguments!r}]\n"
        "try:\n    benchflow_workbench.main()\nexcept SystemExit as end:\n    assert not end.code"
    )
    assert loaded_after(code).isdisjoint(HEAVY)


def test_run_by_dash_m_it_does_not_load_itself_twice() -> None:
    code = (
        "import runpy, sys\nsys.argv = ['benchflow_workbench', '--version']\n"
        "try:\n    runpy.run_module('benchflow_workbench', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
    )
    counting = (
        "loads = []\nimport importlib.machinery as machinery\n"
        "get = machinery.SourceFileLoader.get_code\n"
        "def counted(self, name):\n    loads.append(name)\n    return get(self, name)\n"
        "machinery.SourceFileLoader.get_code = counted\n"
    )
    report = (
        "import benchflow_workbench\nprint()\nprint(loads.count('benchflow_workbench'), "
        "benchflow_workbench.__version__)"
    )
    assert python(counting + code + report).splitlines()[-1].split() == ["1", bf.__version__]


def test_the_module_and_the_command_print_one_version() -> None:
    by_module = run([sys.executable, "-m", "benchflow_workbench", "--version"]).stdout
    by_command = run([Path(sys.executable).with_name("bench"), "--version"]).stdout
    assert bf.__version__ in by_module
    assert by_module.split()[-1] == by_command.split()[-1]


def test_a_strangers_core_on_the_path_does_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/__init__.py").write_text("__version__ = 'a stranger'")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
import benchflow_workbench as bf
print(bf.Sandbox.__module__, bf.__version__)
"""
    assert python(code, cwd=tmp_path).split() == ["core.contracts.sandbox", bf.__version__]


def test_a_strangers_core_already_imported_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
import core
try:
    import benchflow_workbench
except ImportError as error:
    print(error)
"""
    message = python(code, cwd=tmp_path)
    assert str(tmp_path / "core.py") in message
    assert "pip install ." in message
