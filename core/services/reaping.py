"""Following live rollouts, and cleaning up after engines that died."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from core.contracts.errors import Conflict
from core.contracts.store import RolloutRecord
from core.kernel.replay import fold
from core.kernel.tree import Tree
from core.services.engine import Engine
from core.services.orphans import end_orphan
from core.services.toolbox import Toolbox


async def growing_tree(tools: Toolbox, rollout: str) -> AsyncIterator[Tree]:
    """The tree after every committed batch, until the rollout has ended."""
    tree = Tree()
    async for batch in tools.store.log.follow(rollout):
        yield fold(batch, tree)


async def final_record(tools: Toolbox, rollout: str) -> RolloutRecord:
    """The row of a rollout whose last event was seen, once its owner has let it go."""
    revision = await tools.store.revision()
    for _ in range(20):
        record = await tools.store.rollouts.get(rollout)
        if record.state.final and (record.sealed or record.owner is None):
            break
        revision = await tools.store.changed(revision, timeout=1.0)
    return record


async def reap(engine: Engine) -> list[str]:
    """End what dead engines left: rollouts become interrupted, sandboxes go.

    Returns one line per thing done.
    """
    tools = engine.tools
    done: list[str] = []
    for record in await tools.store.rollouts.orphans():
        with contextlib.suppress(Conflict):
            own = await tools.store.rollouts.claim(engine.id, record.id)
            outcome = await end_orphan(engine, own, "the engine that ran it died")
            done.append(f"rollout {record.id}: its engine had died; now {outcome}")
    live = {item.id for item in await tools.store.engines.live()}

    def is_live(labels: Mapping[str, str]) -> bool:
        foreign = labels.get("store") != str(tools.home)
        # A frozen state outlives the engine that captured it; dropping those is for `bench gc`.
        return foreign or "image" in labels or labels.get("engine") in live

    for name in tools.sandboxes:
        done += await engine.provider(name).reap(is_live=is_live)
    return done
