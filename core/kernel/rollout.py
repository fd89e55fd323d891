"""The rollout lifecycle: world up, gate, main line, verdict, teardown.

Owns nothing but the order of things. Every phase is bounded, timed and ends in
the log; a result is durable before teardown starts; an error never loses what
came before it. Cancellation (Ctrl-C, a lost lease) tears down and leaves an
``interrupted`` record that can be run again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from core.contracts.errors import BenchFlowError, Fenced, StoreError
from core.contracts.user import Nudge
from core.contracts.values import JsonObject, Outcome, Phase
from core.kernel import events as ev
from core.kernel.checkpoint import capture
from core.kernel.children import Children, Slot, no_limit
from core.kernel.clock import Stopwatch
from core.kernel.finish import finish, outlast
from core.kernel.line import LineRun
from core.kernel.phases import LineCancelled, Phases
from core.kernel.spec import (
    ForkPoint,
    LineContext,
    LineResult,
    LineSpec,
    Stop,
    checkpointed,
)
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


def root_event(facts: RolloutFacts) -> ev.RolloutStarted:
    """The first event of a rollout's log."""
    return ev.RolloutStarted(
        facts.task, facts.task_digest, facts.agent, facts.sandbox, facts.user, facts.config
    )


@dataclass(frozen=True, slots=True)
class Takeover:
    """This run continues a log that another engine began."""

    line: int
    """The number its new main line gets."""
    why: str
    nudges: tuple[Nudge, ...] = ()
    """Accepted by the earlier owner and never given to the agent: owed by this one."""


