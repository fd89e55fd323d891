"""Commands on the nodes of a rollout: arguments only. Bodies are in ``node_commands``."""

from __future__ import annotations

import click

from core.services.verbs import VERBS

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")


@click.command("score", help=VERBS["score"].help)
@click.argument("rollout")
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("--all", "captured", is_flag=True, help="Every node whose state is stored.")
@click.option("--verifier", metavar="PATH", help="Instead of the task's own verifier folder.")
@click.option("--key", help="Idempotency key.")
@_json
def score(rollout: str, nodes: tuple[str, ...], as_json: bool, **options: object) -> None:
    """Without NODE the main line's leaf is scored. No agent is called."""
    from app.node_commands import score_nodes
    from app.outcome import execute

    execute(score_nodes(rollout, nodes, options, as_json=as_json), as_json=as_json)


@click.command("rescore", help=VERBS["rescore"].help)
@click.argument("job_or_rollout", default="last")
@click.option("--verifier", metavar="PATH", help="Instead of the tasks' own verifier folder.")
@click.option("--watch", is_flag=True, help="Again two seconds after each save, until Ctrl-C.")
@_json
def rescore(job_or_rollout: str, verifier: str | None, watch: bool, as_json: bool) -> None:
    """Every verdict is kept; the newest counts. No agent is called."""
    from app.node_commands import rescore_all
    from app.outcome import execute

    body = rescore_all(job_or_rollout, verifier or "", watch=watch, as_json=as_json)
    execute(body, as_json=as_json)


@click.command("diff", help=VERBS["diff"].help)
@click.argument("a", metavar="ROLLOUT[:NODE]")
@click.argument("b", metavar="ROLLOUT[:NODE]")
@_json
def diff(a: str, b: str, as_json: bool) -> None:
    """ROLLOUT alone means its main line's leaf."""
    from app.node_commands import diff_nodes
    from app.outcome import execute

    execute(diff_nodes(a, b, as_json=as_json), as_json=as_json)


@click.command("gc", help=VERBS["gc"].help)
@click.option("--budget", default="10GB", show_default=True, metavar="SIZE")
@click.option("--inodes", type=int, default=1_000_000, show_default=True, help="Files allowed.")
@click.option("--dry-run", is_flag=True, help="Say what would go, drop nothing.")
@_json
def gc(budget: str, inodes: int, dry_run: bool, as_json: bool) -> None:
    """What no log names goes first, then the least recently used. Roots, the main line's
    leaf and questions, and everything live stay. A dropped node says so."""
    from app.node_commands import collect_garbage
    from app.outcome import execute

    execute(collect_garbage(budget, inodes, dry=dry_run, as_json=as_json), as_json=as_json)


@click.command("rewind", help=VERBS["rewind"].help)
@click.argument("rollout")
@click.argument("node")
@click.option("--answer", default="", metavar="VALUE", help="What the question is told this time.")
@click.option("--nudge", default="", metavar="TEXT", help="A follow-up, from a turn's end.")
@click.option("--key", default="", help="Idempotency key.")
@_json
def rewind(rollout: str, node: str, as_json: bool, **options: str) -> None:
    """Without --answer or --nudge the node is tried again. The line is marked assisted."""
    from app.node_commands import rewind_rollout
    from app.outcome import execute

    execute(rewind_rollout(rollout, node, options, as_json=as_json), as_json=as_json)


@click.command("restore", help=VERBS["restore"].help)
@click.argument("rollout")
@click.argument("line", type=int)
@_json
def restore(rollout: str, line: int, as_json: bool) -> None:
    """The rollout's reward is that line's from then on; it is marked selected."""
    from app.node_commands import restore_line
    from app.outcome import execute

    execute(restore_line(rollout, line, as_json=as_json), as_json=as_json)


@click.command("pause", help=VERBS["pause"].help)
@click.argument("rollout")
@click.option("--key", help="Idempotency key.")
@_json
def pause(rollout: str, key: str | None, as_json: bool) -> None:
    from app.node_commands import pause_rollout
    from app.outcome import execute

    execute(pause_rollout(rollout, key, on=True, as_json=as_json), as_json=as_json)


@click.command("unpause", help=VERBS["unpause"].help)
@click.argument("rollout")
@click.option("--key", help="Idempotency key.")
@_json
def unpause(rollout: str, key: str | None, as_json: bool) -> None:
    from app.node_commands import pause_rollout
    from app.outcome import execute

    execute(pause_rollout(rollout, key, on=False, as_json=as_json), as_json=as_json)


@click.command("shell", help=VERBS["shell"].help)
@click.argument("rollout")
@click.argument("node", default="")
@click.option(
    "--as",
    "user",
    type=click.Choice(["agent", "service", "verifier"]),
    default="agent",
    show_default=True,
    help="Whose view: the verifier's also has the state files.",
)
def shell(rollout: str, node: str, user: str) -> None:
    """NODE defaults to the main line's leaf. Services run; everything is gone after exit.

    Leaves with the shell's own exit code.
    """
    from app.node_commands import shell_in
    from app.outcome import execute

    execute(shell_in(rollout, node, user))


NODE_COMMANDS: tuple[click.Command, ...] = (
    shell,
    score,
    rescore,
    diff,
    gc,
    rewind,
    restore,
    pause,
    unpause,
)
