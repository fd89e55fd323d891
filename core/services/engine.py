"""Engine: the process that owns rollouts while it lives.

It registers, beats, runs each rollout it owns with a recorder of its own, takes
the commands that anybody sends to them, and seals what has ended. A command
that comes too late is answered as such, never dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from core.contracts.errors import BenchFlowError, Conflict, Fenced, StoreError, UsageError
from core.contracts.sandbox import SandboxProvider
from core.contracts.store import CommandRecord, Ownership, RolloutState
from core.contracts.values import JsonObject, Outcome
from core.exports.view import is_verifier_error
from core.kernel import events as ev
from core.kernel.children import Children, Slot
from core.kernel.finish import finish
from core.kernel.rollout import RolloutRun, Takeover
from core.kernel.spec import ForkPoint, LineResult
from core.kernel.tree import Tree
from core.services.assemble import Prepared, line_context, load_tree
from core.services.branching import auto_brancher
from core.services.projection import RowKeeper
from core.services.sealing import seal
from core.services.serving import BESIDE, Grown, Live, carry_out
from core.services.toolbox import Toolbox

LINES_AT_ONCE = 8
"""Lines of one rollout that run at the same time, its main line not counted."""

BEAT_SECONDS = 3.0
_FINISH_SECONDS = 60.0

_STATES = {
    Outcome.SCORED: RolloutState.SCORED,
    Outcome.FAILED: RolloutState.FAILED,
    Outcome.CANCELLED: RolloutState.CANCELLED,
    Outcome.INTERRUPTED: RolloutState.INTERRUPTED,
}


@dataclass(eq=False, slots=True)
class _Ended:
    result: LineResult = field(default_factory=lambda: LineResult(Outcome.INTERRUPTED))
    at: float | None = None
    """When, if not now."""


@dataclass(eq=False, slots=True)
class Engine:
    """One engine row and what it runs. Use ``engine()`` to open one."""

    tools: Toolbox
    id: str
    _providers: dict[str, SandboxProvider] = field(default_factory=dict)
    _warmed: set[str] = field(default_factory=set)
    _warm: AsyncExitStack = field(default_factory=AsyncExitStack)

    def provider(self, name: str) -> SandboxProvider:
        """The sandbox provider of that name, labelled with this store and engine."""
        if name not in self._providers:
            make = self.tools.sandboxes.get(name)
            if make is None:
                known = ", ".join(sorted(self.tools.sandboxes))
                raise UsageError(f"no sandbox is called {name!r}", remedy=f"Use one of {known}")
            self._providers[name] = make({"store": str(self.tools.home), "engine": self.id})
        return self._providers[name]

    async def warm(self, name: str) -> None:
        """Keep what the provider starts quickly from until this engine ends, if it has such."""
        provider = self.provider(name)
        if name not in self._warmed and isinstance(provider, AbstractAsyncContextManager):
            self._warmed.add(name)
            await self._warm.enter_async_context(provider)

    async def cool(self) -> None:
        await self._warm.aclose()

    async def run(
        self, own: Ownership, prepared: Prepared, takeover: Takeover | None = None
    ) -> LineResult:
        """Run an owned rollout to its end and seal it. Raises what is not an outcome."""
        keeper = await self._start(own)
        policy = prepared.config.policy
        held: list[RolloutRun] = []

        async def branch(point: ForkPoint) -> None:
            at = auto_brancher(
                policy,
                held[0].children,
                lambda: load_tree(self.tools, own.rollout),
                seed=prepared.facts.seed,
            )
            await at(point)

        context = line_context(self.tools, prepared, keeper, branch if policy.active else None)
        run = RolloutRun(
            prepared.facts, prepared.plan, context, takeover=takeover, slot=self._line_slot()
        )
        held.append(run)
        live = Live(own, prepared, context.user, run, keeper)
        async with self._attended(live) as ended:
            try:
                ended.result = await run.run()
            except BaseException:
                ended.result = await finish(self._as_logged(own))
                raise
        return ended.result

    async def _as_logged(self, own: Ownership) -> LineResult:
        """How the log says it ended, for a row that must not say otherwise."""
        with contextlib.suppress(StoreError):
            return outcome_of(await load_tree(self.tools, own.rollout))
        return LineResult(Outcome.INTERRUPTED)

    async def grow(
        self,
        own: Ownership,
        prepared: Prepared,
        work: Callable[[Grown], Awaitable[None]],
        *,
        actor: str,
        why: str,
        ended_at: float | None = None,
    ) -> None:
        """Let a rollout that had ended grow: ``work`` may start children, all are awaited.

        Its result stays what it was, unless its main line's leaf gets a new verdict;
        and ``ended_at``, where given, when it ended. Raises what ``work`` raised.
        """
        # What was sent while nobody owned it was meant for the run that is over.
        await self.refuse_late(own, "the rollout had already ended")
        keeper = await self._start(own)
        tree = await load_tree(self.tools, own.rollout, whole=True)
        keeper.counted(sum(node.kind == "step" for node in tree.nodes.values()))
        before = outcome_of(tree)
        await keeper.commit(ev.encode(ev.Reopened(self.id, actor, why), line=tree.main))
        context = line_context(self.tools, prepared, keeper)
        children = Children(
            context,
            prepared.plan,
            first_number=max(tree.lines, default=-1) + 1,
            slot=self._line_slot(),
        )
        begun = asyncio.Event()
        begun.set()
        grown = Grown(tree, context, children, begun)
        async with self._attended(Live(own, prepared, context.user, grown, keeper)) as ended:
            ended.result, ended.at = before, ended_at
            try:
                await work(grown)
                await children.wait()
            finally:
                await finish(children.end())
                after = await load_tree(self.tools, own.rollout)
                # A line that became the main one stands for itself.
                moved = after.main != tree.main
                ended.result = line_result(after) if moved else outcome_of(after, before)
                body = ev.RolloutEnded(
                    ended.result.outcome,
                    ended.result.error,
                    ended.result.error_category,
                    tree.seconds or 0.0,
                )
                await finish(keeper.commit(ev.encode(body, line=after.main)))

    async def _start(self, own: Ownership) -> RowKeeper:
        await self.tools.store.rollouts.update(own, state=RolloutState.RUNNING.value)
        return self.keeper(own)

    def keeper(self, own: Ownership) -> RowKeeper:
        """The recorder of an owned rollout, which keeps its row in the list up to date."""
        return RowKeeper(self.tools.store.log.recorder(own), self.tools.store.rollouts)

    def _line_slot(self) -> Slot:
        """Lines of one rollout run at once up to ``LINES_AT_ONCE``."""
        gate = asyncio.Semaphore(LINES_AT_ONCE)

        @asynccontextmanager
        async def slot(line: int) -> AsyncIterator[None]:
            async with gate:
                yield

        return slot

    @asynccontextmanager
    async def _attended(self, live: Live) -> AsyncIterator[_Ended]:
        """Take commands and keep the row while the body runs; then leave it final."""
        ended = _Ended()
        commands = asyncio.create_task(self._commands(live))
        keeping = asyncio.create_task(live.keeper.keep())
        try:
            yield ended
        finally:
            for task in (commands, keeping):
                task.cancel()
            await asyncio.gather(commands, keeping, return_exceptions=True)
            await self.close(live.own, live.keeper, ended.result, ended_at=ended.at)

    async def close(
        self,
        own: Ownership,
        keeper: RowKeeper,
        result: LineResult,
        *,
        ended_at: float | None = None,
    ) -> None:
        """Leave a final, sealed, unowned rollout; every step can be done again.

        ``ended_at`` is when it ended, where that was not now.
        """
        store = self.tools.store
        with contextlib.suppress(Fenced):
            async with asyncio.timeout(_FINISH_SECONDS):
                await keeper.close()
                await keeper.flush()
                await store.requests.withdraw(own)
                state = _STATES.get(result.outcome, RolloutState.FAILED)
                await store.rollouts.update(
                    own,
                    state=state.value,
                    reward=result.verdict.reward if result.verdict else None,
                    error=result.error,
                    error_category=result.error_category,
                    **({} if ended_at is None else {"ended_at": ended_at}),
                )
                await self.refuse_late(own, f"the rollout had already ended ({state.value})")
                await seal(self.tools, own)
                await store.rollouts.release(own)

    async def _commands(self, live: Live) -> None:
        await live.run.begun.wait()
        async with asyncio.TaskGroup() as beside:
            async for command in self.tools.store.commands.pending(live.own):
                if command.verb in BESIDE:
                    beside.create_task(self._serve(command, live))
                else:
                    await finish(self._serve(command, live))

    async def _serve(self, command: CommandRecord, live: Live) -> None:
        try:
            await carry_out(self.tools, command, live)
        except Fenced:
            raise
        except Exception as error:  # the outermost loop: one command never silences the owner
            # A command that was done before the error says so; then nothing is left to answer.
            with contextlib.suppress(Conflict):
                problem = error_json(error)
                await self.tools.store.commands.finish(live.own, command.id, error=problem)

    async def refuse_late(self, own: Ownership, why: str) -> None:
        """Answer what was sent to a rollout and came too late."""
        commands = self.tools.store.commands
        while (late := await commands.take(own, again=True)) is not None:
            error = Conflict(
                why,
                where=f"rollout {own.rollout}",
                remedy="See it with `bench show`",
            )
            await commands.finish(own, late.id, error=error_json(error))


@asynccontextmanager
async def engine(tools: Toolbox) -> AsyncIterator[Engine]:
    """Register this process as an engine, keep its heart beating, deregister at the end."""
    store = tools.store
    identity = await store.engines.register()

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with contextlib.suppress(StoreError):
                await store.engines.beat(identity)

    beating = asyncio.create_task(beat())
    host = Engine(tools, identity)
    try:
        yield host
    finally:
        await finish(host.cool())
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await store.engines.deregister(identity)


def line_result(tree: Tree) -> LineResult:
    """How the main line itself ended, whatever the rollout's result was before."""
    line = tree.main_line
    if line is None or line.outcome is None:
        return LineResult(Outcome.INTERRUPTED)
    found = tree.verdict_of(line)
    verdict = found.result if found else None
    outcome = Outcome.SCORED if verdict is not None else Outcome(line.outcome)
    return LineResult(outcome, verdict, line.error, line.error_category)