class RolloutRun:
    """Runs one rollout that this engine owns, from setup to teardown."""

    def __init__(
        self,
        facts: RolloutFacts,
        plan: WorldPlan,
        context: LineContext,
        *,
        takeover: Takeover | None = None,
        slot: Slot | None = None,
    ) -> None:
        self._facts = facts
        self._plan = plan
        self._context = context
        self._takeover = takeover
        self._number = takeover.line if takeover else 0
        self._phases = Phases(context.recorder, line=self._number)
        self._line: LineRun | None = None
        self._child: int | None = None
        """The child that became the main line, if one did."""
        self._world: World | None = None
        self._stop: Stop | None = None
        self._living: asyncio.Task[LineResult] | None = None
        self.begun = asyncio.Event()
        """Set once the log holds the rollout's first event: nothing may come before it."""
        self.children = Children(
            context, plan, first_number=self._number + 1, slot=slot or no_limit
        )

    @property
    def line(self) -> LineRun | None:
        """The main line, once its world is healthy."""
        return self._line if self._child is None else self.children.line(self._child)

    @property
    def running(self) -> tuple[LineRun, ...]:
        """Every line that has begun and not ended."""
        first = self._line
        own = (first,) if first is not None and first.result is None else ()
        return (*own, *self.children.running)

    def follow(self, number: int, stop: Stop) -> None:
        """A child is the main line from now on; the one that was, ends."""
        before = self.line
        self._child = number
        if before is not None and before.result is None:
            before.stop(stop)

    def stop(self, stop: Stop) -> None:
        """End the running turn, or the whole rollout, from any task of this loop.

        A turn is ended by asking the agent; any other phase is just cancelled.
        """
        if not self._run_stopped:
            self._stop = stop
        if self._line is not None:
            self._line.stop(stop)
        if stop.scope == "run":
            self.children.stop(stop)
        idle = self._line is None or not self._line.in_turn
        if stop.scope == "run" and idle and self._living is not None:
            self._living.cancel()

    async def run(self) -> LineResult:
        """Live the rollout. Deliberate errors become the result; cancellation and
        programming errors are recorded, torn down, and raised again.

        Raises StoreError, after teardown, when the log cannot be written any more.
        """
        watch = Stopwatch()
        self._living = living = asyncio.create_task(self._live())
        interrupt = await outlast(living, stop=True)
        result, raised = self._read(living)
        try:
            if isinstance(raised, Fenced):
                await finish(self._abandon())
            else:
                await finish(self._close(result, watch))
        except asyncio.CancelledError as error:
            interrupt = interrupt or error
        except StoreError:
            if interrupt is None:
                raise
        if interrupt is not None:
            raise interrupt
        if raised is not None:
            raise raised
        return result

    def _read(self, living: asyncio.Task[LineResult]) -> tuple[LineResult, BaseException | None]:
        """How the main line ended, and what has to be raised for it in the end."""
        if living.cancelled():
            ended = Outcome.CANCELLED if self._run_stopped else Outcome.INTERRUPTED
            known = self._line.result if self._line is not None else None
            return self._rewound_result or known or LineResult(ended), None
        match living.exception():
            case None:
                return living.result(), None
            case LineCancelled():
                return LineResult(Outcome.CANCELLED), None
            case Fenced() as fenced:
                return LineResult(Outcome.FAILED), fenced
            case BenchFlowError() as error:
                failed = LineResult(
                    Outcome.FAILED,
                    error=str(error),
                    error_category=error.category,
                    infrastructure=error.infrastructure,
                )
                return failed, None
            case bug:
                what = f"{type(bug).__name__}: {bug}"
                return LineResult(Outcome.FAILED, error=what, error_category="internal"), bug

    async def _begin(self) -> None:
        if self._takeover is None:
            body: ev.Body = root_event(self._facts)
        else:
            engine = self._context.recorder.ownership.engine
            body = ev.OwnerChanged(engine, self._takeover.why)
        await self._context.recorder.commit(ev.encode(body, line=self._number))
        self.begun.set()

    async def _live(self) -> LineResult:
        # Uninterrupted: a log whose first event is missing cannot be read.
        await finish(self._begin())
        if self._run_stopped:
            raise LineCancelled
        return await self._main()

    async def _main(self) -> LineResult:
        limits = self._plan.deadlines
        async with self._phases.phase(Phase.SANDBOX, limit=limits.sandbox):
            self._world = world = await start_world(self._plan)
        async with self._phases.phase(Phase.ENVIRONMENT, limit=limits.environment):
            await world.provision(fresh=True, seed=self._facts.seed)
        async with self._phases.phase(Phase.READINESS, limit=limits.readiness):
            await world.ready()
        if self._context.at_root:
            await self._capture_root(world)
        continuation: JsonObject = {"kind": "attempt"} if self._takeover else {"kind": "start"}
        spec = LineSpec(self._number, continuation=continuation, seed=self._facts.seed)

        async def here(phases: Phases) -> World:
            return world

        self._line = LineRun(self._context, spec, self._plan, here)
        for nudge in self._takeover.nudges if self._takeover else ():
            self._line.nudges.put(nudge)
        try:
            result = await self._line.run()
            await self.children.wait()
        except BaseException:
            await finish(self.children.end())
            raise
        return self._rewound_result or result

    @property
    def _rewound_result(self) -> LineResult | None:
        return None if self._child is None else self.children.results.get(self._child)

    async def _capture_root(self, world: World) -> None:
        """A group of lines shares everything up to here. Without a capture there is no group."""
        tree = await self._context.tree()
        checkpoint = await capture(world, None, node=tree.root_id, epoch=0)
        record = ev.encode(checkpointed(checkpoint), line=self._number)
        await finish(self._context.recorder.commit(record))
        if self._context.on_fork_point is not None:
            await self._context.on_fork_point(ForkPoint(checkpoint, self._number, 0))

    async def _close(self, result: LineResult, watch: Stopwatch) -> None:
        """Teardown after the result is in the log, then the last event."""
        try:
            async with self._phases.phase(Phase.TEARDOWN, limit=None):
                await self._tear_down()
        except StoreError:
            await self._abandon()
            raise
        except BenchFlowError as error:
            note = ev.SessionChanged("teardown_problem", {"error": str(error)})
            await self._context.recorder.put(ev.encode(note, line=self._number))
        ended = ev.RolloutEnded(
            result.outcome, result.error, result.error_category, round(watch.seconds, 4)
        )
        await self._context.recorder.commit(ev.encode(ended, line=self._number))

    async def _abandon(self) -> None:
        """Teardown where nothing can be written about it."""
        with contextlib.suppress(BenchFlowError):
            await self._tear_down()

    async def _tear_down(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            await world.teardown()

    @property
    def _run_stopped(self) -> bool:
        return self._stop is not None and self._stop.scope == "run"
