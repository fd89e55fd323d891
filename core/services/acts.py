"""What a person does to a rollout, from any process on the machine.

Each act is one durable row first. A live owner carries it out; where nobody
live owns the rollout, the caller's own engine takes it over and does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import cast

from core.contracts.errors import BenchFlowError, Conflict, OwnerSilent, UsageError
from core.contracts.store import (
    CommandRecord,
    CommandState,
    Ownership,
    RequestRecord,
    RolloutRecord,
)
from core.contracts.values import JsonObject
from core.services.assemble import Prepared, load_tree
from core.services.branching import BranchRequest, plan_branch
from core.services.engine import Engine
from core.services.jobs import prepare_again
from core.services.orphans import end_orphan
from core.services.sanitise import clean
from core.services.serving import Grown
from core.services.toolbox import Toolbox
from core.users.form import answer_to_json, ask_from_json, parse_answer

_SETTLE_SECONDS = 10.0


async def answer(
    tools: Toolbox, ref: str, text: str, *, actor: str, via: str, idem_key: str | None = None
) -> RequestRecord:
    """Answer a request (by its id, or the one open request of a rollout).

    Words for a turn's end need the request's own id: by a rollout they may be meant
    for a question that somebody answered a moment ago. Raises UsageError naming
    what is allowed, Conflict when somebody was first.
    """
    request = await find_request(tools, ref)
    ask = ask_from_json(request.question)
    given = parse_answer(ask, text, actor=actor, via=via)
    if request.kind == "turn_end" and given.content and not request.id.startswith(ref):
        raise UsageError(
            f"no question waits, the agent's turn has ended, and {text!r} would be a nudge",
            where=f"rollout {request.rollout}",
            remedy="Accept the turn with `accept`, or send words with `bench nudge`",
        )
    return await tools.store.requests.answer(
        request.id,
        answer_to_json(given),
        actor=actor,
        via=via,
        idem_key=idem_key or secrets.token_hex(8),
    )


async def find_request(tools: Toolbox, ref: str) -> RequestRecord:
    """A request by its own id, or the one open request of a rollout (``last`` is a rollout).

    Raises UsageError where nothing waits, or more than one does.
    """
    if ref != "last":
        with contextlib.suppress(BenchFlowError):
            return await tools.store.requests.get(ref)
    record = await tools.store.rollouts.get(ref)
    waiting = await tools.store.requests.select(rollout=record.id)
    if not waiting:
        raise UsageError(
            f"rollout {record.id} is not waiting for an answer",
            where=f"it is {record.state.value}",
            remedy="List what waits with `bench answer`",
        )
    if len(waiting) > 1:
        names = ", ".join(f"{item.id} ({item.kind} at {item.node})" for item in waiting)
        raise UsageError(
            f"rollout {record.id} waits for {len(waiting)} answers: {names}",
            remedy="Name one of them; `bench answer` lists what they ask",
        )
    return waiting[0]


def question_text(request: RequestRecord) -> str:
    """A waiting question with its numbered options, safe to print."""
    ask = ask_from_json(request.question)
    lines = [clean(ask.question, multiline=True)]
    for number, option in enumerate(ask.options, start=1):
        more = f"  {clean(option.description)}" if option.description else ""
        lines.append(f"  {number}. {clean(option.label)}{more}")
    texts = [item for item in ask.fields if not item.options]
    lines += [f"  {clean(item.name)}: {clean(item.title)} ({item.kind})" for item in texts]
    lines.append(f"Answer with: bench answer {request.id} VALUE")
    return "\n".join(lines)


async def cancel(
    engine: Engine, ref: str, *, scope: str, actor: str, via: str, idem_key: str | None = None
) -> JsonObject:
    """End a rollout, or just its running turn."""
    record = await engine.tools.store.rollouts.get(ref)
    args: JsonObject = {"scope": scope, "via": via}
    return await act(engine, record, "cancel", args, actor=actor, idem_key=idem_key)


async def nudge(
    engine: Engine, ref: str, text: str, *, actor: str, via: str, idem_key: str | None = None
) -> JsonObject:
    """Send a follow-up that becomes the agent's next prompt."""
    if not text.strip():
        raise UsageError("a nudge needs words", remedy="Give the text to send to the agent")
    record = await engine.tools.store.rollouts.get(ref)
    args: JsonObject = {"text": text, "via": via}
    return await act(engine, record, "nudge", args, actor=actor, idem_key=idem_key)


