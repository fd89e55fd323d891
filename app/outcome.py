"""How a command ends: its exit code, its errors, its one JSON value.

Errors of our own tree become one sentence on stderr, or with ``--json`` one
value on stdout, and an exit code; anything else is a fault of ours and keeps
its traceback. Ctrl-C tears everything down first and leaves with 130.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Coroutine
from dataclasses import asdict

import click

from core.contracts.errors import (
    AgentNotFound,
    BenchFlowError,
    ConfigError,
    Conflict,
    NotFound,
    OwnerSilent,
    SandboxUnavailable,
    TaskError,
    UsageError,
)
from core.contracts.values import JsonObject, JsonValue
from core.kernel.world import first_error
from core.services.sanitise import clean

NO_REWARD = 3
INTERRUPTED = 130

_EXIT: tuple[tuple[type[BenchFlowError], int], ...] = (
    (UsageError, 2),
    (TaskError, 2),
    (ConfigError, 2),
    (AgentNotFound, 2),
    (Conflict, 4),
    (NotFound, 5),
    (OwnerSilent, 6),
    (SandboxUnavailable, 7),
)


def execute(body: Coroutine[object, object, int], *, as_json: bool = False) -> None:
    """Run a command to its end and leave with its exit code."""
    try:
        code = asyncio.run(_one_error(_interruptible(body)))
    except BenchFlowError as error:
        _say_error(error, as_json)
        code = next((code for kind, code in _EXIT if isinstance(error, kind)), 1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        say_problem("interrupted", "interrupted", "Look with `bench ls`", as_json=as_json)
        code = INTERRUPTED
    sys.stdout.flush()
    sys.exit(code)


async def _one_error(body: Coroutine[object, object, int]) -> int:
    """Task groups wrap what they raise; a person is told the first real cause."""
    try:
        return await body
    except BaseExceptionGroup as group:
        raise first_error(group) from group


async def _interruptible(body: Coroutine[object, object, int]) -> int:
    """SIGTERM and a terminal that closes end a command the way Ctrl-C does: everything is
    torn down first.

    A second one hurries nothing: what it would leave behind costs more than the wait.
    Under ``nohup`` a hang-up stays ignored.
    """
    task = asyncio.ensure_future(body)
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        first = not task.cancelling()
        task.cancel()
        # Nobody may be left to be told.
        with contextlib.suppress(OSError):
            if first:
                click.echo("interrupted: tearing down", err=True)

    names = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        names.append(signal.SIGHUP)
    for name in names:
        loop.add_signal_handler(name, interrupt)
    try:
        return await task
    finally:
        for name in names:
            loop.remove_signal_handler(name)


def say_problem(category: str, what: str, remedy: str, *, as_json: bool) -> None:
    """A problem that is none of our error tree, where errors go."""
    if as_json:
        error: JsonObject = {"category": category, "what": what, "where": "", "remedy": remedy}
        print_json({"error": {**error, "faults": []}})
    else:
        click.echo(f"{what}. {remedy}", err=True)


def print_json(value: JsonValue) -> None:
    """ASCII: an agent's controls and bidi marks stay escaped on a terminal."""
    click.echo(json.dumps(value, indent=2))


def plain(value: object) -> JsonObject:
    """Enums, paths and sets as JSON has them."""
    text = json.dumps(
        value, default=lambda item: sorted(item) if isinstance(item, set | frozenset) else str(item)
    )
    made: JsonObject = json.loads(text)
    return made


def _say_error(error: BenchFlowError, as_json: bool) -> None:
    if not as_json:
        click.echo(
            f"{click.style('error:', fg='red')} {clean(str(error), multiline=True)}", err=True
        )
        return
    faults = error.faults if isinstance(error, TaskError) else ()
    print_json(
        {
            "error": {
                "category": error.category,
                "what": error.what,
                "where": error.where,
                "remedy": error.remedy,
                "faults": [plain(asdict(fault)) for fault in faults],
            }
        }
    )
