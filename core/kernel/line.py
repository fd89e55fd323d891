"""One line of a rollout: world, connect, execute, quiesce, verify.

A line has one world and one agent session. Everything it does is an event of
its line; it never touches another line. The agent's clock stands still while a
user thinks, and the end of a turn is an event, never a poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

from core.contracts.agent import (
    AgentExit,
    Answer,
    AskUser,
    PermissionAsked,
    PermissionDecision,
    Role,
    Session,
)
from core.contracts.errors import (
    AgentTimeout,
    BenchFlowError,
    CheckpointError,
    EnvironmentFailed,
    Fenced,
    SandboxError,
    SandboxLost,
    StoreError,
    StoreFull,
)
from core.contracts.store import Event
from core.contracts.user import AskContext, Nudge, TurnEnd
from core.contracts.values import Fidelity, JsonObject, JsonValue, Outcome, Phase, StopReason
from core.kernel import events as ev
from core.kernel.checkpoint import DRAIN_SECONDS, Checkpoint, capture
from core.kernel.clock import AgentClock, Stopwatch
from core.kernel.finish import deadline, finish, outlast
from core.kernel.nudges import Nudges
from core.kernel.phases import LineCancelled, Phases
from core.kernel.running import RunningTools
from core.kernel.spec import (
    ForkPoint,
    LineContext,
    LineResult,
    LineSpec,
    PermissionContext,
    Stop,
    checkpointed,
    started,
)
from core.kernel.standstill import Standstill
from core.kernel.steps import Stepper
from core.kernel.tree import Node
from core.kernel.verification import Verification
from core.kernel.world import Deadlines, World, WorldPlan

PAUSE_SECONDS = 0.1
"""Text is held this long for more of it to come before it becomes an event."""


class LineRun:
    """Drives one line to its end."""

    def __init__(
        self,
        context: LineContext,
        spec: LineSpec,
        plan: WorldPlan,
        bring_up: Callable[[Phases], Awaitable[World]],
    ) -> None:
        self._context = context
        self._spec = spec
        self._plan = plan
        self._bring_up = bring_up
        self._own_world: World | None = None
        self._phases = Phases(context.recorder, line=spec.number)
        self._stepper = Stepper(context.agent.capabilities().step_rule)
        self._tools = RunningTools()
        self._clock = AgentClock(context.agent_seconds)
        self._session: Session | None = None
        self._still = Standstill(self._clock)
        self._pumping = asyncio.Lock()
        self._stop: Stop | None = None
        self._stopping = asyncio.Event()
        self.nudges = Nudges()
        self._asks = spec.asks
        self._permissions = 0
        self._turn = spec.turn
        self._given = spec.answer
        self._epoch = 0
        self._turn_end: Checkpoint | None = None
        self._stopped = StopReason.END_TURN
        self._in_turn = False
        self._result: LineResult | None = None
        self.exit = AgentExit(None)

    @property
    def human_seconds(self) -> float:
        return self._clock.paused_seconds

    @property
    def in_turn(self) -> bool:
        """Whether the agent, or its user between two turns, has the floor."""
        return self._in_turn

    @property
    def number(self) -> int:
        return self._spec.number

    @property
    def result(self) -> LineResult | None:
        """How it ended; set as soon as there is a verdict, which nothing takes back."""
        return self._result

    @property
    def world(self) -> World | None:
        """Its world, for whoever tears it down."""
        return self._own_world

    def stop(self, stop: Stop) -> None:
        """Ask the line to end its turn, or to end altogether. Returns at once."""
        if not self._run_stopped:
            self._stop = stop
        self._stopping.set()

    async def pause(self) -> None:
        """Stop it where it stands, clocks included; what is not yet, or no longer, in the
        agent's hands stops at the next turn. Raises SandboxError where it cannot be frozen."""
        await self._still.begin(self._own_world if self._in_turn else None, self._session)

    async def unpause(self) -> None:
        """Let it go on."""
        await self._still.end()

    async def run(self) -> LineResult:
        """Live the line. Deliberate errors become its typed outcome; only
        cancellation, Fenced and programming errors leave this method."""
        try:
            await finish(self._commit(started(self._spec)))
            self._own_world = await self._bring_up(self._phases)
            timeout = await self._live()
            self._result = await self._verify(timeout)
        except LineCancelled:
            self._result = LineResult(Outcome.CANCELLED)
        except asyncio.CancelledError:
            ended = Outcome.CANCELLED if self._run_stopped else Outcome.INTERRUPTED
            self._result = self._result or LineResult(ended)
            with contextlib.suppress(StoreError):
                await finish(self._end(self._result))
            raise
        except Fenced:
            raise
        except BenchFlowError as raised:
            self._result = LineResult(
                Outcome.FAILED,
                error=str(raised),
                error_category=raised.category,
                infrastructure=raised.infrastructure,
            )
        await finish(self._end(self._result))
        return self._result

    async def _live(self) -> BenchFlowError | None:
        """Connect and execute; the agent's time-out is returned, since what it
        left is still scored. The agent is proven dead on every way out."""
        try:
            timeout = await self._connect_and_execute()
        except (Exception, asyncio.CancelledError):
            with contextlib.suppress(BenchFlowError):
                await finish(self._close_session())
            raise
        await finish(self._close_session())
        return timeout

    async def _connect_and_execute(self) -> AgentTimeout | None:
        async with self._phases.phase(Phase.CONNECT, limit=self._limits.connect):
            self._session = await self._connect()
            self._session.on_ask_user(self._on_ask)
            self._session.on_permission(self._on_permission)
        try:
            async with self._phases.phase(Phase.EXECUTE, limit=None) as watch:
                try:
                    await self._execute()
                finally:
                    watch.parts["human_wait"] = self._clock.paused_seconds
        except AgentTimeout as error:
            return error
        return None

    async def _close_session(self) -> None:
        """End the agent. Raises SandboxLost where that cannot be done: nothing that
        an agent may still be changing is scored."""
        # Frozen programs cannot end.
        await self._still.end()
        if self._session is not None:
            async with deadline(self._limits.settle * 2, SandboxLost, "ending the agent"):
                self.exit = await self._session.close()

    async def _connect(self) -> Session:
        agent, sandbox = self._context.agent, self._world.sandbox
        role = Role(seed=self._spec.seed, line=self.number)
        if self._spec.session is not None:
            return await agent.restore(sandbox, role, self._spec.session)
        return await agent.connect(sandbox, role)

    async def _execute(self) -> None:
        session = self._live_session
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump(session))
            watch = group.create_task(self._watch_world())
            self._in_turn = True
            try:
                await self._turns(session)
            finally:
                self._in_turn = False
                self.nudges.close()
                watch.cancel()
                await self._settle(session)
                pump.cancel()

    async def _turns(self, session: Session) -> None:
        following = await self._first_prompt(session)
        while following is not None and self._turn < self._context.max_turns:
            prompt, origin = following
            self._turn += 1
            self._turn_end = None
            await self._prompted(prompt, origin)
            await self._whole_turn(session, session.prompt(prompt.text))
            full = self._turn >= self._context.max_turns
            following = None if full else await self._next()
        await self._still.passed()

    async def _first_prompt(self, session: Session) -> tuple[Nudge, str] | None:
        """The task's instruction; in a fork the rest of the turn, or a nudge, comes first."""
        spec = self._spec
        if spec.session is None and spec.prompt is not None:
            return spec.prompt, "edit"
        if spec.session is None:
            return Nudge(self._context.instruction, actor="task", via="task"), "task"
        if spec.session.pending_ask:
            await self._whole_turn(session, session.resume_turn())
            return await self._next()
        if spec.prompt is not None:
            return spec.prompt, "nudge"
        return await self._next()

    async def _next(self) -> tuple[Nudge, str] | None:
        nudge = await self._next_prompt()
        return None if nudge is None else (nudge, "nudge")

    async def _whole_turn(self, session: Session, turn: Coroutine[None, None, StopReason]) -> None:
        """Run a turn, put its end into the log and capture it. Raises when it was the last."""
        try:
            await self._still.passed()
        except BaseException:
            turn.close()
            raise
        began = Stopwatch()
        try:
            self._stopped = stop = await self._one_turn(session, turn)
        except AgentTimeout:
            await self._turn_over(session, StopReason.TIMEOUT, began)
            raise
        await self._still.passed()
        await self._turn_over(session, stop, began)
        self._clear_turn_stop()
        if stop is StopReason.TIMEOUT:
            raise AgentTimeout(
                f"the agent used up its {self._context.agent_seconds:g} s",
                remedy="Raise agent.timeout_sec in task.md, or --timeout",
            )
        await self._capture_turn_end(session)
        self._tools.turn_ended()

    async def _turn_over(self, session: Session, stop: StopReason, began: Stopwatch) -> None:
        await self._settle(session)
        await self._mark(ev.TurnEnded(stop, self._turn, round(began.seconds, 4)))

    async def _prompted(self, prompt: Nudge, origin: str) -> None:
        body = ev.Prompted(
            prompt.text, origin, prompt.actor, prompt.via, turn=self._turn, nudge=prompt.id
        )
        await self._mark(body, request=prompt.request)

    async def _one_turn(
        self, session: Session, body: Coroutine[None, None, StopReason]
    ) -> StopReason:
        """One prompt up to its stop reason, a person's stop, or the time limit."""
        try:
            self._clear_turn_stop()
        except LineCancelled:
            body.close()
            raise
        turn = asyncio.create_task(body)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            try:
                async with self._clock.limit():
                    await asyncio.wait({turn, stopping}, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                await self._end_turn(session, turn)
                return StopReason.TIMEOUT
            if not turn.done():
                await self._end_turn(session, turn)
                return StopReason.CANCELLED
            return turn.result()
        finally:
            stopping.cancel()
            turn.cancel()
            await asyncio.gather(turn, stopping, return_exceptions=True)

    async def _end_turn(self, session: Session, turn: asyncio.Task[StopReason]) -> None:
        """Cancel the turn and give the agent a moment to say so."""
        with contextlib.suppress(TimeoutError, BenchFlowError):
            async with asyncio.timeout(self._limits.settle):
                await session.cancel()
                await asyncio.wait({turn})

    def _clear_turn_stop(self) -> None:
        if self._run_stopped:
            raise LineCancelled
        self._stop = None
        self._stopping.clear()

    async def _next_prompt(self) -> Nudge | None:
        """A nudge that waits already, else what the user model says, whichever is first."""
        return self.nudges.take() or await self._said() or await self.nudges.last()

    async def _said(self) -> Nudge | None:
        """What the user model says of the turn, unless a nudge or a stop comes first."""
        leaf = await self._leaf()
        turn = TurnEnd(
            self._context.rollout,
            self._spec.number,
            leaf.id,
            self._turn,
            self._stopped,
            leaf.message,
        )
        user = asyncio.create_task(self._context.user.after_turn(turn))
        nudge = asyncio.create_task(self.nudges.come())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (user, nudge, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                self._clear_turn_stop()
                return None
            return user.result() if user.done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, session: Session) -> None:
        """Session updates become events; held text is let go when the agent pauses."""
        updates = session.updates()
        waiting = asyncio.ensure_future(anext(updates, None))
        try:
            while True:
                pause = PAUSE_SECONDS if self._stepper.holding else None
                done, _ = await asyncio.wait({waiting}, timeout=pause)
                async with self._pumping:
                    if not done:
                        await self._put(*self._stepper.flush())
                        continue
                    update = waiting.result()
                    if update is None:
                        return
                    self._tools.feed(update)
                    await self._put(*self._stepper.feed(update))
                waiting = asyncio.ensure_future(anext(updates, None))
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _settle(self, session: Session) -> None:
        """Every update received so far is an event, and the open step is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.settle):
                await session.settle()
        async with self._pumping:
            await self._put(*self._stepper.boundary())

    async def _mark(self, body: ev.Body, *, request: str = "") -> Event:
        """Close the open step and commit ``body`` behind it, with no update in between:
        a step that opened there would lose the rest of its text. With ``request``
        the stored request is settled in the same transaction."""
        draft = ev.encode(body, line=self._spec.number)
        async with self._pumping:
            await self._put(*self._stepper.boundary())
            if request:
                return (await self._context.deliver(request, draft))[-1]
            return (await self._context.recorder.commit(draft))[-1]

    async def _watch_world(self) -> None:
        if self._world.environment is not None:
            await self._world.environment.watch()

    async def _on_ask(self, ask: AskUser) -> Answer:
        """The agent's question: an event at once, then the user model's answer.

        In a line forked at this very question the answer is the one it was
        forked with, and the asked node is its parent's.
        """
        given, self._given = self._given, None
        if given is not None:
            return given
        session = self._live_session
        await self._settle(session)
        with self._tools.asking(ask.tool_call_id):
            return await self._put_question(session, ask)

    async def _put_question(self, session: Session, ask: AskUser) -> Answer:
        index, self._asks = self._asks, self._asks + 1
        context = self._context
        asked = await self._mark(
            ev.Asked(index, context.ask_form(ask), ask.tool_call_id, context.ask_seconds)
        )
        node = f"n{asked.seq}"
        where = AskContext(context.rollout, self._spec.number, node, index, context.ask_seconds)
        watch = Stopwatch()
        # The question is shown at once; only its answer waits for the capture.
        capture = asyncio.create_task(self._capture_question(session, node))
        try:
            with self._clock.paused():
                answer = await context.user.answer(ask, where)
                checkpoint = await capture
        except asyncio.CancelledError:
            capture.cancel()
            await outlast(capture)
            await self._put(
                ev.Answered(node, "cancel", {}, "", "cancelled", round(watch.seconds, 4))
            )
            raise
        except BaseException:
            capture.cancel()
            await outlast(capture)
            raise
        await self._answered(node, answer, watch.seconds)
        if checkpoint is not None and context.on_fork_point is not None:
            point = ForkPoint(checkpoint, self._spec.number, self._spec.depth, answer)
            await context.on_fork_point(point)
        return answer

    async def _answered(self, node: str, answer: Answer, seconds: float) -> None:
        content: dict[str, JsonValue] = dict(answer.content)
        body = ev.Answered(
            node, answer.action, content, answer.actor, answer.via, round(seconds, 4)
        )
        draft = ev.encode(body, line=self._spec.number)
        if answer.request:
            await self._context.deliver(answer.request, draft)
        else:
            await self._context.recorder.commit(draft)

    async def _capture_question(self, session: Session, node: str) -> Checkpoint | None:
        if not self._context.at_questions:
            return None
        busy = await self._tools.finished(DRAIN_SECONDS)
        return await self._capture(session, node, busy)

    async def _capture_turn_end(self, session: Session) -> None:
        """Capture the end of a turn, so that a nudge or a rewind can go on from here."""
        exact = self._context.agent.capabilities().at_turn in (Fidelity.EXACT, Fidelity.NATIVE)
        interactive = self._context.agent.capabilities().step_rule != "command"
        if self._context.at_turns and exact and interactive:
            leaf = await self._leaf()
            self._turn_end = await self._capture(session, leaf.id, self._tools.busy)

    async def _capture(self, session: Session, node: str, busy: str) -> Checkpoint | None:
        """A checkpoint whose record is in the log, or a note of why there is none:
        a rollout goes on without one."""
        self._epoch += 1
        try:
            async with self._still.moving():
                checkpoint = await capture(
                    self._world, session, node=node, epoch=self._epoch, busy=busy
                )
        # A full disk of the sandboxes takes a checkpoint, not the rollout; the log's own
        # disk speaks up by itself.
        except (SandboxError, EnvironmentFailed, CheckpointError, StoreFull) as error:
            note: JsonObject = {"node": node, "error": str(error)}
            await self._put(ev.SessionChanged("checkpoint_problem", note))
            return None
        await finish(self._commit(checkpointed(checkpoint)))
        return checkpoint

    async def _on_permission(self, asked: PermissionAsked) -> PermissionDecision:
        index, self._permissions = self._permissions, self._permissions + 1
        where = PermissionContext(self.number, index)
        with self._clock.paused(), self._tools.asking(asked.tool_call_id):
            decision = await self._context.permissions(asked, where)
        options: list[JsonObject] = [
            {"value": option.value, "label": option.label, "kind": option.kind}
            for option in asked.options
        ]
        await self._put(
            ev.PermissionSettled(
                asked.title,
                options,
                decision.option,
                decision.policy,
                decision.actor,
                asked.tool_call_id,
            )
        )
        return decision

    async def _verify(self, timeout: BenchFlowError | None) -> LineResult:
        """Freeze what the agent left and score it in a fresh fork."""
        self._epoch += 1
        leaf = await self._leaf()
        # A line that stopped at its fork has no node of its own; the fork's checkpoint, with
        # its session, is not to be replaced by one without.
        own = leaf.line == self.number
        keep = own and self._turn_end is None and self._context.at_turns
        verification = Verification(self._context, self._plan, self._phases, self.number)
        try:
            result = await verification.run(
                self._world, leaf, epoch=self._epoch, keep=keep, timeout=timeout
            )
        finally:
            self._result = verification.result
        return result

    async def _leaf(self) -> Node:
        tree = await self._context.tree()
        return tree.nodes[tree.lines[self._spec.number].leaf_id]

    async def _end(self, result: LineResult) -> None:
        async with self._pumping:
            await self._put(*self._stepper.boundary())
        await self._commit(ev.LineEnded(result.outcome, result.error, result.error_category))

    @property
    def _run_stopped(self) -> bool:
        return self._stop is not None and self._stop.scope == "run"

    @property
    def _limits(self) -> Deadlines:
        return self._plan.deadlines

    @property
    def _world(self) -> World:
        if self._own_world is None:
            raise SandboxLost("this line has no world yet", remedy="Run the rollout again")
        return self._own_world

    @property
    def _live_session(self) -> Session:
        if self._session is None:
            raise SandboxLost("this line has no session", remedy="Run the rollout again")
        return self._session

    async def _put(self, *bodies: ev.Body) -> None:
        for body in bodies:
            await self._context.recorder.put(ev.encode(body, line=self._spec.number))

    async def _commit(self, *bodies: ev.Body) -> tuple[Event, ...]:
        drafts = [ev.encode(body, line=self._spec.number) for body in bodies]
        return await self._context.recorder.commit(*drafts)
