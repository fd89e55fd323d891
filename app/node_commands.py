"""What the commands on nodes do: open the tools, call one service, print."""

from __future__ import annotations

import sys
from typing import NoReturn, cast

import click

from app.node_render import changes_text, diff_text, gc_text, scores_text
from app.outcome import NO_REWARD, plain, print_json
from app.render import columns, count, number, tree_text
from app.settings import read_settings
from app.terminal import Terminal
from app.wiring import open_tools
from core.contracts.errors import BenchFlowError
from core.contracts.sandbox import Compartment
from core.services import gc, looking, mainline, rescoring, shelling
from core.services.assemble import load_tree
from core.services.collecting import Budget, parse_size
from core.services.engine import Engine, engine
from core.services.sanitise import clean
from core.services.scoring import ScoreRequest, scores_json


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
        if watch:
            await _rescore_on_save(host, ref, verifier, settings.actor, as_json=as_json)
        return await _rescore_once(host, ref, verifier, settings.actor, as_json=as_json)


async def _rescore_once(host: Engine, ref: str, verifier: str, actor: str, *, as_json: bool) -> int:
    changes = await rescoring.rescore(host, ref, verifier=verifier, actor=actor, via="cli")
    if as_json:
        print_json(changes.to_json())
    else:
        click.echo(changes_text(changes))
    return NO_REWARD if changes.count("failed") or not changes.scores else 0


async def _rescore_on_save(
    host: Engine, ref: str, verifier: str, actor: str, *, as_json: bool
) -> NoReturn:
    """Until Ctrl-C. A verifier that cannot be used while it is being edited ends nothing."""
    folders = await rescoring.verifier_folders(host, ref, verifier)
    names = ", ".join(str(folder) for folder in folders)
    click.echo(f"watching {names}; Ctrl-C ends it", err=True)
    async for _ in rescoring.saved_verifiers(folders):
        try:
            await _rescore_once(host, ref, verifier, actor, as_json=as_json)
            sys.stdout.flush()
        except BenchFlowError as error:
            click.echo(
                f"{click.style('error:', fg='red')} {clean(str(error), multiline=True)}", err=True
            )
    raise AssertionError("files can always be saved again")


async def diff_nodes(a: str, b: str, *, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools, engine(tools) as host:
        found, problems = await looking.diff(host, a, b)
    for problem in problems:
        click.echo(f"a scratch fork could not be removed: {problem}", err=True)
    if as_json:
        print_json(plain(found.to_json()))
    else:
        click.echo(diff_text(found))
    return 0


async def collect_garbage(budget: str, inodes: int, *, dry: bool, as_json: bool) -> int:
    settings = read_settings()
    allowed = Budget(parse_size(budget), inodes)
    async with open_tools(settings) as tools, engine(tools) as host:
        report = await gc.collect(host, allowed, actor=settings.actor, dry=dry)
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(gc_text(report, dry=dry))
    return 0


async def rewind_rollout(ref: str, node: str, options: dict[str, str], *, as_json: bool) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools, engine(tools) as host:
        record = await tools.store.rollouts.get(ref)
        result = await mainline.rewind(
            host,
            record.id,
            node,
            answer=options["answer"],
            nudge=options["nudge"],
            actor=settings.actor,
            via="cli",
            idem_key=options["key"] or None,
        )
        if as_json:
            print_json(result)
        elif record.state.final:
            after = await tools.store.rollouts.get(record.id)
            tree = await load_tree(tools, record.id)
            click.echo(tree_text(tree, after, width=columns()))
        else:
            numbers = cast("list[int]", result["lines"])
            click.echo(f"line {numbers[0]} is the main line from now on")
    return 0


async def restore_line(ref: str, line: int, *, as_json: bool) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools, engine(tools) as host:
        result = await mainline.restore(host, ref, line, actor=settings.actor)
    if as_json:
        print_json(result)
    else:
        reward = cast("float | None", result["reward"])
        said = "no reward" if reward is None else f"reward {number(reward)}"
        click.echo(f"line {line} is the main line now: {result['outcome']}, {said}")
    return 0


async def pause_rollout(ref: str, key: str | None, *, on: bool, as_json: bool) -> int:
    settings = read_settings()
    act = mainline.pause if on else mainline.unpause
    async with open_tools(settings) as tools, engine(tools) as host:
        result = await act(host, ref, actor=settings.actor, via="cli", idem_key=key)
    if as_json:
        print_json(result)
    elif on:
        click.echo(
            f"paused {count(cast('int', result['lines']), 'line')}; go on with `bench unpause`"
        )
    else:
        click.echo(f"goes on after {cast('float', result['seconds']):.1f} s")
    return 0


async def shell_in(rollout: str, node: str, user: str) -> int:
    """A shell on this terminal; its exit code."""
    ref = f"{rollout}:{node}" if node else rollout

    def where(name: str) -> None:
        click.echo(f"{name}: a throw-away fork, gone after exit", err=True)

    async with open_tools(read_settings()) as tools, engine(tools) as host:
        with Terminal() as terminal:
            shell = shelling.shell(
                host, ref, tty_fd=terminal.inner, user=cast(Compartment, user), opened=where
            )
            async with shell as program:
                code = await terminal.carry(program)
    return code if code >= 0 else 128 - code
