"""Split ``task.md``: front matter, and the prompts below it.

Without a reserved level-2 heading the whole body is the prompt. Reserved:
``## prompt``, ``## role:<name>``, ``## scene:<name>``, ``## user-persona``; a
backslash before one keeps it as plain text. Code fences are prompt text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.tasks.located import Faults, Unreadable

MAX_FRONT_MATTER = 256_000

_HEADING = re.compile(
    r"##[ \t]+(prompt|user-persona|(?:role|scene):[A-Za-z0-9_.-]+)[ \t]*", re.IGNORECASE
)
_ESCAPED = re.compile(r"^\\(?=##[ \t]+)", re.MULTILINE)
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")


@dataclass(frozen=True, slots=True)
class Prompts:
    """``instruction`` is what the agent is given; the others belong to roles and scenes."""

    instruction: str
    roles: Mapping[str, str] = field(default_factory=dict)
    scenes: Mapping[str, str] = field(default_factory=dict)
    persona: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """The two halves, each with the file line it starts on."""

    front_matter: str
    front_line: int
    body: str
    body_line: int


def split_document(text: str) -> Document:
    """Raises Unreadable when there is no front matter between ``---`` lines."""
    lines = text.split("\n")
    if lines[0].strip() != "---":
        raise Unreadable(1, "does not begin with front matter", "Make '---' the first line")
    for index in range(1, len(lines)):
        if lines[index].rstrip() == "---":
            front = "\n".join(lines[1:index])
            if len(front) > MAX_FRONT_MATTER:
                raise Unreadable(
                    1,
                    f"has front matter of {len(front):,} characters; at most "
                    f"{MAX_FRONT_MATTER:,} are read",
                    "Move data into files beside it",
                )
            return Document(front, 2, "\n".join(lines[index + 1 :]), index + 2)
    raise Unreadable(1, "has front matter that never ends", "Close it with a line '---'")


def read_prompts(document: Document, faults: Faults) -> Prompts:
    """The prompts of the body; a heading given twice is a fault."""
    preamble, sections = _sections(document, faults)
    plain = {name: _ESCAPED.sub("", text).strip() for name, text in sections.items()}
    return Prompts(
        instruction=plain.get("prompt", preamble.strip()),
        roles=_named(plain, "role:"),
        scenes=_named(plain, "scene:"),
        persona=plain.get("user-persona"),
    )


def _named(sections: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): text
        for name, text in sections.items()
        if name.startswith(prefix)
    }


def _sections(document: Document, faults: Faults) -> tuple[str, dict[str, str]]:
    """What stands before the first reserved heading, and the text under each."""
    chunks: list[tuple[str, list[str]]] = [("", [])]
    fence, seen = "", set[str]()
    for number, line in enumerate(document.body.split("\n"), start=document.body_line):
        fence = _fence_after(line, fence)
        heading = None if fence else _HEADING.fullmatch(line)
        if heading is None:
            chunks[-1][1].append(line)
            continue
        name = _canonical(heading.group(1))
        if name in seen:
            faults.add(f"## {name}", number, "stands twice", "Keep one section of that name")
        seen.add(name)
        chunks.append((name, []))
    texts: dict[str, str] = {}
    for name, lines in chunks[1:]:
        texts.setdefault(name, "\n".join(lines))
    preamble = "\n".join(chunks[0][1])
    return _ESCAPED.sub("", preamble), texts


def _fence_after(line: str, fence: str) -> str:
    """The code fence that is open after this line, "" for none."""
    found = _FENCE.match(line)
    if not found:
        return fence
    mark = found.group(1)
    if not fence:
        return mark
    closes = mark[0] == fence[0] and len(mark) >= len(fence) and line.strip() == mark
    return "" if closes else fence


def _canonical(heading: str) -> str:
    prefix, colon, name = heading.partition(":")
    return f"{prefix.lower()}{colon}{name}"