async def branch(
    engine: Engine,
    ref: str,
    request: BranchRequest,
    *,
    actor: str,
    via: str,
    dry: bool = False,
    idem_key: str | None = None,
) -> JsonObject:
    """Start children at a node; returns the plan and, unless ``dry``, their lines.

    On a live rollout the owner starts them and this returns at once. On an ended
    one they run in this engine, and this returns when they have ended.
    """
    store = engine.tools.store
    record = await store.rollouts.get(ref)
    args: JsonObject = {**request.to_json(), "via": via, "dry": dry}
    known = await store.commands.find(idem_key) if idem_key else None
    if known is not None or not record.state.final:
        return await act(engine, record, "branch", args, actor=actor, idem_key=idem_key)
    prepared = prepare_again(engine, record)
    _refuse_changed(record, prepared)
    tree = await load_tree(engine.tools, record.id, whole=True)
    own = Ownership(record.id, engine.id, record.term, record.attempt)
    user = engine.tools.make_user(prepared.config, prepared.task, store, own)
    planned = await plan_branch(tree, request, user, actor=actor, via=via)
    if dry:
        return planned.to_json()
    done: JsonObject = {}

    async def work(grown: Grown) -> None:
        # The way a live rollout is branched: a stored command, so that one key starts
        # its children once.
        now = await store.rollouts.get(record.id)
        done.update(await act(engine, now, "branch", args, actor=actor, idem_key=idem_key))

    try:
        own = await store.rollouts.claim(engine.id, record.id)
    except Conflict:
        # Somebody was first: the rollout lives again, and its owner starts these too.
        await _settled(engine, record.id)
        return await branch(engine, ref, request, actor=actor, via=via, dry=dry, idem_key=idem_key)
    await engine.warm(prepared.config.sandbox)
    await engine.grow(own, prepared, work, actor=actor, why="rewind" if request.main else "branch")
    return done


def _refuse_changed(record: RolloutRecord, prepared: Prepared) -> None:
    """Children of another task than their siblings' would make one V of two things."""
    if prepared.task.digest != record.task_digest:
        raise Conflict(
            "the task has changed since this rollout ran",
            where=str(prepared.task.folder),
            remedy="Put it back, or run it anew; `bench rescore` scores what is stored with an"
            " edited verifier",
        )


async def _settled(engine: Engine, rollout: str) -> None:
    """Wait until a rollout that is owned and not yet running is one or the other.

    Raises OwnerSilent when its owner does neither.
    """
    store = engine.tools.store
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            revision = await store.revision()
            while (record := await store.rollouts.get(rollout)).state.final and record.owner:
                revision = await store.changed(revision, timeout=1.0)
    except TimeoutError as error:
        raise OwnerSilent(
            f"rollout {rollout} is taken by an engine that does nothing with it",
            where=f"engine {record.owner}",
            remedy="Try again, or end that process",
        ) from error


async def act(
    engine: Engine,
    record: RolloutRecord,
    verb: str,
    args: JsonObject,
    *,
    actor: str,
    idem_key: str | None = None,
) -> JsonObject:
    """Send a command to the owner of a live rollout and await its result.

    A command whose ``idem_key`` is known is not sent again; its result is
    returned. Raises what the owner raised, Conflict when the rollout has ended,
    and OwnerSilent when a live owner does not take it.
    """
    commands = engine.tools.store.commands
    known = await commands.find(idem_key) if idem_key else None
    if known is None and record.state.final:
        raise Conflict(
            f"the rollout has ended ({record.state.value})",
            where=f"rollout {record.id}",
            remedy="See it with `bench show`, or run it again with `bench resume`",
        )
    key = idem_key or secrets.token_hex(8)
    sent = await commands.send(record.id, verb, args, actor=actor, idem_key=key)
    try:
        done = await commands.wait(sent.id)
    except OwnerSilent as silent:
        await _do_it_here(engine, record.id, silent)
        done = await commands.wait(sent.id)
    return _result(done)


async def _do_it_here(engine: Engine, rollout: str, silent: OwnerSilent) -> None:
    """Nobody live owns the rollout: take it over, answer what was sent to it, end it.

    Raises ``silent`` where somebody lives after all.
    """
    rollouts = engine.tools.store.rollouts
    try:
        own = await rollouts.claim(engine.id, rollout)
    except Conflict:
        raise silent from None
    record = await rollouts.get(rollout)
    if record.state.final:
        await engine.refuse_late(own, f"the rollout had already ended ({record.state.value})")
        await rollouts.release(own)
    else:
        await end_orphan(engine, own, "the engine that ran it died")


def _result(command: CommandRecord) -> JsonObject:
    if command.state is CommandState.FAILED:
        error = command.error or {}
        raised = Conflict(
            str(error.get("what", "the owner refused")),
            where=str(error.get("where", "")),
            remedy=str(error.get("remedy", "")),
        )
        raised.category = str(error.get("category", "conflict"))
        raise raised
    return cast(JsonObject, command.result or {})
