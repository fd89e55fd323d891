"""Serving commands on a live rollout: what its owner does with each verb.

The record comes first: what is acknowledged survives a crash, and is done by this
owner or, from the log, by the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from core.contracts.errors import BenchFlowError, Conflict, UsageError
from core.contracts.store import CommandRecord, Ownership
from core.contracts.user import Nudge, UserModel
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.kernel.children import Children
from core.kernel.clock import Stopwatch
from core.kernel.line import LineRun
from core.kernel.spec import LineContext, Stop
from core.kernel.tree import Tree
from core.services.assemble import Prepared, load_tree
from core.services.branching import BranchRequest, plan_branch
from core.services.branching import start as start_branch
from core.services.projection import RowKeeper
from core.services.scoring import score_live
from core.services.toolbox import Toolbox

BESIDE = frozenset({"score"})
"""Verbs that take their time: others are served meanwhile, and the end does not wait."""


class Running(Protocol):
    """What commands act on: a rollout's first run, or one that grows again."""

    @property
    def line(self) -> LineRun | None:
        """The main line while it runs."""
        ...

    @property
    def running(self) -> tuple[LineRun, ...]:
        """Every line that runs."""
        ...

    @property
    def children(self) -> Children: ...

    @property
    def begun(self) -> asyncio.Event: ...

    def stop(self, stop: Stop) -> None: ...

    def follow(self, number: int, stop: Stop) -> None:
        """A child is the main line from now on; the one that was, ends."""
        ...


@dataclass(frozen=True, slots=True)
class Grown:
    """A rollout that grows after its end."""

    tree: Tree
    context: LineContext
    children: Children
    begun: asyncio.Event

    @property
    def line(self) -> LineRun | None:
        return None

    @property
    def running(self) -> tuple[LineRun, ...]:
        return self.children.running

    def stop(self, stop: Stop) -> None:
        self.children.stop(stop)

    def follow(self, number: int, stop: Stop) -> None:
        """The main line had ended before; nothing of it runs."""


@dataclass(eq=False, slots=True)
class Live:
    """One rollout that this engine runs."""

    own: Ownership
    prepared: Prepared
    user: UserModel
    run: Running
    keeper: RowKeeper
    paused: Stopwatch | None = field(default=None)
    """Since when every line stands still."""


async def carry_out(tools: Toolbox, command: CommandRecord, live: Live) -> None:
    """Acknowledge a command and do it. Raises what the sender is told."""
    done = partial(tools.store.commands.finish, live.own, command.id)
    via = str(command.args.get("via", ""))
    match command.verb:
        case "cancel":
            scope: Literal["turn", "run"] = "turn" if command.args.get("scope") == "turn" else "run"
            drafts = [ev.encode(ev.CancelRequested(scope, command.actor, via))]
            if live.paused is not None:
                # A frozen agent cannot hear that its turn ends.
                seconds = round(live.paused.seconds, 4)
                drafts.append(ev.encode(ev.Unpaused(command.actor, via, seconds)))
            await done(*drafts, result={"cancelled": scope})
            live.keeper.notice(*drafts)
            await _let_go(live)
            live.run.stop(Stop(scope, command.actor, via))
        case "nudge":
            line = _line(command, live)
            text = str(command.args.get("text", ""))
            with line.nudges.promised():
                accepted = ev.NudgeAccepted(command.id, text, command.actor, via)
                await done(ev.encode(accepted, line=line.number), result={"queued": True})
                line.nudges.put(Nudge(text, command.actor, via, id=command.id))
        case "branch":
            await done(result=await _branch(tools, command, live, via))
        case "score":
            verdicts, result = await score_live(tools, live.prepared, command)
            await done(*verdicts, result=result)
        case "pause":
            lines = await _stand_still(command, live)
            paused = ev.encode(ev.Paused(command.actor, via))
            await done(paused, result={"paused": True, "lines": lines})
            live.keeper.notice(paused)
        case "unpause":
            seconds = await _go_on(command, live)
            unpaused = ev.encode(ev.Unpaused(command.actor, via, seconds))
            await done(unpaused, result={"paused": False, "seconds": seconds})
            live.keeper.notice(unpaused)
        case _:
            raise UsageError(f"a running rollout does not know {command.verb!r}")


def _line(command: CommandRecord, live: Live) -> LineRun:
    line = live.run.line
    if line is None:
        raise Conflict(
            "no agent is there to be nudged",
            where=f"rollout {command.rollout}",
            remedy="Nudge once the agent's first turn runs",
        )
    return line


async def _branch(tools: Toolbox, command: CommandRecord, live: Live, via: str) -> JsonObject:
    tree = await load_tree(tools, live.own.rollout, whole=True)
    request = BranchRequest.from_json(command.args)
    planned = await plan_branch(tree, request, live.user, actor=command.actor, via=via)
    result = planned.to_json()
    if command.args.get("dry"):
        return result
    if live.paused is not None:
        raise Conflict(
            "the rollout is paused",
            where=f"rollout {command.rollout}",
            remedy="Let it go on with `bench unpause`, then branch",
        )
    numbers = start_branch(live.run.children, planned, tree, seed=live.prepared.facts.seed)
    if request.main:
        live.run.follow(numbers[0], Stop("run", command.actor, via))
    lines: list[JsonValue] = list(numbers)
    return {**result, "lines": lines}


async def _stand_still(command: CommandRecord, live: Live) -> int:
    """Stop every line that runs, or none; how many there are."""
    if live.paused is not None:
        raise Conflict(
            "the rollout is paused already",
            where=f"rollout {command.rollout}",
            remedy="Let it go on with `bench unpause`",
        )
    stopped: list[LineRun] = []
    try:
        for line in live.run.running:
            stopped.append(line)
            await line.pause()
    except BenchFlowError:
        for line in stopped:
            await line.unpause()
        raise
    live.paused = Stopwatch()
    return len(stopped)


async def _go_on(command: CommandRecord, live: Live) -> float:
    if live.paused is None:
        raise Conflict(
            "the rollout is not paused",
            where=f"rollout {command.rollout}",
            remedy="See it with `bench show`",
        )
    seconds = round(live.paused.seconds, 4)
    await _let_go(live)
    return seconds


async def _let_go(live: Live) -> None:
    live.paused = None
    for line in live.run.running:
        await line.unpause()
