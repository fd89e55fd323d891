"""The wheel hook edits every form of import it meets, or refuses it by file and line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.repository import load_script, product_files

wheel = load_script("wheel.py")


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ("from core import x", "from benchflow_workbench.core import x"),
        ("from core.kernel.tree import A", "from benchflow_workbench.core.kernel.tree import A"),
        ("from app import (\n    a,\n)", "from benchflow_workbench.app import (\n    a,\n)"),
        ("import core", "from benchflow_workbench import core"),
        ("import core as c", "import benchflow_workbench.core as c"),
        ("import core.kernel as k", "import benchflow_workbench.core.kernel as k"),
        ("def f():\n    from web import a", "def f():\n    from benchflow_workbench.web import a"),
        ("x = 'é'; from tui import a", "x = 'é'; from benchflow_workbench.tui import a"),
        (
            "from core import a; from app import b",
            "from benchflow_workbench.core import a; from benchflow_workbench.app import b",
        ),
        ("from core import \\\n    a", "from benchflow_workbench.core import \\\n    a"),
        ("from core import a\r\nx = 1\r\n", "from benchflow_workbench.core import a\r\nx = 1\r\n"),
    ],
)
def test_an_import_of_ours_is_prefixed(flat: str, nested: str) -> None:
    assert wheel.nest(flat.encode(), "x.py") == nested.encode()


@pytest.mark.parametrize(
    "source",
    [
        "import corelib",
        "from application import core",
        "from .core import a",
        "from . import core",
        "import os, sys",
        "text = 'from core import a'",
        '"""\nfrom core import a\n"""',
        "# from core import a",
        "from benchflow_workbench import errors",
    ],
)
def test_everything_else_is_left_as_it_is(source: str) -> None:
    assert wheel.nest(source.encode(), "x.py") == source.encode()


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("\nimport core.kernel.tree", "from core.kernel import tree"),
        ("\nimport os, core", "one import per line"),
        ("\nfrom  core import a", "single spaces"),
        ("\nfrom \\\n  core import a", "single spaces"),
        ("\nfrom core . kernel import a", "single spaces"),
    ],
)
def test_a_form_it_cannot_edit_is_refused_with_its_place(source: str, advice: str) -> None:
    with pytest.raises(wheel.NestingError, match=advice) as caught:
        wheel.nest(source.encode(), "core/x.py")
    assert str(caught.value).startswith("core/x.py:2: ")


def test_the_product_nests_and_no_line_moves() -> None:
    for path in product_files():
        source = path.read_bytes()
        nested = wheel.nest(source, str(path))
        assert nested.count(b"\n") == source.count(b"\n")
        ast.parse(nested)


def test_nesting_twice_changes_nothing() -> None:
    once = wheel.nest(b"from core.kernel import tree\n", "x.py")
    assert wheel.nest(once, "x.py") == once


@pytest.mark.parametrize("name", ["secret.key", "x.pyc", ".x.swp", "core.db"])
def test_a_stray_file_is_not_packed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("")
    assert not wheel.packed(path)
