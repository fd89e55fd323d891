"""Progress on stderr: a tree while it grows, a job while it runs.

On a terminal the picture is redrawn in place and taken away at the end;
elsewhere one line is written for each thing that happened.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import IO

import click

from app.render import cut, number, row_text
from core.contracts.store import RolloutRecord
from core.kernel.tree import Tree
from core.services.jobs import RolloutReport
from core.services.sanitise import clean
from core.services.views import rows


class Screen:
    """Some lines that are drawn again and again at the same place."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr
        self.tty = self.stream.isatty()
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the last picture."""
        height = shutil.get_terminal_size((100, 24)).lines
        drawn = lines[-(height - 3) :]
        self.clear()
        self.say(*drawn)
        self._height = len(drawn)

    def say(self, *lines: str) -> None:
        """Lines that stay."""
        self.stream.write("".join(f"{line}\n" for line in lines))
        self.stream.flush()

    def clear(self) -> None:
        """Take the picture away, so that what follows stands alone."""
        if self._height:
            self.stream.write(f"\x1b[{self._height}A\x1b[J")
            self.stream.flush()
            self._height = 0


class Progress:
    """Shows a tree while it grows."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._screen = Screen(stream)
        self._seen: set[str] = set()

    def show(self, tree: Tree) -> None:
        """Draw the tree as it is now; elsewhere only what is settled and new."""
        if self._screen.tty:
            columns = shutil.get_terminal_size((100, 24)).columns
            self._screen.draw([row_text(item, columns - 1) for item in rows(tree)])
            return
        for item in rows(tree):
            key = f"{item.node}:{item.state}"
            if item.state not in ("open", "scored") and key not in self._seen:
                self._seen.add(key)
                self._screen.say(click.unstyle(row_text(item, 100)))

    def clear(self) -> None:
        self._screen.clear()


class JobProgress:
    """Shows how far a job is, how fast, and what each slot does."""

    def __init__(self, total: int, stream: IO[str] | None = None) -> None:
        self._screen = Screen(stream)
        self._total = total
        self._ended = 0
        self._began = time.monotonic()

    def ended(self, report: RolloutReport) -> None:
        """A line that stays for each rollout that has ended."""
        self._ended += 1
        verdict = report.result.verdict
        reward = f"  {number(verdict.reward)}" if verdict else ""
        why = f"  {clean(report.result.error)}" if report.result.error else ""
        self._screen.clear()
        self._screen.say(
            f"{self._count()}  {report.id}  {report.result.outcome.value}{reward}  "
            f"{clean(report.name)}{why}"
        )

    def show(self, live: Sequence[RolloutRecord]) -> None:
        """On a terminal: the count, and a line for each rollout that runs."""
        if self._screen.tty:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            lines = [f"{self._count()}  {self._rate()}"]
            lines += [
                f"  {item.id}  {item.state.value} {item.phase}  {item.steps} steps  "
                f"{clean(item.name)}"
                for item in live
            ]
            self._screen.draw([cut(line, width) for line in lines])

    def clear(self) -> None:
        self._screen.clear()

    def _count(self) -> str:
        return f"{self._ended}/{self._total}"

    def _rate(self) -> str:
        seconds = time.monotonic() - self._began
        if not self._ended:
            return f"{seconds:.0f} s"
        per_minute = self._ended / seconds * 60
        left = (self._total - self._ended) / per_minute * 60
        return f"{per_minute:.1f} a minute, about {left:.0f} s left"
