"""Text of what the commands on nodes print. Everything from inside passes the sanitiser."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from app.render import amount, count, number, table
from core.contracts.values import JsonValue
from core.services.diffing import FileChange, FileEntry, RowChange, StateDiff, TableChange
from core.services.gc import GcReport
from core.services.rescoring import Changes, change_of
from core.services.sanitise import clean
from core.services.scoring import NodeScore

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_CELL = 120
_LINE = 240
"""Longer lines are cut here; `--json` has them whole."""


def scores_text(scores: Sequence[NodeScore]) -> str:
    """Scores of single nodes, one a line."""
    if not scores:
        return "No node of this rollout has a stored state."
    lines = [("NODE", "LINE", "BEFORE", "NOW", "VERSION", "SECONDS")]
    lines += [
        (
            item.node + (" (main leaf)" if item.main else ""),
            str(item.line),
            _reward(item.before),
            _reward(item.after) if item.error is None else "failed",
            str(item.version),
            f"{item.seconds:.1f}",
        )
        for item in scores
    ]
    return "\n".join([table(lines), *_errors(scores)])


def changes_text(changes: Changes) -> str:
    """What re-scoring changed: a line per leaf that moved, then counts and means."""
    shown = [item for item in changes.scores if change_of(item) != "same"]
    lines = [("ROLLOUT", "LEAF", "LINE", "BEFORE", "NOW", "CHANGE")]
    lines += [
        (
            item.rollout,
            item.node,
            f"{item.line} (main)" if item.main else str(item.line),
            _reward(item.before),
            _reward(item.after),
            change_of(item),
        )
        for item in shown
    ]
    text = [table(lines)] if shown else []
    text += [*_errors(changes.scores), *(f"left out: {clean(item)}" for item in changes.lost)]
    counts = ", ".join(
        f"{changes.count(kind)} {kind}" for kind in ("up", "down", "same", "new", "failed")
    )
    means = changes.means
    tail = f"; mean {means[0]:.3f} -> {means[1]:.3f}" if means else ""
    leaves = count(len(changes.scores), "leaf", "leaves")
    return "\n".join([*text, f"{leaves}: {counts}{tail}"])


def _errors(scores: Sequence[NodeScore]) -> list[str]:
    return [f"{item.rollout} {item.node}: {clean(item.error)}" for item in scores if item.error]


def _reward(value: float | None) -> str:
    return "-" if value is None else number(value)


def diff_text(diff: StateDiff) -> str:
    """A difference of two worlds: tables first, then files, then services."""
    lines = [f"{diff.a} -> {diff.b}"]
    for table_change in diff.tables:
        lines += _table_lines(table_change)
    for file_change in diff.files:
        lines += _file_lines(file_change)
    for service in diff.services:
        before, after = _json(service.before), _json(service.after)
        lines.append(f"service {clean(service.service)}: {before} -> {after}")
    lines += [f"not compared: {clean(text)}" for text in diff.not_read]
    if diff.same:
        lines.append("no difference" + (" in what was compared" if diff.not_read else ""))
    return "\n".join(lines)


def _table_lines(change: TableChange) -> list[str]:
    counts = f"{change.rows_before} -> {change.rows_after} rows"
    if change.partial:
        counts += ", not all of them read"
    lines = [_signed(change.change, f"table {change.table} of {change.state} ({counts})")]
    lines += [f"    + column {clean(name)}" for name in change.columns_added]
    lines += [f"    - column {clean(name)}" for name in change.columns_removed]
    return lines + [f"    {_row_line(row)}" for row in change.rows]


def _row_line(row: RowChange) -> str:
    key = ", ".join(f"{name}={_json(value)}" for name, value in row.key.items())
    times = f" x{row.times}" if row.times > 1 else ""
    if row.change == "changed":
        names = list(row.before | row.after)
        cells = [f"{name}: {_cell(row.before, name)} -> {_cell(row.after, name)}" for name in names]
        return _signed("changed", f"{key}  {'; '.join(cells)}")
    whole = row.before or row.after
    rest = ", ".join(
        f"{name}={_json(value)}" for name, value in whole.items() if name not in row.key
    )
    return _signed(row.change, f"{key}  {rest}".rstrip() + times)


def _file_lines(change: FileChange) -> list[str]:
    sizes = " -> ".join(_entry(entry) for entry in (change.before, change.after) if entry)
    note = f", {change.note}" if change.note else ""
    lines = [_signed(change.change, f"{change.path} ({sizes}{note})")]
    for line in change.text.splitlines()[2:]:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        line = line if len(line) <= _LINE else line[: _LINE - 1] + "…"
        lines.append("    " + click.style(clean(line), fg=colour))
    return lines


def _entry(entry: FileEntry) -> str:
    if entry.kind == "link":
        return f"link to {entry.mark}"
    mode = f" {entry.mode:o}" if entry.mode else ""
    return f"{entry.size} bytes{mode}" if entry.kind == "file" else f"special file{mode}"


def _signed(change: str, text: str) -> str:
    sign, colour = _SIGNS[change]
    return click.style(f"{sign} {clean(text)}", fg=colour)


def _cell(row: dict[str, JsonValue], name: str) -> str:
    return _json(row[name]) if name in row else "(no such column)"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def gc_text(report: GcReport, *, dry: bool) -> str:
    """What was, or would be, dropped, and what must stay."""
    lines = []
    for item in report.dropped:
        owner = item.owner
        whose = f"{owner.rollout} node {owner.node}" if owner else "named by no log"
        lines.append(f"{'would drop' if dry else 'dropped'} {item.image.id}  {whose}")
    lines += [f"left alone: {clean(text)}" for text in report.skipped]
    before, after = report.before, report.after
    lines.append(
        f"{amount(before.bytes)} in {before.inodes} files -> "
        f"{amount(after.bytes)} in {after.inodes} files; {len(report.dropped)} states "
        + ("would be dropped" if dry else "dropped")
    )
    stay = ", ".join(f"{count} {why}" for why, count in sorted(report.pinned.items()))
    if stay:
        lines.append(f"kept whatever the budget: {stay}")
    if not report.fits:
        lines.append("the rest must stay and is over the budget; give a larger --budget")
    return "\n".join(lines)
