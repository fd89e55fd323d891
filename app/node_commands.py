"""What the commands on nodes do: open the tools, call one service, print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from app.outcome import NO_REWARD, print_json
from app.render import number, table
from app.settings import read_settings
from app.wiring import open_tools
from core.contracts.errors import BenchFlowError
from core.services import rescoring
from core.services.engine import Engine, engine
from core.services.sanitise import clean
from core.services.scoring import NodeScore, ScoreRequest, scores_json


async def score_nodes(
    ref: str, nodes: tuple[str, ...], options: dict[str, object], *, as_json: bool
) -> int:
    settings = read_settings()
    request = ScoreRequest(
        nodes, captured=bool(options["captured"]), verifier=str(options["verifier"] or "")
    )
    key = options["key"]
    async with open_tools(settings) as tools, engine(tools) as host:
        scores = await rescoring.score(
            host,
            ref,
            request,
            actor=settings.actor,
            via="cli",
            idem_key=str(key) if key else None,
        )
    if as_json:
        print_json(scores_json(scores))
    else:
        click.echo(scores_text(scores))
    return NO_REWARD if any(item.after is None for item in scores) else 0


async def rescore_all(ref: str, verifier: str, *, watch: bool, as_json: bool) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools, engine(tools) as host:
        folders = await rescoring.verifier_folders(host, ref, verifier) if watch else []
        code = await _rescore_once(host, ref, verifier, settings.actor, as_json=as_json)
        if watch:
            await _rescore_on_save(host, ref, verifier, settings.actor, folders, as_json=as_json)
    return code


async def _rescore_once(host: Engine, ref: str, verifier: str, actor: str, *, as_json: bool) -> int:
    changes = await rescoring.rescore(host, ref, verifier=verifier, actor=actor, via="cli")
    if as_json:
        print_json(changes.to_json())
    else:
        click.echo(changes_text(changes))
    return NO_REWARD if changes.count("failed") or not changes.scores else 0


async def _rescore_on_save(
    host: Engine,
    ref: str,
    verifier: str,
    actor: str,
    folders: Sequence[Path],
    *,
    as_json: bool,
) -> None:
    """Until Ctrl-C. A verifier that cannot be used while it is being edited ends nothing."""
    names = ", ".join(str(folder) for folder in folders)
    click.echo(f"watching {names}; Ctrl-C ends it", err=True)
    async for _ in rescoring.saved_verifiers(folders):
        try:
            await _rescore_once(host, ref, verifier, actor, as_json=as_json)
        except BenchFlowError as error:
            click.echo(f"{click.style('error:', fg='red')} {error}", err=True)


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


def changes_text(changes: rescoring.Changes) -> str:
    """What re-scoring changed: a line per leaf that moved, then counts and means."""
    shown = [item for item in changes.scores if rescoring.change_of(item) != "same"]
    lines = [("ROLLOUT", "LEAF", "LINE", "BEFORE", "NOW", "CHANGE")]
    lines += [
        (
            item.rollout,
            item.node,
            f"{item.line} (main)" if item.main else str(item.line),
            _reward(item.before),
            _reward(item.after),
            rescoring.change_of(item),
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
    return "\n".join([*text, f"{len(changes.scores)} leaves: {counts}{tail}"])


def _errors(scores: Sequence[NodeScore]) -> list[str]:
    return [f"{item.rollout} {item.node}: {clean(item.error)}" for item in scores if item.error]


def _reward(value: float | None) -> str:
    return "-" if value is None else number(value)
