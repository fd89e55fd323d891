"""Size budgets of the product's Python: soft ones are listed, hard ones fail.

A budget is raised here, in a commit of its own that says why. Tests are not
counted: a long table of cases is not a long thought.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_SOFT, FILE_HARD = 400, 600
FUNCTION_SOFT, FUNCTION_HARD = 40, 60
ROOTS = ("app", "core", "tui", "web", ".ci", "benchflow_workbench.py")


@dataclass(frozen=True, slots=True)
class Excess:
    """One file or function above its soft budget."""

    where: str
    lines: int
    soft: int
    hard: int

    @property
    def fails(self) -> bool:
        return self.lines > self.hard

    def __str__(self) -> str:
        verdict = "TOO LONG" if self.fails else "long"
        return f"{verdict}: {self.where}: {self.lines} lines (budget {self.soft}, hard {self.hard})"


def sources(root: Path) -> Iterator[Path]:
    for name in ROOTS:
        path = root / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def excesses(source: str, where: str) -> Iterator[Excess]:
    """What in one file is above a soft budget; decorators and docstrings count."""
    lines = len(source.splitlines())
    if lines > FILE_SOFT:
        yield Excess(where, lines, FILE_SOFT, FILE_HARD)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or node.lineno) - first + 1
            if length > FUNCTION_SOFT:
                label = f"{where}:{node.lineno} {node.name}"
                yield Excess(label, length, FUNCTION_SOFT, FUNCTION_HARD)


def check(root: Path) -> list[Excess]:
    """Everything above a soft budget below ``root``, longest first."""
    found = [
        excess
        for path in sources(root)
        for excess in excesses(path.read_text("utf-8"), str(path.relative_to(root)))
    ]
    return sorted(found, key=lambda excess: (-excess.fails, -excess.lines / excess.soft))


def main() -> int:
    found = check(Path(__file__).resolve().parent.parent)
    for excess in found:
        print(excess)
    failing = sum(excess.fails for excess in found)
    print(f"budgets: {len(found) - failing} above the soft budget, {failing} above the hard one")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
