"""What the pages say in a form that can be checked: commands, snippets, paths, settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from app.cli import bench
from tests.architecture.repository import ROOT, tracked_files

_FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")


@dataclass(frozen=True, slots=True)
class Said:
    """One ``bench`` command on a page. ``whole`` ones could be typed as they stand."""

    page: Path
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: bench {' '.join(self.words)}"


def pages() -> list[Path]:
    """Every page of the product that git knows."""
    return [ROOT / name for name in tracked_files() if name.endswith(".md") and "data/" not in name]


def fences(page: Path, kind: str) -> list[str]:
    """The bodies of the page's code blocks of that kind."""
    text = page.read_text("utf-8")
    return [found["body"] for found in _FENCE.finditer(text) if found["kind"] == kind]


def commands(page: Path) -> Iterator[Said]:
    """Whole commands from code blocks, mentions from the prose around them."""
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        if found["kind"] in ("sh", "console", ""):
            for line in found["body"].splitlines():
                if words := bench_words(line.removeprefix("$ ")):
                    yield Said(page, words, whole=True)
    for span in _SPAN.findall(_FENCE.sub("", text)):
        if words := bench_words(span):
            yield Said(page, words, whole=False)


def bench_words(line: str) -> tuple[str, ...]:
    """The words behind ``bench``, comments and what a shell adds cut off."""
    words = shlex.split(line.strip(), comments=True) if line.strip().startswith(_STARTS) else []
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if not words or words[0] not in ("bench", ".venv/bin/bench"):
        return ()
    end = next((at for at, word in enumerate(words) if word in ("|", "&", "&&", ">")), len(words))
    return tuple(words[1:end])


_STARTS = ("bench ", ".venv/bin/bench ", "BENCH_")


def find_command(words: tuple[str, ...]) -> tuple[click.Command, tuple[str, ...]]:
    """The command that these words name, and what is left of them.

    Raises AssertionError for a verb that is not there.
    """
    command: click.Command = bench
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if is_placeholder(words[0]):
            break
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"bench has no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def every_command() -> dict[str, click.Command]:
    """Each command that can be run, by the words that name it."""
    found: dict[str, click.Command] = {}
    waiting: list[tuple[str, click.Command]] = [("", bench)]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, click.Group):
            waiting += [(f"{name} {key}".strip(), item) for key, item in command.commands.items()]
        else:
            found[name] = command
    return found


def options(command: click.Command) -> set[str]:
    """Every spelling of its options."""
    known = {"--help", "-h"} | ({"--version"} if command is bench else set())
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            known.update(parameter.opts, parameter.secondary_opts)
    return known


def is_placeholder(word: str) -> bool:
    """``ROLLOUT`` stands for something; ``last`` is meant as it is."""
    return _PLACEHOLDER.fullmatch(word) is not None
