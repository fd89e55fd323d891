"""Orphans: rollouts whose owner died. Whoever claims one makes it final here.

What a person had asked of the dead owner is answered first: a cancel is carried
out, everything else is refused, nothing is left waiting.
"""

from __future__ import annotations

from core.contracts.errors import Conflict
from core.contracts.store import Ownership
from core.contracts.values import Outcome, Phase
from core.kernel import events as ev
from core.kernel.spec import LineResult
from core.kernel.tree import Line, Tree, Verdict
from core.services.assemble import load_tree
from core.services.engine import Engine, error_json, outcome_of
from core.services.projection import RowKeeper


async def end_orphan(engine: Engine, own: Ownership, why: str) -> Outcome:
    """Close the log of a claimed rollout, so that it is final and sealed.

    It is interrupted, unless it had a verdict or a person had cancelled it.
    """
    keeper = engine.keeper(own)
    tree = await _begun(engine, own, keeper)
    if tree.outcome is not None:
        result = outcome_of(tree)
        await engine.close(own, keeper, result)
        return result.outcome
    result = _result(tree, await _settle_commands(engine, own, tree), why)
    line = tree.main_line
    number = line.number if line else 0
    drafts = [ev.encode(ev.OwnerChanged(engine.id, why), line=number)]
    drafts += [
        ev.encode(_line_ended(tree, open_line, result, why), line=open_line.number)
        for open_line in tree.lines.values()
        if open_line.outcome is None
    ]
    ended = ev.RolloutEnded(result.outcome, result.error, result.error_category)
    await keeper.commit(*drafts, ev.encode(ended, line=number))
    await engine.close(own, keeper, result)
    return result.outcome


async def _begun(engine: Engine, own: Ownership, keeper: RowKeeper) -> Tree:
    """The tree, which has a root even where the owner died before it wrote one."""
    tree = await load_tree(engine.tools, own.rollout)
    if tree.root_id:
        return tree
    record = await engine.tools.store.rollouts.get(own.rollout)
    root = ev.RolloutStarted(
        record.task,
        record.task_digest,
        record.agent,
        record.sandbox,
        record.user,
        record.config,
    )
    await keeper.commit(ev.encode(root))
    return await load_tree(engine.tools, own.rollout)


async def _settle_commands(engine: Engine, own: Ownership, tree: Tree) -> Outcome:
    """Answer what was sent to the dead owner; whether that, or the log, says cancelled."""
    commands = engine.tools.store.commands
    cancelled = tree.stop is not None
    while (command := await commands.take(own, again=True)) is not None:
        if command.verb == "cancel" and command.args.get("scope") != "turn":
            via = str(command.args.get("via", ""))
            asked = ev.encode(ev.CancelRequested("run", command.actor, via))
            await commands.finish(own, command.id, asked, result={"cancelled": "run"})
            cancelled = True
            continue
        error = Conflict(
            "the process that ran the rollout had died",
            where=f"rollout {own.rollout}",
            remedy="Run it again with `bench resume`",
        )
        await commands.finish(own, command.id, error=error_json(error))
    return Outcome.CANCELLED if cancelled else Outcome.INTERRUPTED


def _result(tree: Tree, outcome: Outcome, why: str) -> LineResult:
    line = tree.main_line
    verdict = _verdict(tree, line) if line is not None else None
    if verdict is not None:
        return LineResult(Outcome.SCORED, verdict.result)
    if tree.before is not None:
        ended, error, category = tree.before
        if ended is not None:
            return LineResult(Outcome(ended), error=error, error_category=category)
    category = "cancelled" if outcome is Outcome.CANCELLED else "interrupted"
    return LineResult(outcome, error=why, error_category=category)


def _line_ended(tree: Tree, line: Line, result: LineResult, why: str) -> ev.LineEnded:
    if line.number == tree.main:
        return ev.LineEnded(result.outcome, result.error, result.error_category)
    if _verdict(tree, line) is not None:
        return ev.LineEnded(Outcome.SCORED)
    return ev.LineEnded(Outcome.INTERRUPTED, why, "interrupted")


def _verdict(tree: Tree, line: Line) -> Verdict | None:
    """What the line's own verification gave, if it got so far. A person may have had any
    state before scored: that is not how the line ended."""
    verified = line.outcome == Outcome.SCORED or line.phase == Phase.VERIFY
    return tree.nodes[line.leaf_id].verdict if verified else None