def outcome_of(tree: Tree, before: LineResult | None = None) -> LineResult:
    """How the main line stands, as the result of the whole rollout."""
    line, leaf = tree.main_line, tree.main_leaf
    verdict = leaf.verdict.result if leaf is not None and leaf.verdict else None
    # A score of the state in which a line was cut short is no result: it can run again.
    cut_short = line is not None and line.outcome in (Outcome.CANCELLED, Outcome.INTERRUPTED)
    if verdict is not None and not cut_short:
        # The failure of an earlier verifier is over once a later one gave a verdict.
        over = is_verifier_error(tree.error_category)
        error, category = (None, None) if over else (tree.error, tree.error_category)
        return LineResult(Outcome.SCORED, verdict, error, category)
    if before is not None:
        return before
    outcome = Outcome(tree.outcome) if tree.outcome else Outcome.INTERRUPTED
    error = tree.error or (line.error if line else None)
    return LineResult(outcome, error=error, error_category=tree.error_category)


def error_json(error: Exception) -> JsonObject:
    """An error as a command's row carries it to the process that sent the command."""
    if not isinstance(error, BenchFlowError):
        error = BenchFlowError(
            f"the owner failed at it: {type(error).__name__}: {error}",
            remedy="Please report this; the rollout itself goes on",
        )
    return {
        "category": error.category,
        "what": error.what,
        "where": error.where,
        "remedy": error.remedy,
    }
