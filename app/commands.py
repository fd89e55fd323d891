"""What each command does: open the tools, call one service, print."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from app.outcome import NO_REWARD, plain, print_json
from app.progress import JobProgress, Progress
from app.render import (
    answered_text,
    branch_text,
    columns,
    requests_table,
    rollouts_table,
    table,
    tree_text,
)
from app.settings import read_settings
from app.wiring import open_tools
from core.contracts.store import RolloutRecord, RolloutState
from core.contracts.values import JsonObject, JsonValue
from core.services import acts, reaping
from core.services.assemble import load_tree
from core.services.branching import BranchRequest
from core.services.config import RolloutConfig
from core.services.editing import read_edit
from core.services.engine import Engine, engine
from core.services.jobs import JobPlan, JobReport, plan, rerun, run_job
from core.services.sanitise import clean
from core.services.toolbox import Toolbox
from core.services.views import head, rows

if TYPE_CHECKING:
    from core.services.checking import PackageCheck

_REDRAW_SECONDS = 0.25


async def run_tasks(path: str, options: dict[str, object], *, as_json: bool) -> int:
    settings = read_settings()
    given = {key: value for key, value in options.items() if value is not None}
    given.setdefault("jobs_dir", settings.jobs_dir)
    config = RolloutConfig(path=path, **given)  # type: ignore[arg-type]
    report = await run_config(config, quiet=as_json)
    if as_json:
        print_json(report_json(report))
    return 0 if len(report.scored) == len(report.rollouts) else NO_REWARD


async def run_config(config: RolloutConfig, *, quiet: bool) -> JobReport:
    """Run a job with live progress on stderr and each rollout's tree on stdout."""
    async with open_tools(read_settings()) as tools, engine(tools) as host:
        job = plan(tools, config)
        if quiet:
            return await run_job(host, job)
        if len(job.rollouts) > 1:
            report = await _run_many(host, job)
            await _say_job(tools, report)
            return report
        report = await _run_followed(host, job)
        click.echo(await _rollout_text(tools, job.rollouts[0].id))
        await _say_not_kept(tools, report)
        return report


