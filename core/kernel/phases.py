"""Phases: each is bounded, timed, and ends in the log with a typed outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.contracts.errors import (
    AgentTimeout,
    BenchFlowError,
    EnvironmentFailed,
    SandboxError,
    VerifierTimeout,
)
from core.contracts.store import Recorder
from core.contracts.values import JsonValue, Outcome, Phase
from core.kernel import events as ev
from core.kernel.clock import Stopwatch
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
        exception group from the body is reduced to its first real error.
        """
        watch = Stopwatch()
        await self._recorder.put(ev.encode(ev.PhaseStarted(phase), line=self._line))
        try:
            async with asyncio.timeout(limit):
                yield watch
        except asyncio.CancelledError:
            await self._ended(phase, watch, Outcome.INTERRUPTED, None)
            raise
        except TimeoutError as error:
            kind = _TIMEOUT_ERRORS.get(phase, SandboxError)
            raised = kind(
                f"{phase} took longer than {limit:g} s",
                remedy="Raise this phase's limit, or find what hangs in the rollout's log",
            )
            await self._ended(phase, watch, Outcome.FAILED, str(raised))
            raise raised from error
        except BaseExceptionGroup as group:
            cause = first_error(group)
            await self._failed(phase, watch, cause)
            raise cause from group
        except Exception as error:
            await self._failed(phase, watch, error)
            raise
        else:
            await self._ended(phase, watch, Outcome.OK, None)

    async def _failed(self, phase: Phase, watch: Stopwatch, cause: BaseException) -> None:
        if isinstance(cause, LineCancelled):
            await self._ended(phase, watch, Outcome.CANCELLED, None)
        else:
            await self._ended(phase, watch, Outcome.FAILED, str(cause))

    async def _ended(
        self, phase: Phase, watch: Stopwatch, outcome: Outcome, error: str | None
    ) -> None:
        parts: dict[str, JsonValue] = {
            name: round(seconds, 4) for name, seconds in watch.parts.items()
        }
        body = ev.PhaseEnded(phase, round(watch.seconds, 4), outcome, error, parts)
        await self._recorder.put(ev.encode(body, line=self._line))
