"""Size budgets hold, and the script that checks them can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, load_script

budgets = load_script("budgets.py")


def function_of(lines: int) -> str:
    return "\n".join(["def long():", *["    x = 1"] * (lines - 1), ""])


def test_no_product_file_or_function_is_above_its_hard_budget() -> None:
    assert [str(excess) for excess in budgets.check(ROOT) if excess.fails] == []


@pytest.mark.parametrize(
    ("lines", "found", "fails"), [(40, 0, False), (41, 1, False), (60, 1, False), (61, 1, True)]
)
def test_a_function_is_measured_to_the_line(lines: int, found: int, fails: bool) -> None:
    result = list(budgets.excesses(function_of(lines), "x.py"))
    assert len(result) == found
    assert any(excess.fails for excess in result) == fails


@pytest.mark.parametrize(
    ("lines", "found", "fails"), [(400, 0, False), (401, 1, False), (600, 1, False), (601, 1, True)]
)
def test_a_file_is_measured_to_the_line(lines: int, found: int, fails: bool) -> None:
    result = list(budgets.excesses("x = 1\n" * lines, "x.py"))
    assert len(result) == found
    assert any(excess.fails for excess in result) == fails


def test_methods_nested_functions_and_decorators_count() -> None:
    source = "class A:\n    @property\n    async def b(self):\n" + "        x = 1\n" * 59
    (excess,) = budgets.excesses(source, "x.py")
    assert excess.lines == 61
    assert "b" in excess.where


def test_every_code_folder_is_measured(tmp_path: Path) -> None:
    for folder in budgets.ROOTS:
        path = tmp_path / folder
        if not folder.endswith(".py"):
            path.mkdir()
            path = path / "long.py"
        path.write_text(function_of(61))
    assert len(budgets.check(tmp_path)) == len(budgets.ROOTS)
