"""Phases: each is bounded, timed, and ends in the log with a typed outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.contracts.errors import (
    AgentTimeout,
    BenchFlowError,
    EnvironmentFailed,
    Fenced,
    SandboxError,
    StoreError,
    VerifierTimeout,
)
from core.contracts.store import Recorder
from core.contracts.values import JsonValue, Outcome, Phase
from core.kernel import events as ev
from core.kernel.clock import Stopwatch
from core.kernel.finish import deadline
from core.kernel.world import first_error

_TIMEOUT_ERRORS: dict[Phase, type[BenchFlowError]] = {
    Phase.SANDBOX: SandboxError,
    Phase.ENVIRONMENT: EnvironmentFailed,
    Phase.READINESS: EnvironmentFailed,
    Phase.CONNECT: AgentTimeout,
    Phase.EXECUTE: AgentTimeout,
    Phase.VERIFY: VerifierTimeout,
}


class LineCancelled(Exception):
    """Control flow inside a line: the run was cancelled by a person."""


class Phases:
    """Writes the phases of one line (or, before a line exists, of the rollout)."""

    def __init__(self, recorder: Recorder, *, line: int) -> None:
        self._recorder = recorder
        self._line = line

    @asynccontextmanager
    async def phase(self, phase: Phase, *, limit: float | None) -> AsyncIterator[Stopwatch]:
        """Run the body as ``phase``.

        Past ``limit`` seconds it is cancelled and a typed error says so; an
        exception group from the body is reduced to its first real error. A log
        that cannot be written any more never hides why the body failed.
        """
        watch = Stopwatch()
        await self._recorder.put(ev.encode(ev.PhaseStarted(phase), line=self._line))
        kind = _TIMEOUT_ERRORS.get(phase, SandboxError)
        try:
            async with deadline(limit, kind, str(phase)):
                yield watch
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as raised:
            cause = first_error(raised)
            if not isinstance(cause, Fenced):
                with contextlib.suppress(StoreError):
                    await self._ended(phase, watch, *_outcome(cause))
            if cause is raised:
                raise
            raise cause from raised
        else:
            await self._ended(phase, watch, Outcome.OK, None)

    async def _ended(
        self, phase: Phase, watch: Stopwatch, outcome: Outcome, error: str | None
    ) -> None:
        parts: dict[str, JsonValue] = {
            name: round(seconds, 4) for name, seconds in watch.parts.items()
        }
        body = ev.PhaseEnded(phase, round(watch.seconds, 4), outcome, error, parts)
        await self._recorder.put(ev.encode(body, line=self._line))


def _outcome(cause: BaseException) -> tuple[Outcome, str | None]:
    if isinstance(cause, asyncio.CancelledError):
        return Outcome.INTERRUPTED, None
    if isinstance(cause, LineCancelled):
        return Outcome.CANCELLED, None
    return Outcome.FAILED, str(cause)
