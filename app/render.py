"""Text for a terminal: the tree, the lists, the progress of a live run.

The same function draws a rollout for `run`, `demo` and `show`, so what a run
prints at its end equals what `bench show` prints of it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import cast

import click
from rich.cells import cell_len

from core.contracts.store import RequestRecord, RolloutRecord
from core.contracts.values import JsonObject, JsonValue
from core.kernel.tree import Tree
from core.services.sanitise import clean
from core.services.views import RolloutHead, TreeRow, head, rows

_MARKS = {
    "root": "◆",
    "prompt": "›",
    "step": "●",
    "ask": "?",
}
_COLOURS = {
    "open": "cyan",
    "waiting": "yellow",
    "answered": "green",
    "scored": "green",
    "failed": "red",
    "cancelled": "magenta",
    "interrupted": "magenta",
}


def tree_text(tree: Tree, record: RolloutRecord, *, width: int = 100) -> str:
    """A rollout as `bench show` prints it: head, tree, result, folder."""
    summary = head(tree)
    lines = [click.style(f"rollout {record.id}", bold=True) + f"  {_head_line(summary)}"]
    lines += [row_text(item, width) for item in rows(tree)]
    lines += _result_lines(summary, record)
    return "\n".join(lines)


def row_text(item: TreeRow, width: int) -> str:
    """One node on one line, cut to ``width`` cells."""
    if item.kind == "line":
        lane = "│ " * (item.depth - 1) + "├─"
        left = f"{lane} {item.node}  {item.label}  ({item.detail})"
    else:
        mark = _MARKS.get(item.kind, "●")
        left = f"{'│ ' * item.depth}{mark} {item.node:<5} {item.label}"
        left = f"{left}  {item.detail}" if item.detail else left
    score = f"  {number(item.reward)}" if item.reward is not None else ""
    shown = ("open", "waiting", "running", "failed", "cancelled", "interrupted")
    tail = f"  ({item.state})" if item.state in shown else ""
    tail += "  main line" if item.main else ""
    tail += "  state dropped" if item.stored == "dropped" else ""
    value = f"  {item.value}" if item.value else ""
    room = max(20, width - len(score) - len(tail) - len(value))
    left = cut(left, room)
    styled = click.style(left, fg=_COLOURS.get(item.state))
    return styled + click.style(value, fg="cyan", bold=True) + click.style(score, bold=True) + tail


def columns() -> int:
    """How wide a tree is drawn: the terminal, and 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def cut(text: str, room: int) -> str:
    """Text in at most ``room`` cells of a terminal, an ellipsis where some is left out."""
    used, kept = 0, 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used <= room - 1:
            kept = index + 1
        if used > room:
            return text[:kept] + "…"
    return text


def number(value: float) -> str:
    """A reward or value with as many digits as it needs, at least two."""
    return f"{value:.2f}" if abs(value * 100 - round(value * 100)) < 1e-9 else f"{value:.4g}"


def _head_line(summary: RolloutHead) -> str:
    parts = [summary.task, summary.agent, f"{summary.sandbox} sandbox", f"user {summary.user}"]
    if summary.attempt > 1:
        parts.append(f"attempt {summary.attempt}")
    return clean(" · ".join(part for part in parts if part))


def _result_lines(summary: RolloutHead, record: RolloutRecord) -> list[str]:
    lines = []
    if summary.reward is not None:
        items = "  ".join(f"{name} {number(value)}" for name, value in summary.items.items())
        notes = ["assisted"] if summary.assisted else []
        notes += ["selected"] if summary.selected else []
        notes += [] if summary.hardened else ["not hardened"]
        extra = f"   {items}" if items else ""
        extra += f"   ({', '.join(notes)})" if notes else ""
        colour = "green" if summary.reward > 0 else "yellow"
        lines.append(click.style(f"reward {number(summary.reward)}", fg=colour, bold=True) + extra)
    else:
        state = summary.state if summary.state in ("running", "waiting") else record.state.value
        if summary.phase == "paused" and not record.state.final:
            state = "paused"
        lines.append(click.style(f"{state}: no reward", fg="yellow", bold=True))
    if summary.error:
        lines.append(click.style(clean(summary.error, multiline=True), fg="red"))
    if summary.noise:
        lines.append(f"{summary.noise} lines of the agent's output were no protocol messages")
    counts = f"{count(summary.steps, 'step')}, {count(summary.lines, 'line')}"
    if summary.seconds is not None:
        counts += f", {summary.seconds:.1f} s"
    lines.append(counts)
    if summary.saved is not None:
        saved = summary.saved
        lines.append(
            f"{count(saved.lines, 'branched line')} shared "
            f"{'its' if saved.lines == 1 else 'their'} prefix: "
            f"{count(saved.steps, 'step')}, {count(saved.tool_calls, 'tool call')} "
            f"and {saved.seconds:.1f} s not run again"
        )
    if record.sealed:
        lines.append(f"folder {record.folder}")
    return lines


def branch_text(plan: JsonObject) -> str:
    """What a branch will cost, before it starts."""
    children = cast("list[str]", plan["children"])
    seconds, calls = plan.get("seconds"), plan.get("tool_calls")
    number_of = count(len(children), "child", "children")
    parts = [f"{number_of} at {plan['node']}: {', '.join(children)}"]
    if isinstance(seconds, int | float):
        parts.append(f"about {seconds:.1f} s and {calls} tool calls each")
    parts.append(f"{amount(plan['bytes'])} captured, {plan['consistency']}")
    parts.append(f"session {plan['fidelity']}")
    if plan["saved_tool_calls"]:
        parts.append(f"{plan['saved_tool_calls']} tool calls not repeated")
    missing = cast("list[str]", plan["not_captured"])
    if missing:
        parts.append(f"not captured: {'; '.join(missing)}")
    return clean("; ".join(parts))


def amount(count: JsonValue) -> str:
    """A number of bytes as people read it."""
    size = float(count) if isinstance(count, int | float) else 0.0
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def rollouts_table(records: Sequence[RolloutRecord]) -> str:
    """Rollouts, one a line."""
    if not records:
        return "No rollouts yet. Start one with `bench run PATH`."
    head_row = ("ROLLOUT", "TASK", "AGENT", "STATE", "STEPS", "REWARD", "FOLDER")
    body = [
        (
            record.id,
            clean(record.task),
            clean(record.agent)[:24],
            record.state.value + (f" ({record.phase})" if not record.state.final else ""),
            str(record.steps),
            "-" if record.reward is None else number(record.reward),
            record.name,
        )
        for record in records
    ]
    return table([head_row, *body])


def answered_text(done: RequestRecord) -> str:
    """What was answered with what: one who named only a rollout sees which question it was."""
    answer = done.answer or {}
    content = cast(JsonObject, answer.get("content") or {})
    said = ", ".join(str(value) for value in content.values()) or str(answer.get("action", ""))
    where = f"{done.kind} {done.id} at {done.node} of rollout {done.rollout}"
    return clean(f"answered {where}: {cut(said, 60)}")


def requests_table(records: Sequence[RequestRecord]) -> str:
    """Waiting requests, one a line."""
    if not records:
        return "Nothing waits for an answer."
    body = [
        (
            record.id,
            record.rollout,
            record.kind,
            clean(str(record.question.get("question", "")))[:60],
        )
        for record in records
    ]
    return table([("REQUEST", "ROLLOUT", "KIND", "QUESTION"), *body])


def table(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first line is the head."""
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
