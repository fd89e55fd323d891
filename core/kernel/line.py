"""One line of a rollout: connect, execute, quiesce, verify.

A line owns one world and one agent session. Everything it does is an event of
its line; it never touches another line. The agent's clock stands still while a
user thinks, and the end of a turn is an event, never a poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from core.contracts.agent import (
    Agent,
    AgentExit,
    Answer,
    AskUser,
    PermissionAsked,
    PermissionDecision,
    PermissionHandler,
    Role,
    Session,
)
from core.contracts.errors import (
    AgentTimeout,
    BenchFlowError,
    Fenced,
    SandboxError,
    SandboxLost,
    StoreError,
    VerifierError,
)
from core.contracts.reward import Reward, RolloutNode, VerifyResult
from core.contracts.sandbox import Sandbox, SandboxImage
from core.contracts.store import Event, EventDraft, Recorder
from core.contracts.user import AskContext, Nudge, TurnEnd, UserModel
from core.contracts.values import JsonObject, JsonValue, Outcome, Phase, StopReason
from core.kernel import events as ev
from core.kernel.clock import AgentClock, Stopwatch
from core.kernel.finish import deadline, finish
from core.kernel.phases import LineCancelled, Phases
from core.kernel.steps import Stepper
from core.kernel.tree import Tree
from core.kernel.world import Deadlines, World, scratch_world

PAUSE_SECONDS = 0.1
"""Text is held this long for more of it to come before it becomes an event."""

Forker = Callable[[RolloutNode], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class LineContext:
    """What all lines of a rollout share."""

    rollout: str
    agent: Agent
    user: UserModel
    reward: Callable[[Forker], Reward]
    """Builds the scorer, given how to fork a node's frozen world."""
    permissions: PermissionHandler
    recorder: Recorder
    deliver: Callable[[str, EventDraft], Awaitable[tuple[Event, ...]]]
    """Settles a stored request and appends its event in one transaction."""
    tree: Callable[[], Awaitable[Tree]]
    """The tree as committed so far."""
    instruction: str
    agent_seconds: float | None = None
    ask_seconds: float | None = None
    ask_form: Callable[[AskUser], JsonObject] = field(
        default=lambda ask: {"question": ask.question}
    )
    max_turns: int = 50


@dataclass(frozen=True, slots=True)
class LineSpec:
    """Where a line grows from and why."""

    number: int
    parent: str | None = None
    continuation: JsonObject = field(default_factory=dict)
    fidelity: str = "none"
    origin: str = "main"
    seed: int = 0
    main: bool = True
    assisted: bool = False


