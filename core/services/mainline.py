"""The main line: rewind it, choose another, stop it where it stands and let it go on."""

from __future__ import annotations

from core.contracts.errors import Conflict, UsageError
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.tree import Tree
from core.services import acts
from core.services.assemble import load_tree
from core.services.branching import BranchRequest
from core.services.engine import Engine, line_result


async def rewind(
    engine: Engine,
    ref: str,
    node: str,
    *,
    answer: str = "",
    nudge: str = "",
    actor: str,
    via: str,
    idem_key: str | None = None,
) -> JsonObject:
    """Go on from an earlier node in one way: that line is the main line from then on.

    Without an answer or a nudge the node is tried again. What came after the node
    stays in the tree. On a live rollout the line that was the main one ends.
    """
    if answer and nudge:
        raise UsageError("a rewind goes on in one way", remedy="Give an answer or a nudge")
    request = BranchRequest(
        node,
        answers=(answer,) if answer else (),
        nudge=nudge,
        resample=0 if answer or nudge else 1,
        main=True,
    )
    return await acts.branch(engine, ref, request, actor=actor, via=via, idem_key=idem_key)


async def restore(engine: Engine, ref: str, line: int, *, actor: str) -> JsonObject:
    """Make a line of an ended rollout its main one; it is marked as selected.

    The rollout's reward is that line's from now on. Raises UsageError for a line that
    is not there or was cut short, Conflict while the rollout runs.
    """
    tools = engine.tools
    record = await tools.store.rollouts.get(ref)
    if not record.state.final:
        raise Conflict(
            "the rollout still runs",
            where=f"rollout {record.id}",
            remedy="Choose its main line once it has ended",
        )
    _check(await load_tree(tools, record.id), line)
    own = await tools.store.rollouts.claim(engine.id, record.id)
    keeper = engine.keeper(own)
    tree = await load_tree(tools, record.id)
    result = line_result(tree)
    try:
        _check(tree, line)
        await keeper.commit(
            ev.encode(ev.Reopened(engine.id, actor, "restore"), line=tree.main),
            ev.encode(ev.MainLineSet(line, "restore", actor), line=line),
        )
        result = line_result(await load_tree(tools, record.id))
        ended = ev.RolloutEnded(
            result.outcome, result.error, result.error_category, tree.seconds or 0.0
        )
        await keeper.commit(ev.encode(ended, line=line))
    finally:
        await engine.close(own, keeper, result, ended_at=record.ended_at)
    reward = result.verdict.reward if result.verdict else None
    return {"main": line, "outcome": result.outcome.value, "reward": reward}


def _check(tree: Tree, number: int) -> None:
    line = tree.lines.get(number)
    where = f"rollout {tree.rollout}"
    if line is None:
        known = ", ".join(str(item) for item in sorted(tree.lines))
        raise UsageError(
            f"there is no line {number} in this rollout",
            where=where,
            remedy=f"Its lines are {known or 'none'}; see them with `bench show`",
        )
    if number == tree.main:
        raise UsageError(
            f"line {number} is the main line already", where=where, remedy="Choose another line"
        )
    if line.outcome is None or tree.nodes[line.leaf_id].line != number:
        raise UsageError(
            f"line {number} never came to an end of its own",
            where=where,
            remedy="Choose a line that ended",
        )


async def pause(
    engine: Engine, ref: str, *, actor: str, via: str, idem_key: str | None = None
) -> JsonObject:
    """Stop every line of a live rollout where it stands: programs, requests, clocks.

    A question that waits keeps its own deadline. Raises Conflict when it is paused
    already or has ended, SandboxError where this machine cannot freeze programs.
    """
    return await _act(engine, ref, "pause", actor, via, idem_key)


async def unpause(
    engine: Engine, ref: str, *, actor: str, via: str, idem_key: str | None = None
) -> JsonObject:
    """Let a paused rollout go on from where it stood."""
    return await _act(engine, ref, "unpause", actor, via, idem_key)


async def _act(
    engine: Engine, ref: str, verb: str, actor: str, via: str, idem_key: str | None
) -> JsonObject:
    record = await engine.tools.store.rollouts.get(ref)
    return await acts.act(engine, record, verb, {"via": via}, actor=actor, idem_key=idem_key)
