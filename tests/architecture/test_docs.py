"""Pages say what is there: make targets, files and links that exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.architecture.pages import fences, pages
from tests.architecture.repository import ROOT, load_script, tracked_files

picture_script = load_script("picture.py")
SVG = "http://www.w3.org/2000/svg"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")
NAMED_PATH = re.compile(r"`((?:app|core|tui|web|tests|docs|examples|\.ci)/[\w./<>*-]*)`")


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


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_on_a_page_exist(page: Path) -> None:
    named = NAMED_PATH.findall(page.read_text("utf-8"))
    plain = [path for path in named if not set(path) & set("<>*")]
    assert [path for path in plain if not (ROOT / path).exists()] == []


def test_the_front_pages_name_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert len(NAMED_PATH.findall((ROOT / name).read_text("utf-8"))) > 3


def concepts() -> list[str]:
    """The pages that the index gives in reading order; whether they exist is a test of links."""
    index = (ROOT / "docs/README.md").read_text("utf-8")
    named = re.findall(r"^\d+\. \[[^\]]+\]\((\S+\.md)\)", index, re.MULTILINE)
    return [name for name in named if (ROOT / "docs" / name).exists()]


def test_every_page_is_in_the_index() -> None:
    index = set(LINK.findall((ROOT / "docs/README.md").read_text("utf-8")))
    there = {page.name for page in pages() if page.parent == ROOT / "docs"} - {"README.md"}
    assert there - index == set()


@pytest.mark.parametrize("name", concepts())
def test_a_page_of_a_concept_has_an_example(name: str) -> None:
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert "```" in text


def test_the_readme_shows_a_picture_that_loads_nothing_from_elsewhere() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\((\S+)\)", (ROOT / "README.md").read_text("utf-8"))
    root = ElementTree.parse(ROOT / picture).getroot()
    text = " ".join("".join(node.itertext()) for node in root.iter(f"{{{SVG}}}text"))
    assert picture_script.is_live(text.replace("\xa0", " "))
    source = (ROOT / picture).read_text("utf-8")
    assert re.findall(r"(?:href|src)=|url\((?!#)|@import|@font-face", source) == []


def test_a_picture_has_the_words_and_colours_of_its_frame() -> None:
    frame = "$ make demo\n\x1b[36m◆ n1\x1b[0m  a task\n├─ line 1  an answer  (running)\n"
    assert not picture_script.is_live(frame)
    live = frame.replace("answer  (", "answer  (exact)  (")
    assert picture_script.is_live(live)
    svg = picture_script.to_svg(live, "title")
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter(f"{{{SVG}}}text")]
    assert "◆\xa0n1" in texts
    assert not any("make" in text for text in texts)
    assert "font-face" not in svg


def test_the_agent_on_its_page_is_no_longer_than_said() -> None:
    (agent,) = fences(ROOT / "docs/agent-session.md", "python")
    (said,) = re.findall(r"has one in (\d+) lines", (ROOT / "README.md").read_text("utf-8"))
    assert len(agent.splitlines()) <= int(said)


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
