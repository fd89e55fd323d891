"""Engine: the process that owns rollouts while it lives.

It registers, beats, runs each rollout it owns with a recorder of its own, takes
the commands that anybody sends to them, and seals what has ended. A command
that comes too late is answered as such, never dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from core.contracts.errors import BenchFlowError, Conflict, Fenced, StoreError, UsageError
from core.contracts.sandbox import SandboxProvider
from core.contracts.store import CommandRecord, EventDraft, Ownership, RolloutState
from core.contracts.user import Nudge
from core.contracts.values import JsonObject, Outcome
from core.kernel import events as ev
from core.kernel.rollout import RolloutRun, Takeover
from core.kernel.spec import LineResult, Stop
from core.services.assemble import Prepared, line_context, load_tree
from core.services.projection import RowKeeper
from core.services.sealing import seal
from core.services.toolbox import Toolbox

BEAT_SECONDS = 3.0
_FINISH_SECONDS = 60.0

_STATES = {
    Outcome.SCORED: RolloutState.SCORED,
    Outcome.FAILED: RolloutState.FAILED,
    Outcome.CANCELLED: RolloutState.CANCELLED,
    Outcome.INTERRUPTED: RolloutState.INTERRUPTED,
}


@dataclass(eq=False, slots=True)
class Engine:
    """One engine row and what it runs. Use ``engine()`` to open one."""

    tools: Toolbox
    id: str
    _providers: dict[str, SandboxProvider] = field(default_factory=dict)

    def provider(self, name: str) -> SandboxProvider:
        """The sandbox provider of that name, labelled with this store and engine."""
        if name not in self._providers:
            make = self.tools.sandboxes.get(name)
            if make is None:
                known = ", ".join(sorted(self.tools.sandboxes))
                raise UsageError(f"no sandbox is called {name!r}", remedy=f"Use one of {known}")
            self._providers[name] = make({"store": str(self.tools.home), "engine": self.id})
        return self._providers[name]

    async def run(
        self, own: Ownership, prepared: Prepared, takeover: Takeover | None = None
    ) -> LineResult:
        """Run an owned rollout to its end and seal it. Raises what is not an outcome."""
        rollouts = self.tools.store.rollouts
        await rollouts.update(own, state=RolloutState.RUNNING.value)
        keeper = RowKeeper(self.tools.store.log.recorder(own), rollouts)
        context = line_context(self.tools, prepared, keeper)
        run = RolloutRun(prepared.facts, prepared.plan, context, takeover=takeover)
        commands = asyncio.create_task(self._commands(own, run))
        keeping = asyncio.create_task(keeper.keep())
        result = LineResult(Outcome.INTERRUPTED)
        try:
            result = await run.run()
            return result
        finally:
            for task in (commands, keeping):
                task.cancel()
            await asyncio.gather(commands, keeping, return_exceptions=True)
            await self._finish(own, keeper, result)

    async def _finish(self, own: Ownership, keeper: RowKeeper, result: LineResult) -> None:
        """Leave a final, sealed, unowned rollout; every step can be done again."""
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
                    waiting=0,
                    reward=result.verdict.reward if result.verdict else None,
                    error=result.error,
                    error_category=result.error_category,
                )
                await self._refuse_late(own, state)
                await seal(self.tools, own)
                await store.rollouts.release(own)

    async def _commands(self, own: Ownership, run: RolloutRun) -> None:
        commands = self.tools.store.commands
        async for command in commands.pending(own):
            try:
                drafts, result = self._carry_out(command, run)
            except BenchFlowError as error:
                await commands.finish(own, command.id, error=error_json(error))
            else:
                await commands.finish(own, command.id, *drafts, result=result)

    def _carry_out(
        self, command: CommandRecord, run: RolloutRun
    ) -> tuple[tuple[EventDraft, ...], JsonObject]:
        match command.verb:
            case "cancel":
                scope = "turn" if command.args.get("scope") == "turn" else "run"
                via = str(command.args.get("via", ""))
                run.stop(Stop("turn" if scope == "turn" else "run", command.actor, via))
                return (ev.encode(ev.CancelRequested(scope, command.actor, via)),), {
                    "cancelled": scope
                }
            case "nudge":
                if run.line is None:
                    raise Conflict(
                        "the agent has not been prompted yet",
                        where=f"rollout {command.rollout}",
                        remedy="Nudge once its first turn runs",
                    )
                via = str(command.args.get("via", ""))
                run.line.nudge(Nudge(str(command.args.get("text", "")), command.actor, via))
                return (), {"queued": True}
            case _:
                raise UsageError(f"a running rollout does not know {command.verb!r}")

    async def _refuse_late(self, own: Ownership, state: RolloutState) -> None:
        commands = self.tools.store.commands
        while (late := await commands.take(own)) is not None:
            error = Conflict(
                f"the rollout had already ended ({state.value})",
                where=f"rollout {own.rollout}",
                remedy="See it with `bench show`",
            )
            await commands.finish(own, late.id, error=error_json(error))

    async def end_orphan(self, own: Ownership, outcome: Outcome, why: str) -> None:
        """Close the log of a rollout whose owner died, so that it is final and sealed."""
        tree = await load_tree(self.tools, own.rollout)
        keeper = RowKeeper(self.tools.store.log.recorder(own), self.tools.store.rollouts)
        line, leaf = tree.main_line, tree.main_leaf
        verdict = leaf.verdict.result if leaf and leaf.verdict else None
        if verdict is not None:
            result = LineResult(Outcome.SCORED, verdict)
        else:
            result = LineResult(outcome, error=why, error_category="interrupted")
        if tree.root_id and tree.outcome is None:
            number = line.number if line else 0
            bodies: list[ev.Body] = [ev.OwnerChanged(self.id, why)]
            if line is not None and line.outcome is None:
                bodies.append(ev.LineEnded(result.outcome, result.error, result.error_category))
            bodies.append(ev.RolloutEnded(result.outcome, result.error, result.error_category))
            await keeper.commit(*(ev.encode(body, line=number) for body in bodies))
        await self._finish(own, keeper, result)


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
    try:
        yield Engine(tools, identity)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await store.engines.deregister(identity)


def error_json(error: BenchFlowError) -> JsonObject:
    """An error as a command's row carries it to the process that sent the command."""
    return {
        "category": error.category,
        "what": error.what,
        "where": error.where,
        "remedy": error.remedy,
    }
