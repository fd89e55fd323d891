"""Verification: what the agent left is frozen, and scored in a fresh fork of it.

A verdict counts from the moment it is known: neither a cancellation nor a
frozen state that cannot be removed takes it back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.contracts.errors import BenchFlowError, SandboxError, VerifierError
from core.contracts.reward import RolloutNode
from core.contracts.sandbox import Sandbox, SandboxImage
from core.contracts.values import JsonObject, Outcome, Phase
from core.kernel import events as ev
from core.kernel.checkpoint import capture_retired
from core.kernel.finish import deadline, finish
from core.kernel.phases import Phases
from core.kernel.spec import Forker, LineContext, LineResult, checkpointed, scored
from core.kernel.tree import Node
from core.kernel.world import World, WorldPlan, scratch_world


class Verification:
    """The last two phases of one line."""

    def __init__(self, context: LineContext, plan: WorldPlan, phases: Phases, line: int) -> None:
        self._context = context
        self._plan = plan
        self._phases = phases
        self._line = line
        self.result: LineResult | None = None
        """Set as soon as there is a verdict."""

    async def run(
        self,
        world: World,
        leaf: Node,
        *,
        epoch: int,
        keep: bool,
        timeout: BenchFlowError | None,
    ) -> LineResult:
        """Score ``leaf`` on what ``world`` holds; the world is given up.

        With ``keep`` the frozen state becomes the leaf's checkpoint, so that it
        can be scored again. ``timeout`` is noted on the result: what an agent
        left when its time was up is scored all the same.
        """
        kept = False
        image: SandboxImage | None = None
        limits = self._plan.deadlines
        try:
            async with self._phases.phase(Phase.QUIESCE, limit=limits.quiesce) as watch:
                checkpoint = await capture_retired(world, node=leaf.id, epoch=epoch, watch=watch)
            image = checkpoint.image
            if keep:
                await finish(self._commit(checkpointed(checkpoint)))
                kept = True
            try:
                async with self._phases.phase(Phase.VERIFY, limit=limits.verify) as watch:
                    verdict = await self._context.reward(self._forker(image)).score(leaf)
            except VerifierError as error:
                logs: JsonObject = dict(error.logs)
                await self._commit(ev.ScoringFailed(leaf.id, str(error), error.category, logs))
                raise
            self.result = LineResult(
                Outcome.SCORED,
                verdict,
                error=str(timeout) if timeout else None,
                error_category=timeout.category if timeout else None,
            )
            await finish(self._commit(scored(leaf.id, verdict, watch.seconds)))
            return self.result
        finally:
            if image is not None and not kept:
                await finish(self._discard(image))

    def _forker(self, image: SandboxImage) -> Forker:
        @asynccontextmanager
        async def fork(node: RolloutNode) -> AsyncIterator[Sandbox]:
            async with scratch_world(self._plan, image, self._note_problem) as world:
                yield world.sandbox

        return fork

    async def _discard(self, image: SandboxImage) -> None:
        """Forget the frozen state. One that stays takes nothing from the verdict: it
        is noted, and is for `bench gc`."""
        limit = self._plan.deadlines.teardown
        try:
            async with deadline(limit, SandboxError, "discarding the snapshot"):
                await self._plan.provider.discard(image)
        except SandboxError as error:
            await self._note_problem(error)

    async def _note_problem(self, error: BenchFlowError) -> None:
        note = ev.SessionChanged("teardown_problem", {"error": str(error)})
        await self._context.recorder.put(ev.encode(note, line=self._line))

    async def _commit(self, body: ev.Body) -> None:
        await self._context.recorder.commit(ev.encode(body, line=self._line))
