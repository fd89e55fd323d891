"""Children: the lines that a branch starts, run in parallel, each in its own world.

The parent's world is untouched; a child that fails takes nothing from its
siblings. Every child is in the log, with its line, before anything of it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from core.contracts.environment import Environment
from core.contracts.errors import BenchFlowError, Conflict, EnvironmentFailed, SandboxError
from core.contracts.sandbox import Sandbox
from core.contracts.user import Nudge
from core.contracts.values import Phase
from core.kernel import events as ev
from core.kernel.branch import Continuation, fidelity_of
from core.kernel.checkpoint import Checkpoint, same_epoch
from core.kernel.finish import finish
from core.kernel.line import LineRun
from core.kernel.phases import LineCancelled, Phases
from core.kernel.spec import LineContext, LineResult, LineSpec, Stop
from core.kernel.tree import Node
from core.kernel.world import World, WorldPlan, fork_world

Slot = Callable[[int], AbstractAsyncContextManager[None]]
"""A place to run the line of that number; entered before its world is forked."""


def no_limit(line: int) -> AbstractAsyncContextManager[None]:
    """Every line at once."""
    return nullcontext()


class Children:
    """The child lines of one rollout, from their start to their end.

    ``wait`` returns once every child, those started meanwhile too, has ended.
    """

    def __init__(
        self,
        context: LineContext,
        plan: WorldPlan,
        *,
        first_number: int,
        slot: Slot = no_limit,
    ) -> None:
        self._context = context
        self._plan = plan
        self._next = first_number
        self._slot = slot
        self._tasks: set[asyncio.Task[LineResult]] = set()
        self._lines: dict[int, LineRun] = {}
        self._proofs: dict[str, Proof] = {}
        self._stopping = False
        self._over = False
        self.results: dict[int, LineResult] = {}

    def start(
        self,
        checkpoint: Checkpoint,
        node: Node,
        continuations: Sequence[Continuation],
        *,
        seed: int = 0,
        depth: int = 1,
        assisted: bool = False,
        main: bool = False,
    ) -> list[int]:
        """Begin one child per continuation; their line numbers, at once.

        With ``main`` the child becomes the main line as it begins. Raises Conflict once
        ``wait`` or ``end`` has returned: nobody would wait for these.
        """
        if self._over:
            raise Conflict(
                "the rollout is ending",
                where=f"rollout {self._context.rollout}",
                remedy="Branch it once it has ended",
            )
        numbers = []
        for item in continuations:
            number, self._next = self._next, self._next + 1
            spec = replace(_spec(checkpoint, node, item, number, seed, depth, assisted), main=main)
            line = LineRun(
                self._context, spec, self._plan, self._bring_up_for(checkpoint, spec.seed)
            )
            self._lines[number] = line
            task = asyncio.create_task(self._run(number, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            numbers.append(number)
        return numbers

    def line(self, number: int) -> LineRun | None:
        """A child that still runs."""
        return self._lines.get(number)

    @property
    def running(self) -> tuple[LineRun, ...]:
        return tuple(self._lines.values())

    @property
    def made(self) -> int:
        """Lines that the rollout has, those included that are not in the log yet."""
        return self._next

    def stop(self, stop: Stop) -> None:
        """End every child: by asking its agent in a turn, else by cancelling it."""
        self._stopping = self._stopping or stop.scope == "run"
        for line in self._lines.values():
            line.stop(stop)
        if stop.scope == "run":
            for task in self._tasks:
                task.cancel()

    async def wait(self) -> None:
        """Until all have ended. Raises what is no outcome: Fenced, or a fault of ours."""
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        self._over = True

    async def end(self) -> None:
        """Cancel what still runs, and wait until nothing of it is left."""
        self._stopping = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._over = True

    async def _run(self, number: int, line: LineRun) -> LineResult:
        try:
            async with self._slot(number):
                try:
                    result = await line.run()
                finally:
                    await finish(self._remove(number, line))
            self.results[number] = result
            return result
        finally:
            self._lines.pop(number, None)

    async def _remove(self, number: int, line: LineRun) -> None:
        if line.world is None:
            return
        try:
            await line.world.teardown()
        except (SandboxError, EnvironmentFailed) as error:
            note = ev.SessionChanged("teardown_problem", {"error": str(error)})
            with contextlib.suppress(BenchFlowError):
                await self._context.recorder.put(ev.encode(note, line=number))

    def _bring_up_for(
        self, checkpoint: Checkpoint, seed: int
    ) -> Callable[[Phases], Awaitable[World]]:
        proof = self._proofs.setdefault(checkpoint.id, Proof(checkpoint))

        async def bring_up(phases: Phases) -> World:
            if self._stopping:
                raise LineCancelled
            async with phases.phase(Phase.SANDBOX, limit=None):
                return await fork_world(self._plan, checkpoint.image, seed=seed, check=proof.check)

        return bring_up


class Proof:
    """That a checkpoint's files are the captured state. Frozen layers do not change, so
    one fork proves it for its siblings."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._state = checkpoint.state
        self._epoch = checkpoint.epoch
        self._lock = asyncio.Lock()
        self._proven = checkpoint.state is None

    async def check(self, environment: Environment, sandbox: Sandbox) -> None:
        """Raises CheckpointError for a record of two epochs, StateError when the fork
        holds another state."""
        async with self._lock:
            if not self._proven and self._state is not None:
                same_epoch(self._state, self._epoch)
                await environment.prove(sandbox, self._state)
                self._proven = True


def _spec(
    checkpoint: Checkpoint,
    node: Node,
    item: Continuation,
    number: int,
    seed: int,
    depth: int,
    assisted: bool,
) -> LineSpec:
    told = item.kind in ("nudge", "edit")
    return LineSpec(
        number=number,
        parent=node.id,
        continuation=item.to_json(),
        fidelity=fidelity_of(checkpoint, node, item.kind).value,
        origin=item.origin,
        seed=child_seed(seed, number),
        main=False,
        assisted=assisted or told,
        session=None if item.kind == "edit" else checkpoint.session,
        answer=item.answer if item.kind == "answer" else None,
        prompt=Nudge(item.text, item.actor, item.via) if told else None,
        turn=node.turn,
        asks=sum(step.kind == "ask" for step in node.path),
        depth=depth,
    )


def child_seed(seed: int, line: int) -> int:
    """A seed of its own for every line: copied randomness would make children identical."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{line}".encode()).digest()[:4], "big")
