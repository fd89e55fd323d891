"""What the pages tell people to type works: commands, options, snippets, settings, exit codes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path

import click
import pytest

from app import outcome
from app.cli import bench
from tests.architecture.pages import (
    Said,
    bench_words,
    commands,
    every_command,
    fences,
    find_command,
    options,
    pages,
)
from tests.architecture.repository import ROOT, product_files, run

SAID = [said for page in pages() for said in commands(page)]
SNIPPETS = [
    pytest.param(body, id=f"{page.name}-{number}")
    for page in (ROOT / "README.md", ROOT / "docs/python.md")
    for number, body in enumerate(fences(page, "python"))
]
SETTING = re.compile(r"\bBENCH_[A-Z_]+\b")


def wrong_options(words: tuple[str, ...]) -> list[str]:
    command, rest = find_command(words)
    named = [word.split("=")[0] for word in rest if word.startswith("-") and word != "--"]
    return [word for word in named if word not in options(command)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench show last --follow  # watch", ("show", "last", "--follow")),
        ("BENCH_HOME=/tmp/x .venv/bin/bench ls", ("ls",)),
        ("bench ls --json | jq .", ("ls", "--json")),
        ("make demo", ()),
        ("benchmark", ()),
    ],
)
def test_a_command_is_read_from_a_page(line: str, words: tuple[str, ...]) -> None:
    assert bench_words(line) == words


def test_a_verb_or_option_that_is_not_there_is_seen() -> None:
    with pytest.raises(AssertionError, match="fly"):
        find_command(("fly",))
    assert wrong_options(("show", "last", "--folow", "--json")) == ["--folow"]
    assert wrong_options(("tasks", "check", "PATH", "--json")) == []


def test_pages_name_only_commands_and_options_that_exist() -> None:
    assert [str(said) for said in SAID if wrong_options(said.words)] == []
    assert len(SAID) > 30


@pytest.mark.parametrize("said", [said for said in SAID if said.whole], ids=str)
def test_a_command_in_a_code_block_could_be_typed_as_it_stands(said: Said, tmp_path: Path) -> None:
    """Parsed by the real command: counts of arguments, choices and numbers are right."""
    (tmp_path / "jobs").mkdir()
    command, rest = find_command(said.words)
    with contextlib.chdir(tmp_path):
        command.make_context("bench", list(rest), parent=click.Context(bench))


def test_every_command_and_option_is_on_a_page() -> None:
    """Options that all commands share are explained once, on the page of the command line."""
    text = "\n".join(page.read_text("utf-8") for page in pages())
    missing = [
        f"bench {name} {option}".strip()
        for name, command in every_command().items()
        for option in ("", *sorted(options(command) - {"--help", "-h"}))
        if (option or f"bench {name}") not in text
    ]
    assert missing == []


def test_the_page_of_the_command_line_has_every_exit_code() -> None:
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    told = {int(code) for code in re.findall(r"^\| `(\d+)` \|", page, re.MULTILINE)}
    source = Path(outcome.__file__).read_text("utf-8")
    mapped = {int(code) for code in re.findall(r"^    \(\w+, (\d+)\),$", source, re.MULTILINE)}
    assert mapped
    assert told == mapped | {0, 1, outcome.NO_REWARD, outcome.INTERRUPTED}


def test_settings_on_pages_are_those_the_program_reads() -> None:
    read = set(SETTING.findall((ROOT / "app/settings.py").read_text("utf-8")))
    everywhere = set().union(*(SETTING.findall(p.read_text("utf-8")) for p in product_files()))
    told = {page: set(SETTING.findall(page.read_text("utf-8"))) for page in pages()}
    assert read <= told[ROOT / "docs/cli.md"]
    assert {
        str(page): names - everywhere for page, names in told.items() if names - everywhere
    } == {}


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize("body", SNIPPETS)
def test_a_python_snippet_runs_as_it_stands(body: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    env = {"BENCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-W", "error", "-c", body], cwd=tmp_path, env=env)
    assert done.stdout


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_agent_on_its_page_does_the_task_it_is_said_to_do(tmp_path: Path) -> None:
    (agent,) = fences(ROOT / "docs/agent-session.md", "python")
    (tmp_path / "my_agent.py").write_text(agent, encoding="utf-8")
    task = str(ROOT / "examples/hello")
    words = [
        "-m",
        "benchflow_workbench",
        "run",
        task,
        "--agent",
        f"{sys.executable} my_agent.py",
        "--json",
    ]
    env = {"BENCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = run([sys.executable, *words], cwd=tmp_path, env=env)
    assert json.loads(done.stdout)["mean_reward"] == 1.0