@dataclass(frozen=True, slots=True)
class LineResult:
    outcome: Outcome
    verdict: VerifyResult | None = None
    error: str | None = None
    error_category: str | None = None
    infrastructure: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants this line, or its turn, to end."""

    scope: Literal["turn", "run"]
    actor: str
    via: str


class LineRun:
    """Drives one line to its end."""

    def __init__(self, context: LineContext, spec: LineSpec, world: World) -> None:
        self._context = context
        self._spec = spec
        self._world = world
        self._phases = Phases(context.recorder, line=spec.number)
        self._stepper = Stepper(context.agent.capabilities().step_rule)
        self._clock = AgentClock(context.agent_seconds)
        self._session: Session | None = None
        self._pumping = asyncio.Lock()
        self._stop: Stop | None = None
        self._stopping = asyncio.Event()
        self._nudges: asyncio.Queue[Nudge] = asyncio.Queue()
        self._asks = 0
        self._turn = 0
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
    def result(self) -> LineResult | None:
        """How it ended; set as soon as there is a verdict, which nothing takes back."""
        return self._result

    def stop(self, stop: Stop) -> None:
        """Ask the line to end its turn, or to end altogether. Returns at once."""
        if not self._run_stopped:
            self._stop = stop
        self._stopping.set()

    def nudge(self, nudge: Nudge) -> None:
        """Queue a follow-up; it becomes the next prompt when the turn ends."""
        self._nudges.put_nowait(nudge)

    async def run(self) -> LineResult:
        """Live the line. Deliberate errors become its typed outcome; only
        cancellation, Fenced and programming errors leave this method."""
        try:
            await finish(self._commit(_started(self._spec)))
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
            self._session = await self._context.agent.connect(
                self._world.sandbox, Role(seed=self._spec.seed)
            )
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
        if self._session is not None:
            async with deadline(self._limits.settle * 2, SandboxLost, "ending the agent"):
                self.exit = await self._session.close()

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
                watch.cancel()
                await self._settle(session)
                pump.cancel()

    async def _turns(self, session: Session) -> None:
        prompt = Nudge(self._context.instruction, actor="task", via="task")
        origin = "task"
        while True:
            self._turn += 1
            began = Stopwatch()
            await self._prompted(prompt, origin)
            stop = await self._one_turn(session, prompt.text)
            await self._settle(session)
            await self._mark(ev.TurnEnded(stop, self._turn, round(began.seconds, 4)))
            if self._run_stopped:
                raise LineCancelled
            if stop is StopReason.TIMEOUT:
                raise AgentTimeout(
                    f"the agent used up its {self._context.agent_seconds:g} s",
                    remedy="Raise agent.timeout_sec in task.md, or --timeout",
                )
            following = await self._next_prompt(stop)
            if following is None or self._turn >= self._context.max_turns:
                return
            prompt, origin = following, "nudge"

    async def _prompted(self, prompt: Nudge, origin: str) -> None:
        body = ev.Prompted(prompt.text, origin, prompt.actor, prompt.via, turn=self._turn)
        await self._mark(body, request=prompt.request)

    async def _one_turn(self, session: Session, text: str) -> StopReason:
        """One prompt up to its stop reason, a person's stop, or the time limit."""
        self._clear_turn_stop()
        turn = asyncio.create_task(session.prompt(text))
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

    async def _next_prompt(self, stop: StopReason) -> Nudge | None:
        """A nudge that waits already, else what the user model says, whichever is first."""
        if not self._nudges.empty():
            return self._nudges.get_nowait()
        tree = await self._context.tree()
        leaf = tree.nodes[tree.lines[self._spec.number].leaf_id]
        turn = TurnEnd(
            self._context.rollout,
            self._spec.number,
            leaf.id,
            self._turn,
            stop,
            leaf.message,
        )
        user = asyncio.create_task(self._context.user.after_turn(turn))
        nudge = asyncio.create_task(self._nudges.get())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (user, nudge, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                self._clear_turn_stop()
                return None
            return nudge.result() if nudge.done() else user.result()
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
        watch = getattr(self._world.environment, "watch", None)
        if watch is not None:
            await watch()

    async def _on_ask(self, ask: AskUser) -> Answer:
        """The agent's question: an event at once, then the user model's answer."""
        session = self._live_session
        await self._settle(session)
        index, self._asks = self._asks, self._asks + 1
        context = self._context
        asked = await self._mark(
            ev.Asked(index, context.ask_form(ask), ask.tool_call_id, context.ask_seconds)
        )
        node = f"n{asked.seq}"
        where = AskContext(context.rollout, self._spec.number, node, index, context.ask_seconds)
        watch = Stopwatch()
        try:
            with self._clock.paused():
                answer = await context.user.answer(ask, where)
        except asyncio.CancelledError:
            await self._put(
                ev.Answered(node, "cancel", {}, "", "cancelled", round(watch.seconds, 4))
            )
            raise
        content: dict[str, JsonValue] = dict(answer.content)
        body = ev.Answered(
            node, answer.action, content, answer.actor, answer.via, round(watch.seconds, 4)
        )
        draft = ev.encode(body, line=self._spec.number)
        if answer.request:
            await context.deliver(answer.request, draft)
        else:
            await context.recorder.commit(draft)
        return answer

    async def _on_permission(self, asked: PermissionAsked) -> PermissionDecision:
        with self._clock.paused():
            decision = await self._context.permissions(asked)
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
        image: SandboxImage | None = None
        try:
            async with self._phases.phase(Phase.QUIESCE, limit=self._limits.quiesce) as watch:
                image = await self._quiesce(watch)
            async with self._phases.phase(Phase.VERIFY, limit=self._limits.verify) as watch:
                tree = await self._context.tree()
                leaf = tree.nodes[tree.lines[self._spec.number].leaf_id]
                reward = self._context.reward(self._forker(image))
                verdict = await self._score(reward, leaf)
            self._result = LineResult(
                Outcome.SCORED,
                verdict,
                error=str(timeout) if timeout else None,
                error_category=timeout.category if timeout else None,
            )
            await finish(self._commit(_scored(leaf.id, verdict, watch.seconds)))
            return self._result
        finally:
            if image is not None:
                await finish(self._discard(image))

    async def _discard(self, image: SandboxImage) -> None:
        """Forget the frozen state. One that stays takes nothing from the verdict: it
        is noted, and is the reaper's."""
        provider = self._world.plan.provider
        try:
            async with deadline(self._limits.teardown, SandboxError, "discarding the snapshot"):
                await provider.discard(image)
        except SandboxError as error:
            await self._note_problem(error)

    async def _note_problem(self, error: BenchFlowError) -> None:
        await self._put(ev.SessionChanged("teardown_problem", {"error": str(error)}))

    async def _score(self, reward: Reward, leaf: RolloutNode) -> VerifyResult:
        try:
            return await reward.score(leaf)
        except VerifierError as error:
            logs: JsonObject = dict(error.logs)
            await self._commit(ev.ScoringFailed(leaf.id, str(error), error.category, logs))
            raise

    async def _quiesce(self, watch: Stopwatch) -> SandboxImage:
        world = self._world
        with watch.part("drain"):
            world.sandbox.relay.fence()
            await world.sandbox.relay.drain(2.0)
        if world.environment is not None:
            with watch.part("flush"):
                await world.environment.flush(0)
        with watch.part("stop_services"):
            await world.stop_services()
        with watch.part("capture"):
            return await world.sandbox.snapshot(retire=True)

    def _forker(self, image: SandboxImage) -> Forker:
        plan = self._world.plan

        @asynccontextmanager
        async def fork(node: RolloutNode) -> AsyncIterator[Sandbox]:
            async with scratch_world(plan, image, self._note_problem) as world:
                yield world.sandbox

        return fork

    async def _end(self, result: LineResult) -> None:
        async with self._pumping:
            await self._put(*self._stepper.boundary())
        await self._commit(ev.LineEnded(result.outcome, result.error, result.error_category))

    @property
    def _run_stopped(self) -> bool:
        return self._stop is not None and self._stop.scope == "run"

    @property
    def _limits(self) -> Deadlines:
        return self._world.plan.deadlines

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


def _started(spec: LineSpec) -> ev.LineStarted:
    return ev.LineStarted(
        parent=spec.parent,
        continuation=spec.continuation,
        fidelity=spec.fidelity,
        origin=spec.origin,
        seed=spec.seed,
        main=spec.main,
        assisted=spec.assisted,
    )


def _scored(node: str, verdict: VerifyResult, seconds: float) -> ev.Scored:
    events: list[JsonObject] = [
        {
            "source": event.source,
            "value": event.value,
            "space": event.space,
            "granularity": event.granularity,
            "node": event.node,
            "reason": event.reason,
        }
        for event in verdict.events
    ]
    items: JsonObject = dict(verdict.items)
    return ev.Scored(
        node=node,
        reward=verdict.reward,
        items=items,
        events=events,
        space=verdict.space,
        granularity=verdict.granularity,
        range=list(verdict.range),
        verifier_digest=verdict.verifier_digest,
        hardened=verdict.hardened,
        raw=verdict.raw,
        seconds=round(seconds, 4),
        logs=dict(verdict.logs),
    )
