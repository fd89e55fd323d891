"""A rollout in memory: recorder, reward, and everything wired together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.contracts.agent import PermissionAsked, PermissionDecision
from core.contracts.environment import Environment
from core.contracts.errors import BenchFlowError, Fenced, StoreError
from core.contracts.reward import RolloutNode, VerifyResult
from core.contracts.sandbox import SandboxSpec
from core.contracts.store import Event, EventDraft, Ownership
from core.contracts.user import Nudge
from core.kernel import events as ev
from core.kernel.replay import fold
from core.kernel.rollout import RolloutFacts, RolloutRun, Takeover
from core.kernel.spec import Forker, LineContext, PermissionContext
from core.kernel.tree import Tree
from core.kernel.world import Deadlines, WorldPlan
from tests.fakes.kernel_agent import FakeAgent, FakeUser, Turn, helpful
from tests.fakes.kernel_points import Points
from tests.fakes.kernel_world import FakeEnvironment, FakeProvider

SHORT = Deadlines(
    sandbox=5, environment=5, readiness=5, connect=5, quiesce=5, verify=5, teardown=5, settle=5
)
"""Long enough that only a hang reaches them; a test of one deadline makes that one tiny."""


class MemoryRecorder:
    """A log in a list. What was ``put`` is committed by the next ``commit``."""

    def __init__(self, own: Ownership, events: list[Event] | None = None) -> None:
        self._own = own
        self.events = events if events is not None else []
        self._queue: list[EventDraft] = []
        self.broken: StoreError | None = None
        self.refused = 0
        """Writes that were tried after the log broke."""
        self.fence_at: str | None = None
        """Kind of the draft whose write breaks the log,"""
        self.fence_with: StoreError = Fenced("another engine took this rollout over")
        """with this error."""

    @property
    def ownership(self) -> Ownership:
        return self._own

    async def put(self, draft: EventDraft) -> None:
        # As in a real recorder, others run before and after the event takes its place.
        await asyncio.sleep(0)
        self._check(draft)
        self._queue.append(draft)
        await asyncio.sleep(0)

    async def commit(self, *drafts: EventDraft) -> tuple[Event, ...]:
        await asyncio.sleep(0)
        for draft in drafts:
            self._check(draft)
        if not drafts and self.broken is not None:
            raise self.broken
        self._queue.extend(drafts)
        await asyncio.sleep(0)
        queued, self._queue = self._queue, []
        for draft in queued:
            self.events.append(self._number(draft))
        return tuple(self.events[len(self.events) - len(drafts) :]) if drafts else ()

    async def close(self) -> None:
        await self.commit()

    def _check(self, draft: EventDraft) -> None:
        if self.broken is not None:
            self.refused += 1
            raise self.broken
        if draft.kind == self.fence_at:
            self.broken = self.fence_with
            raise self.broken

    def _number(self, draft: EventDraft) -> Event:
        same = [
            event
            for event in self.events
            if event.line == draft.line and event.attempt == self._own.attempt
        ]
        return Event(
            rollout=self._own.rollout,
            seq=len(self.events) + 1,
            term=self._own.term,
            attempt=self._own.attempt,
            line=draft.line,
            line_seq=len(same) + 1,
            kind=draft.kind,
            version=draft.version,
            at=1000.0 + len(self.events),
            payload=draft.payload,
        )


class FakeReward:
    """Scores 1 in a fresh fork, at the point ``score``."""

    digest = "sha256:reward"

    def __init__(self, points: Points, forker: Forker) -> None:
        self._points = points
        self._forker = forker

    async def score(self, node: RolloutNode) -> VerifyResult:
        async with self._forker(node):
            await self._points.reach("score")
        return VerifyResult(1.0, items={"done": 1.0}, raw="1.0", verifier_digest=self.digest)


@dataclass
class Case:
    """One rollout and everything that it could leave behind."""

    points: Points
    run: RolloutRun
    recorder: MemoryRecorder
    provider: FakeProvider
    agent: FakeAgent
    user: FakeUser
    services: set[int]
    delivered: list[str]

    def tree(self) -> Tree:
        return fold(self.recorder.events)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.recorder.events]

    def bodies(self, kind: str) -> list[ev.Body]:
        return [
            ev.decode(event.kind, event.version, event.payload)
            for event in self.recorder.events
            if event.kind == kind
        ]

    def phases(self) -> dict[str, str]:
        """Phase to its outcome, in the order they ended."""
        return {
            str(event.payload["phase"]): str(event.payload["outcome"])
            for event in self.recorder.events
            if event.kind == "phase_ended"
        }

    def left_behind(self) -> list[str]:
        """Everything still there: sandboxes, images, services, agents, tasks."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return [
            *sorted(self.provider.alive),
            *sorted(self.provider.images),
            *(f"service {one}" for one in self.services),
            *(f"agent {one}" for one in self.agent.alive),
            *(f"task {task.get_name()}: {task.get_coro()}" for task in tasks),
        ]


def make_case(
    *turns: Turn,
    points: Points | None = None,
    deadlines: Deadlines = SHORT,
    agent_seconds: float | None = None,
    nudges: Sequence[Nudge] = (),
    request: str = "",
    deaf: bool = False,
    environment: bool = True,
    environment_error: BenchFlowError | None = None,
    takeover: Takeover | None = None,
    events: list[Event] | None = None,
    max_turns: int = 50,
    at_questions: bool = False,
) -> Case:
    """Wire a rollout of ``turns`` (default: one helpful turn) to fakes."""
    points = points or Points()
    own = Ownership("r1", "engine-1", term=1, attempt=1)
    if takeover is not None:
        own = replace(own, engine="engine-2", term=2, attempt=2)
    recorder = MemoryRecorder(own, events)
    provider = FakeProvider(points)
    agent = FakeAgent(points, turns or (helpful,), deaf=deaf)
    user = FakeUser(points, nudges, request)
    services: set[int] = set()
    delivered: list[str] = []

    async def deliver(request: str, draft: EventDraft) -> tuple[Event, ...]:
        delivered.append(request)
        return await recorder.commit(draft)

    async def permissions(asked: PermissionAsked, where: PermissionContext) -> PermissionDecision:
        await points.reach("permission")
        return PermissionDecision(asked.options[0].value, policy="auto", actor="auto")

    async def tree() -> Tree:
        return fold(recorder.events)

    def make_environment() -> Environment:
        if environment_error is not None:
            raise environment_error
        return FakeEnvironment(points, services)

    plan = WorldPlan(
        provider,
        SandboxSpec("task"),
        make_environment if environment else None,
        deadlines=deadlines,
    )
    context = LineContext(
        rollout="r1",
        agent=agent,
        user=user,
        reward=lambda forker: FakeReward(points, forker),
        permissions=permissions,
        recorder=recorder,
        deliver=deliver,
        tree=tree,
        instruction="Do the task.",
        agent_seconds=agent_seconds,
        max_turns=max_turns,
        at_questions=at_questions,
    )
    facts = RolloutFacts("desk", "sha256:task", "fake", "fake", "fake", {"path": "desk"})
    run = RolloutRun(facts, plan, context, takeover=takeover)
    return Case(points, run, recorder, provider, agent, user, services, delivered)
