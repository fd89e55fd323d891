"""The ``bench`` command: arguments only. Bodies are in ``commands``, loaded when run.

Exit codes: 0 done; 1 something failed that was not foreseen; 2 the arguments or
a file are wrong; 3 a rollout ended without a reward; 4 somebody else was first,
or the rollout had already ended; 5 no such rollout or request; 6 the owner
lives but does not answer; 7 this machine cannot do it; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from app.node_cli import NODE_COMMANDS
from core import __version__
from core.services.verbs import VERBS

_HELP = {"help_option_names": ["-h", "--help"]}

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")


def explain(verb: str, more: str) -> str:
    """The verb's sentence from the one table, and what its arguments mean."""
    return f"{VERBS[verb].help}\n\n{more}"


@click.group(context_settings=_HELP)
@click.version_option(__version__, prog_name="bench")
def bench() -> None:
    """Run agents on tasks as rollout trees: watch, answer, score.

    Exit codes: 0 done, 1 unforeseen, 2 wrong arguments or files, 3 ended
    without a reward, 4 too late, 5 not found, 6 owner silent, 7 not possible
    on this machine, 130 interrupted.
    """


def _run_options(function: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option(
            "--agent",
            default="oracle",
            show_default=True,
            help="oracle, nop, bench-agent, a name from the registry, or any ACP command line.",
        ),
        click.option("--agent-script", metavar="FILE", help="What bench-agent plays."),
        click.option("--model", metavar="NAME", help="The model the agent is to use."),
        click.option("--sandbox", default="local", show_default=True),
        click.option(
            "--user",
            type=click.Choice(["scripted", "auto", "human"]),
            default="scripted",
            show_default=True,
            help="Who answers the agent's questions.",
        ),
        click.option(
            "--answer",
            "answers",
            multiple=True,
            metavar="VALUE",
            help="The scripted user's answer to the next question; may be repeated.",
        ),
        click.option(
            "--permissions",
            type=click.Choice(["auto", "ask", "deny"]),
            default="auto",
            show_default=True,
            help="The policy for security requests.",
        ),
        click.option("--jobs-dir", metavar="DIR", help="Where results go; default: jobs."),
        click.option("--repeats", type=int, default=1, show_default=True),
        click.option("--concurrency", type=int, default=1, show_default=True),
        click.option("--timeout", type=float, help="The agent's seconds; thinking users are free."),
        click.option("--ask-timeout", type=float, help="Seconds until a question's default."),
        click.option(
            "--turn-end-timeout",
            type=float,
            default=30.0,
            show_default=True,
            help="Seconds a person has to nudge after each turn before it is accepted.",
        ),
        click.option("--seed", type=int, default=0),
        click.option(
            "--branch",
            metavar="RULES",
            help="Branch by itself: asks=all|N, depth=N, children=N, root=N, budget=N.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@bench.command(help=VERBS["run"].help)
@click.argument("path", type=click.Path())
@_run_options
@_json
def run(path: str, as_json: bool, **options: object) -> None:
    from app.commands import run_tasks
    from app.outcome import execute

    execute(run_tasks(path, options, as_json=as_json), as_json=as_json)


@bench.command(help="Run the example task and show what a rollout is.")
@click.option("--answer", default=None, help="What the user answers: right (default) or wrong.")
@click.option("--jobs-dir", metavar="DIR")
def demo(answer: str | None, jobs_dir: str | None) -> None:
    from app.demo import run_demo
    from app.outcome import execute

    execute(run_demo(answer, jobs_dir))


@bench.command(help=VERBS["show"].help)
@click.argument("rollout", default="last")
@click.option("--follow", "-f", is_flag=True, help="Stay until it has ended.")
@_json
def show(rollout: str, follow: bool, as_json: bool) -> None:
    from app.commands import show_rollout
    from app.outcome import execute

    execute(show_rollout(rollout, follow=follow, as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["ls"].help)
@click.option("--job", help="Only this job's.")
@click.option("--limit", type=int, default=30, show_default=True)
@_json
def ls(job: str | None, limit: int, as_json: bool) -> None:
    from app.commands import list_rollouts
    from app.outcome import execute

    execute(list_rollouts(job, limit, as_json=as_json), as_json=as_json)


@bench.command(
    help=explain(
        "answer",
        "REQUEST is a request's or a rollout's id; without it, what waits is listed. VALUE is an"
        " option's number, value or label, free text, `decline`, `cancel`, or name=value pairs;"
        " without it, the question is shown.",
    )
)
@click.argument("request", required=False)
@click.argument("value", required=False)
@click.option("--key", help="Idempotency key: the same key never answers twice.")
@_json
def answer(request: str | None, value: str | None, key: str | None, as_json: bool) -> None:
    from app.commands import answer_request
    from app.outcome import execute

    execute(answer_request(request, value, key, as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["nudge"].help)
@click.argument("rollout")
@click.argument("text")
@click.option("--key", help="Idempotency key.")
@_json
def nudge(rollout: str, text: str, key: str | None, as_json: bool) -> None:
    from app.commands import nudge_rollout
    from app.outcome import execute

    execute(nudge_rollout(rollout, text, key, as_json=as_json), as_json=as_json)


@bench.command(
    help=explain("branch", "NODE defaults to the question that waits, else to the last one asked.")
)
@click.argument("rollout")
@click.argument("node", default="")
@click.option("--options", type=click.Choice(["all"]), help="One child per enumerated option.")
@click.option("--answer", "answers", multiple=True, metavar="VALUE", help="One child each.")
@click.option("--nudge", default="", metavar="TEXT", help="A child that gets this follow-up.")
@click.option("--resample", type=int, default=0, metavar="N", help="N more tries.")
@click.option(
    "--edit",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="One child that is told an edited history: JSON or TOML with node, role, text.",
)
@click.option("--dry-run", is_flag=True, help="Say what it would cost, start nothing.")
@click.option("--yes", is_flag=True, help="More than eight children is meant.")
@click.option("--key", help="Idempotency key.")
@_json
def branch(rollout: str, node: str, as_json: bool, **ways: object) -> None:
    from app.commands import branch_rollout
    from app.outcome import execute

    execute(branch_rollout(rollout, node, ways, as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["cancel"].help)
@click.argument("rollout")
@click.option("--turn", is_flag=True, help="Only the turn that runs now.")
@click.option("--key", help="Idempotency key.")
@_json
def cancel(rollout: str, turn: bool, key: str | None, as_json: bool) -> None:
    from app.commands import cancel_rollout
    from app.outcome import execute

    execute(cancel_rollout(rollout, turn, key, as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["resume"].help)
@click.argument("rollout")
@_json
def resume(rollout: str, as_json: bool) -> None:
    from app.commands import resume_rollout
    from app.outcome import execute

    execute(resume_rollout(rollout, as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["reap"].help)
@_json
def reap(as_json: bool) -> None:
    from app.commands import reap_all
    from app.outcome import execute

    execute(reap_all(as_json=as_json), as_json=as_json)


@bench.command(help=VERBS["doctor"].help)
@_json
def doctor(as_json: bool) -> None:
    from app.commands import say_machine
    from app.outcome import execute

    execute(say_machine(as_json=as_json), as_json=as_json)


@bench.group()
def tasks() -> None:
    """Work on task packages."""


@tasks.command(help=VERBS["check"].help)
@click.argument("path", type=click.Path())
@_json
def check(path: str, as_json: bool) -> None:
    from app.commands import check_package
    from app.outcome import execute

    execute(check_package(path, as_json=as_json), as_json=as_json)


@bench.group()
def store() -> None:
    """Look after the store."""


@store.command(help="Compare the store with the sealed folders.")
@_json
def fsck(as_json: bool) -> None:
    from app.commands import fsck_store
    from app.outcome import execute

    execute(fsck_store(as_json=as_json), as_json=as_json)


@store.command(help="Rebuild the store's rows from a folder of sealed rollouts.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@_json
def reindex(folder: str, as_json: bool) -> None:
    from app.commands import reindex_folder
    from app.outcome import execute

    execute(reindex_folder(folder, as_json=as_json), as_json=as_json)


for command in NODE_COMMANDS:
    bench.add_command(command)


def main() -> None:
    """Enter the command line; leaves by SystemExit. With ``--json`` wrong arguments
    are one JSON value too."""
    if "--json" not in sys.argv[1:]:
        bench(prog_name="bench")
    try:
        bench(prog_name="bench", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        from app.outcome import say_problem

        say_problem("usage", error.format_message(), "See `bench --help`", as_json=True)
        sys.exit(error.exit_code)
