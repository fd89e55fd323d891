"""The rollout lifecycle: world up, gate, main line, verdict, teardown.

Owns nothing but the order of things. Every phase is bounded, timed and ends in
the log; a result is durable before teardown starts; an error never loses what
came before it. Cancellation (Ctrl-C, a lost lease) tears down and leaves an
``interrupted`` record that can be run again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from core.contracts.errors import BenchFlowError, Fenced
from core.contracts.values import JsonObject, Outcome, Phase
from core.kernel import events as ev
from core.kernel.clock import Stopwatch
from core.kernel.line import LineContext, LineResult, LineRun, LineSpec, Stop
from core.kernel.phases import LineCancelled, Phases
from core.kernel.world import World, WorldPlan, start_world


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What the root event says about this rollout."""

    task: str
    task_digest: str
    agent: str
    sandbox: str
    user: str
    config: JsonObject
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Takeover:
    """This run continues a log that another engine began."""

    line: int
    """The number its new main line gets."""
    why: str


class RolloutRun:
    """Runs one rollout that this engine owns, from setup to teardown."""

    def __init__(
        self,
        facts: RolloutFacts,
        plan: WorldPlan,
        context: LineContext,
        *,
        takeover: Takeover | None = None,
    ) -> None:
        self._facts = facts
        self._plan = plan
        self._context = context
        self._takeover = takeover
        self._number = takeover.line if takeover else 0
        self._phases = Phases(context.recorder, line=self._number)
        self._line: LineRun | None = None
        self._world: World | None = None
        self._stop: Stop | None = None
        self._living: asyncio.Task[LineResult] | None = None

    @property
    def line(self) -> LineRun | None:
        """The main line, once its world is healthy."""
        return self._line

    def stop(self, stop: Stop) -> None:
        """End the running turn, or the whole rollout, from any task of this loop.

        A turn is ended by asking the agent; any other phase is just cancelled.
        """
        self._stop = stop
        if self._line is not None:
            self._line.stop(stop)
        idle = self._line is None or not self._line.in_turn
        if stop.scope == "run" and idle and self._living is not None:
            self._living.cancel()

    async def run(self) -> LineResult:
        """Live the rollout. Deliberate errors become the result; cancellation is
        recorded, torn down, and raised again."""
        watch = Stopwatch()
        await self._begin()
        try:
            result = await self._until_stopped()
        except asyncio.CancelledError:
            await self._close(LineResult(Outcome.INTERRUPTED), watch)
            raise
        except LineCancelled:
            result = LineResult(Outcome.CANCELLED)
        except Fenced:
            await self._tear_down()
            raise
        except BenchFlowError as error:
            result = LineResult(
                Outcome.FAILED,
                error=str(error),
                error_category=error.category,
                infrastructure=error.infrastructure,
            )
        except BaseException:
            await self._tear_down()
            raise
        await self._close(result, watch)
        return result

    async def _begin(self) -> None:
        if self._takeover is None:
            facts = self._facts
            body: ev.Body = ev.RolloutStarted(
                facts.task, facts.task_digest, facts.agent, facts.sandbox, facts.user, facts.config
            )
        else:
            engine = self._context.recorder.ownership.engine
            body = ev.OwnerChanged(engine, self._takeover.why)
        await self._context.recorder.commit(ev.encode(body, line=self._number))

    async def _until_stopped(self) -> LineResult:
        """The main line, or LineCancelled when a person ended the run meanwhile."""
        self._living = asyncio.create_task(self._main())
        try:
            await asyncio.wait({self._living})
        except asyncio.CancelledError:
            self._living.cancel()
            await asyncio.wait({self._living})
            raise
        if self._living.cancelled():
            raise LineCancelled
        return self._living.result()

    async def _main(self) -> LineResult:
        limits = self._plan.deadlines
        async with self._phases.phase(Phase.SANDBOX, limit=limits.sandbox):
            self._world = world = await start_world(self._plan)
        async with self._phases.phase(Phase.ENVIRONMENT, limit=limits.environment):
            await world.provision(fresh=True, seed=self._facts.seed)
        async with self._phases.phase(Phase.READINESS, limit=limits.readiness):
            await world.ready()
        if self._stop is not None and self._stop.scope == "run":
            raise LineCancelled
        continuation: JsonObject = {"kind": "attempt"} if self._takeover else {"kind": "start"}
        spec = LineSpec(self._number, continuation=continuation, seed=self._facts.seed)
        self._line = LineRun(self._context, spec, world)
        return await self._line.run()

    async def _close(self, result: LineResult, watch: Stopwatch) -> None:
        """Teardown after the result is in the log, then the last event."""
        try:
            async with self._phases.phase(Phase.TEARDOWN, limit=None):
                await self._tear_down()
        except (BenchFlowError, TimeoutError) as error:
            note = ev.SessionChanged("teardown_problem", {"error": str(error)})
            await self._context.recorder.put(ev.encode(note, line=self._number))
        ended = ev.RolloutEnded(
            result.outcome, result.error, result.error_category, round(watch.seconds, 4)
        )
        await self._context.recorder.commit(ev.encode(ended, line=self._number))

    async def _tear_down(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            await world.teardown()