async def _run_many(host: Engine, job: JobPlan) -> JobReport:
    """Run a job and say on stderr how far it is and what each slot does."""
    progress = JobProgress(len(job.rollouts))

    async def watch() -> None:
        store, revision = host.tools.store, 0
        while True:
            live = (RolloutState.RUNNING, RolloutState.WAITING)
            progress.show(await store.rollouts.select(job=job.id, states=live))
            revision = await store.changed(revision, timeout=2.0)
            # Not a poll: rows change many times a second, and a person reads one picture.
            await asyncio.sleep(_REDRAW_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        return await run_job(host, job, ended=progress.ended)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        progress.clear()


async def _run_followed(host: Engine, job: JobPlan) -> JobReport:
    """Run a job of one rollout and show its tree while it grows."""
    async with asyncio.TaskGroup() as group:
        return await run_job(
            host,
            job,
            started=lambda item: _background(group, _follow(host.tools, item.id)),
        )


def _background(group: asyncio.TaskGroup, body: Coroutine[object, object, None]) -> None:
    group.create_task(body)


async def _follow(tools: Toolbox, rollout: str) -> None:
    progress = Progress()
    async for tree in reaping.growing_tree(tools, rollout):
        progress.show(tree)
    progress.clear()


async def _say_not_kept(tools: Toolbox, report: JobReport) -> None:
    """What went wrong beside a rollout: its own record, and so its tree, does not say it."""
    for item in report.rollouts:
        record = await tools.store.rollouts.get(item.id)
        if item.result.error and not record.error:
            click.echo(f"{click.style('error:', fg='red')} {clean(item.result.error)}", err=True)
            click.echo(f"rollout {item.id} is kept in the store; `bench reap` writes it", err=True)


async def _say_job(tools: Toolbox, report: JobReport) -> None:
    records = [await tools.store.rollouts.get(item.id) for item in report.rollouts]
    click.echo(rollouts_table(records))
    mean = report.mean_reward
    done = f"{len(report.scored)} of {len(report.rollouts)} scored"
    click.echo(f"{done}, mean reward {'-' if mean is None else f'{mean:.3f}'}")
    click.echo(f"folder {report.folder}")


async def _rollout_text(tools: Toolbox, rollout: str) -> str:
    record = await tools.store.rollouts.get(rollout)
    return tree_text(await load_tree(tools, record.id), record, width=columns())


async def show_rollout(ref: str, *, follow: bool, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools:
        record = await tools.store.rollouts.get(ref)
        if follow and not record.state.final:
            await _follow(tools, record.id)
            record = await reaping.final_record(tools, record.id)
        tree = await load_tree(tools, record.id)
        if as_json:
            print_json(rollout_json(record, tree_head=asdict(head(tree)), tree_rows=rows(tree)))
        else:
            click.echo(tree_text(tree, record, width=columns()))
    return 0


async def list_rollouts(job: str | None, limit: int, *, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools:
        records = await tools.store.rollouts.select(job=job, limit=limit)
    if as_json:
        print_json([rollout_json(record) for record in records])
    else:
        click.echo(rollouts_table(records))
    return 0


async def answer_request(
    ref: str | None, value: str | None, key: str | None, *, as_json: bool
) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools:
        if ref is None:
            waiting = await tools.store.requests.select()
            if as_json:
                print_json([plain(asdict(item)) for item in waiting])
            else:
                click.echo(requests_table(waiting))
            return 0
        if value is None:
            request = await acts.find_request(tools, ref)
            click.echo(acts.question_text(request))
            return 0
        done = await acts.answer(tools, ref, value, actor=settings.actor, via="cli", idem_key=key)
        if as_json:
            print_json(plain(asdict(done)))
        else:
            click.echo(answered_text(done))
    return 0


async def nudge_rollout(ref: str, text: str, key: str | None, *, as_json: bool) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools, engine(tools) as host:
        result = await acts.nudge(host, ref, text, actor=settings.actor, via="cli", idem_key=key)
    if as_json:
        print_json(result)
    else:
        click.echo("the nudge is the agent's next prompt")
    return 0


def _edit(path: object) -> JsonObject | None:
    if not path:
        return None
    file = Path(str(path))
    return read_edit(file.read_text("utf-8", "replace"), file.name).to_json()


async def branch_rollout(ref: str, node: str, ways: dict[str, object], *, as_json: bool) -> int:
    settings = read_settings()
    request = BranchRequest.from_json(
        plain(
            {
                "node": node,
                "all_options": ways["options"] == "all",
                "answers": ways["answers"],
                "nudge": ways["nudge"],
                "resample": ways["resample"],
                "edit": _edit(ways["edit"]),
                "confirmed": ways["yes"],
            }
        )
    )
    dry, key = bool(ways["dry_run"]), ways["key"]
    async with open_tools(settings) as tools, engine(tools) as host:
        record = await tools.store.rollouts.get(ref)
        if not dry and not as_json:
            cost = await acts.branch(
                host, record.id, request, actor=settings.actor, via="cli", dry=True
            )
            click.echo(branch_text(cost), err=True)
        result = await acts.branch(
            host,
            record.id,
            request,
            actor=settings.actor,
            via="cli",
            dry=dry,
            idem_key=str(key) if key else None,
        )
        if as_json:
            print_json(result)
        elif dry:
            click.echo(branch_text(result))
        elif record.state.final:
            click.echo(await _rollout_text(tools, record.id))
        else:
            lines = ", ".join(str(item) for item in cast("list[int]", result["lines"]))
            click.echo(f"started lines {lines}; watch them with `bench show {record.id} --follow`")
    return 0


async def cancel_rollout(ref: str, turn: bool, key: str | None, *, as_json: bool) -> int:
    settings = read_settings()
    scope = "turn" if turn else "run"
    async with open_tools(settings) as tools, engine(tools) as host:
        result = await acts.cancel(
            host, ref, scope=scope, actor=settings.actor, via="cli", idem_key=key
        )
    if as_json:
        print_json(result)
    else:
        click.echo(f"cancelled the {result.get('cancelled', scope)}")
    return 0


async def resume_rollout(ref: str, *, as_json: bool) -> int:
    settings = read_settings()
    async with open_tools(settings) as tools, engine(tools) as host:
        record = await tools.store.rollouts.get(ref)
        result = await rerun(host, record, f"run again by {settings.actor}")
        after = await tools.store.rollouts.get(record.id)
        if as_json:
            print_json(rollout_json(after))
        else:
            click.echo(await _rollout_text(tools, record.id))
    return 0 if result.verdict is not None else NO_REWARD


async def reap_all(*, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools, engine(tools) as host:
        removed = await reaping.reap(host)
    if as_json:
        print_json(list(removed))
    else:
        click.echo("\n".join(removed) if removed else "Nothing was left behind.")
    return 0


async def say_machine(*, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools:
        found = [await make({}).probe() for make in tools.sandboxes.values()]
    if as_json:
        print_json([plain(asdict(item)) for item in found])
        return 0
    lines = [("SANDBOX", "WORKS", "STRATEGY", "FORK COSTS NOTHING")]
    lines += [
        (item.provider, _yes(item.available), item.rung, _yes(item.o1_fork)) for item in found
    ]
    click.echo(table(lines))
    for item in found:
        for reason in item.reasons:
            click.echo(f"{item.provider}: {reason}")
    return 0 if any(item.available for item in found) else 7


async def check_package(path: str, *, as_json: bool) -> int:
    from core.services.checking import check_packages

    found = await asyncio.to_thread(check_packages, Path(path))
    if as_json:
        print_json([plain(asdict(item)) for item in found])
    else:
        for item in found:
            click.echo("\n".join(_findings(item)))
    return 0 if all(item.runs for item in found) else 2


def _findings(item: PackageCheck) -> list[str]:
    lines = [str(fault) for fault in item.faults]
    lines += [
        f"{item.path} [{short.key}]: {'cannot be run here' if short.blocking else 'note'}: "
        f"{short.why}."
        for short in item.shortfalls
    ]
    return lines if item.faults else [*lines, f"{item.path}: no faults"]


async def fsck_store(*, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools:
        problems = await tools.fsck()
    if as_json:
        print_json(list(problems))
    else:
        click.echo("\n".join(problems) or "The store and its folders agree.")
    return 1 if problems else 0


async def reindex_folder(folder: str, *, as_json: bool) -> int:
    async with open_tools(read_settings()) as tools:
        count = await tools.reindex(Path(folder))
    if as_json:
        print_json({"rollouts": count})
    else:
        click.echo(f"rebuilt the rows of {count} rollouts")
    return 0


def report_json(report: JobReport) -> JsonObject:
    rollouts: list[JsonValue] = [
        {
            "id": item.id,
            "name": item.name,
            "task": item.task,
            "folder": str(item.folder),
            "outcome": item.result.outcome.value,
            "reward": item.result.verdict.reward if item.result.verdict else None,
            "error": item.result.error,
            "error_category": item.result.error_category,
        }
        for item in report.rollouts
    ]
    return {
        "job": report.id,
        "folder": str(report.folder),
        "mean_reward": report.mean_reward,
        "rollouts": rollouts,
    }


def rollout_json(record: RolloutRecord, **more: object) -> JsonObject:
    values = asdict(record)
    for key, value in more.items():
        values[key] = [asdict(item) for item in value] if isinstance(value, list) else value
    return plain(values)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
