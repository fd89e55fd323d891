"""`bench demo`: the main job on the example task, and what to try next."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from app.commands import run_config
from app.outcome import NO_REWARD
from app.settings import read_settings
from core.contracts.errors import UsageError
from core.services.config import RolloutConfig

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "support-desk"
_ANSWERS = {"right": "5518", "wrong": "5512"}


async def run_demo(answer: str | None, jobs_dir: str | None) -> int:
    """Run the support desk with bench-agent and the scripted user.

    Stdout equals what `bench show` prints of this rollout; all else is on stderr.
    """
    if not _EXAMPLE.is_dir():
        raise UsageError(
            "the example task is not part of an installed copy",
            where=str(_EXAMPLE),
            remedy="Run the demo in a checkout, with `make demo`",
        )
    given = _ANSWERS.get(answer, answer) if answer else None
    config = RolloutConfig(
        path=str(_EXAMPLE),
        agent="bench-agent",
        user="scripted",
        answers=(given,) if given else (),
        jobs_dir=jobs_dir or read_settings().jobs_dir,
        branch="asks=all",
    )
    click.echo(
        "A support agent works a ticket on a live service and has to ask which order is meant.\n"
        "The question is a checkpoint: every other answer becomes a line of its own, forked\n"
        "from the same world and the same session, and the returns estimate V there.\n",
        err=True,
    )
    report = await run_config(config, quiet=False)
    rollout = report.rollouts[0].id
    sys.stdout.flush()
    other = "ANSWER=right" if given == _ANSWERS["wrong"] else "ANSWER=wrong"
    click.echo(
        "\nTry next:\n"
        f"  make demo {other:<14}  the same rollout, another answer, another reward\n"
        f"  bench show {rollout}   this tree again (bench is .venv/bin/bench)\n"
        "  bench run examples/support-desk --agent bench-agent --user human\n"
        "                           then answer it from a second terminal: bench answer\n"
        "  bench run examples/support-desk --agent nop   an agent that does nothing scores 0",
        err=True,
    )
    return 0 if len(report.scored) == len(report.rollouts) else NO_REWARD
