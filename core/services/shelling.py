"""A shell in a throw-away fork of a node: its services run, and nothing of it stays."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from core.contracts.errors import BenchFlowError, SandboxUnavailable
from core.contracts.sandbox import Attached, Compartment, Terminals
from core.kernel.world import scratch_world
from core.services.engine import Engine
from core.services.looking import find_stored

_SHELL = ("bash", "--noprofile", "--norc")
"""Without the start-up files that an agent may have left in its home."""


@asynccontextmanager
async def shell(
    engine: Engine,
    ref: str,
    *,
    tty_fd: int,
    user: Compartment = "agent",
    opened: Callable[[str], None] = lambda name: None,
) -> AsyncIterator[Attached]:
    """Bash on ``tty_fd`` in a fork of ``ROLLOUT:NODE``, in one compartment's view.

    ``opened`` is told the node's name before the shell may speak. Leaving ends the
    shell and removes the fork. Raises what keeps the node from being forked.
    """
    stored = await find_stored(engine, ref)
    problems: list[BenchFlowError] = []

    async def problem(error: BenchFlowError) -> None:
        problems.append(error)

    async with scratch_world(stored.plan, stored.checkpoint.image, problem) as world:
        sandbox = world.sandbox
        if not isinstance(sandbox, Terminals):
            raise SandboxUnavailable(
                "this kind of sandbox has no terminals",
                where=sandbox.spec.name,
                remedy="Look into the node with `bench diff`",
            )
        opened(stored.name)
        env = {"TERM": os.environ.get("TERM") or "dumb", "PS1": f"[{stored.name} {user}] \\w\\$ "}
        program = await sandbox.attach(_SHELL, tty_fd=tty_fd, user=user, env=env)
        try:
            yield program
        finally:
            await program.kill(grace=0.5)
    if problems:
        raise problems[0]
