"""Reading two nodes' worlds for a difference, each in a scratch fork.

The forks are thrown away and nothing is written to a rollout, so this needs no
ownership: live and ended rollouts are read the same way.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from core.contracts.errors import BenchFlowError, SandboxError, UsageError
from core.contracts.sandbox import Sandbox
from core.contracts.values import JsonObject, JsonValue
from core.kernel.branch import checkpoint_of
from core.kernel.checkpoint import Checkpoint
from core.kernel.world import World, WorldPlan, scratch_world
from core.services.assemble import load_tree
from core.services.diffing import (
    TEXT_BYTES,
    FileChange,
    FileEntry,
    StateDiff,
    WorldState,
    diff_states,
    wanted_texts,
    with_text,
)
from core.services.engine import Engine
from core.services.jobs import prepare_again

_SCRIPT = Path(__file__).with_name("listing_inside.py")
_SECONDS = 120.0
_FILES = 20_000
"""Most files of a workspace and home that are compared."""
_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node whose world can be forked."""

    name: str
    """``ROLLOUT:NODE``."""
    plan: WorldPlan
    checkpoint: Checkpoint


async def find_stored(engine: Engine, ref: str) -> StoredNode:
    """``ROLLOUT:NODE``, or ``ROLLOUT`` for its main line's leaf.

    Raises UsageError, NotFound, or CheckpointError where nothing is stored.
    """
    rollout, _, node = ref.partition(":")
    record = await engine.tools.store.rollouts.get(rollout)
    tree = await load_tree(engine.tools, record.id, whole=True)
    leaf = tree.main_leaf
    if not node and leaf is None:
        raise UsageError(
            "nothing of this rollout has run yet",
            where=f"rollout {record.id}",
            remedy="Look again once it has a line",
        )
    node = node or (leaf.id if leaf else "")
    checkpoint = checkpoint_of(tree, node)
    prepared = prepare_again(engine, record)
    await prepared.plan.provider.require()
    await engine.warm(prepared.config.sandbox)
    return StoredNode(f"{record.id}:{node}", prepared.plan, checkpoint)


async def diff(engine: Engine, a: str, b: str) -> tuple[StateDiff, list[str]]:
    """How the world at ``b`` differs from the world at ``a``; and what went wrong
    with throwing the forks away, if anything did."""
    first, second = await find_stored(engine, a), await find_stored(engine, b)
    problems: list[str] = []

    async def problem(error: BenchFlowError) -> None:
        problems.append(str(error))

    async with AsyncExitStack() as stack:
        # One after the other: a failure of the second must not outrun the first's start.
        left = await stack.enter_async_context(
            scratch_world(first.plan, first.checkpoint.image, problem)
        )
        right = await stack.enter_async_context(
            scratch_world(second.plan, second.checkpoint.image, problem)
        )
        old, new = await asyncio.gather(_read(left, first), _read(right, second))
        found = diff_states(old, new)
        files = await _texts(left.sandbox, right.sandbox, found.files)
    return replace(found, files=tuple(files)), problems


async def _read(world: World, stored: StoredNode) -> WorldState:
    state = await world.environment.query() if world.environment is not None else None
    spec = world.sandbox.spec
    roots: list[JsonValue] = [spec.workdir]
    if not f"{spec.home}/".startswith(f"{spec.workdir.rstrip('/')}/"):
        roots.append(spec.home)
    answer = await _ask(world.sandbox, "list", {"roots": roots, "files": _FILES})
    files = {entry.path: entry.file for entry in _entries(answer)}
    not_read = [f"{stored.name}: {text}" for text in cast("list[str]", answer["unread"])]
    if answer["left_out"]:
        not_read.append(f"{stored.name}: {answer['left_out']} files beyond the first {_FILES}")
    if state is not None:
        for item in state.files:
            files[item.path] = FileEntry("file", item.size, 0, item.digest)
    return WorldState(
        node=stored.name,
        files=files,
        tables=state.tables if state is not None else {},
        services=state.services if state is not None else {},
        not_read=(*not_read, *(f"{stored.name}: {x}" for x in stored.checkpoint.not_captured)),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    file: FileEntry


def _entries(answer: JsonObject) -> list[_Entry]:
    found = []
    for item in cast("list[list[JsonValue]]", answer["entries"]):
        path, kind, size, mode, mark = item
        entry = FileEntry(
            cast(Literal["file", "link", "special"], kind),
            cast(int, size),
            cast(int, mode),
            str(mark),
        )
        found.append(_Entry(str(path), entry))
    return found


async def _texts(old: Sandbox, new: Sandbox, changes: Sequence[FileChange]) -> list[FileChange]:
    wanted = set(wanted_texts(changes))
    chosen = [change for change in changes if change.path in wanted]
    before, after = await asyncio.gather(
        _contents(old, [change.path for change in chosen if change.before]),
        _contents(new, [change.path for change in chosen if change.after]),
    )

    def compare() -> list[FileChange]:
        return [
            with_text(change, before.get(change.path), after.get(change.path)) for change in changes
        ]

    return await asyncio.to_thread(compare)


async def _contents(sandbox: Sandbox, paths: list[str]) -> dict[str, bytes]:
    if not paths:
        return {}
    named: list[JsonValue] = list(paths)
    answer = await _ask(sandbox, "read", {"paths": named, "bytes": TEXT_BYTES})
    contents = cast("dict[str, str]", answer["contents"])
    return {path: base64.b64decode(text) for path, text in contents.items()}


async def _ask(sandbox: Sandbox, verb: str, args: JsonObject) -> JsonObject:
    """Run the listing script as the one compartment that may read every file."""
    script = await asyncio.to_thread(_SCRIPT.read_bytes)
    argv = ["python3", "-I", "-S", "-", verb, json.dumps(args)]
    try:
        async with asyncio.timeout(_SECONDS):
            process = await sandbox.spawn(argv, user="verifier")
            try:
                process.stdin.write(script)
                process.stdin.close()
                raw = bytearray()
                while chunk := await process.stdout.read(1 << 20):
                    raw += chunk
                    if len(raw) > _ANSWER_BYTES:
                        raise _unreadable(sandbox, "the list of its files is too long")
                said = await process.stderr.read(4096)
                await process.wait()
            finally:
                await process.kill(grace=0.0)
    except TimeoutError as error:
        raise _unreadable(sandbox, f"it took longer than {_SECONDS:g} s") from error
    try:
        answer: JsonObject = json.loads(raw)
    except ValueError as error:
        last = said.decode("utf-8", "replace").strip().splitlines()
        raise _unreadable(sandbox, last[-1] if last else "no answer") from error
    return answer


def _unreadable(sandbox: Sandbox, why: str) -> SandboxError:
    return SandboxError(
        f"the files of a node could not be read: {why}",
        where=sandbox.id,
        remedy="Look into it with `bench shell`; comparing needs python3 in the sandbox",
    )
