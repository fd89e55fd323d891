"""Every dependency has its reason in docs/dependencies.md; every import has its dependency."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions

from tests.architecture.repository import CODE_FOLDERS, FACE, ROOT, parse, product_files, pyproject

REASON = re.compile(r"^- `(?P<name>[^`]+)`: (?P<reason>\S.{15,})$")
PROVIDED = {"sqlalchemy", "starlette", "pydantic-core"}
"""Come with sqlmodel, fastapi and pydantic, whose API hands their objects out."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, set[str]]:
    """Section of docs/dependencies.md to the distributions pyproject.toml declares for it."""
    project = pyproject()["project"]
    groups = {"Always installed": project["dependencies"]}
    groups |= {f"Extra `{key}`": value for key, value in project["optional-dependencies"].items()}
    return {
        section: {normal(re.split(r"[<>=!~ \[;]", text)[0]) for text in requirements}
        for section, requirements in groups.items()
    }


def explained() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    section = ""
    for line in (ROOT / "docs/dependencies.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
            sections[section] = []
        elif match := REASON.match(line):
            sections[section].append(normal(match["name"]))
        else:
            assert not line.startswith("-"), f"a dependency without a reason: {line}"
    return sections


def test_every_dependency_has_one_reason_line_in_its_section() -> None:
    assert {key: sorted(names) for key, names in explained().items()} == {
        key: sorted(names) for key, names in declared().items()
    }


def test_the_reasons_are_in_alphabetical_order() -> None:
    for section, names in explained().items():
        assert names == sorted(names), section


def imported_distributions() -> set[str]:
    distributions = packages_distributions()
    tops = {
        name.partition(".")[0]
        for path in product_files()
        for node in ast.walk(parse(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    return {normal(owner) for top in tops for owner in distributions.get(top, [])}


def test_the_page_says_which_libraries_are_not_imported_yet() -> None:
    page = (ROOT / "docs/dependencies.md").read_text("utf-8")
    waiting = {
        normal(name) for name in re.findall(r"^- `([^`]+)`:.*\(not imported yet\)", page, re.M)
    }
    shipped = set().union(*(names for key, names in declared().items() if key != "Extra `dev`"))
    assert waiting == shipped - imported_distributions()


def test_what_the_product_imports_is_declared() -> None:
    distributions = packages_distributions()
    allowed = set().union(*(names for key, names in declared().items() if key != "Extra `dev`"))
    ours = {*CODE_FOLDERS, FACE.removesuffix(".py")}
    for path in product_files():
        for node in ast.walk(parse(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in names:
                top = name.partition(".")[0]
                if top in sys.stdlib_module_names or top in ours:
                    continue
                owners = {normal(owner) for owner in distributions.get(top, [])}
                assert owners & (allowed | PROVIDED), f"{path.name} imports {top}: not declared"
