"""Pages say what is there: make targets, files and links that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, load_script, tracked_files

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")
NAMED_PATH = re.compile(r"`((?:app|core|tui|web|tests|docs|examples|\.ci)/[\w./<>*-]*)`")


def pages() -> list[Path]:
    return [ROOT / name for name in tracked_files() if name.endswith(".md") and "data/" not in name]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    rules = set(re.findall(r"^([a-z]+):(?!=)", text, re.MULTILINE))
    assert set(phony.split()) == rules
    return rules


@pytest.mark.parametrize("target", sorted(make_targets() - {"help"}))
def test_the_readme_and_make_help_name_every_make_target(target: str) -> None:
    assert f"make {target}" in (ROOT / "README.md").read_text("utf-8")
    help_lines = re.findall(
        r"^#   make (\w+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert target in help_lines


def test_no_page_names_a_make_target_that_is_not_there() -> None:
    for page in pages():
        named = re.findall(
            r"^ *make ([a-z]+)|`make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE
        )
        assert {first or second for first, second in named} <= make_targets(), page


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages()
        for target in LINK.findall(page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_files_named_on_the_front_pages_exist(name: str) -> None:
    named = NAMED_PATH.findall((ROOT / name).read_text("utf-8"))
    plain = [path for path in named if not set(path) & set("<>*")]
    assert [path for path in plain if not (ROOT / path).exists()] == []
    assert plain


def test_the_changelog_has_the_version_or_unreleased_first() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (first, *_) = re.findall(r"^## (.*)$", text, re.MULTILINE)
    version = (ROOT / "core/__init__.py").read_text("utf-8").split('"')[1]
    assert first == "Unreleased" or first.startswith(version)


def test_the_wheel_packs_every_kind_of_file_the_code_folders_hold() -> None:
    wheel = load_script("wheel.py")
    unknown = [
        name
        for name in tracked_files()
        if name.split("/")[0] in wheel.FOLDERS and Path(name).suffix not in wheel.PACKED
    ]
    assert unknown == [], "add its suffix to PACKED in .ci/wheel.py, or move it"
