"""Garbage collection: drop stored states until they fit a budget.

A state is first recorded as dropped in its rollout's log, then moved to the trash,
then deleted: a crash in between leaves a state that no log names, which the next
collection takes. Only rollouts that nobody owns are touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.contracts.errors import BenchFlowError, Conflict, UsageError
from core.contracts.images import ImageStore
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.services.assemble import load_tree
from core.services.collecting import Budget, Drop, Owner, Plan, Size, owners_of, plan
from core.services.engine import Engine, outcome_of
from core.services.toolbox import Toolbox

_ALL = 1_000_000
_NOTHING = Size(0, 0)


@dataclass(eq=False, slots=True)
class GcReport:
    """What was dropped, or would be. ``after`` is measured, unless nothing was done."""

    dropped: list[Drop] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What could not be dropped, a sentence each."""
    before: Size = _NOTHING
    after: Size = _NOTHING
    pinned: dict[str, int] = field(default_factory=dict)
    fits: bool = True

    def to_json(self) -> JsonObject:
        dropped: list[JsonValue] = [
            {
                "image": item.image.id,
                "rollout": item.owner.rollout if item.owner else None,
                "node": item.owner.node if item.owner else None,
            }
            for item in self.dropped
        ]
        skipped: list[JsonValue] = list(self.skipped)
        pinned: JsonObject = dict(self.pinned)
        return {
            "dropped": dropped,
            "skipped": skipped,
            "bytes_before": self.before.bytes,
            "bytes_after": self.after.bytes,
            "inodes_before": self.before.inodes,
            "inodes_after": self.after.inodes,
            "pinned": pinned,
            "fits": self.fits,
        }


async def collect(engine: Engine, budget: Budget, *, actor: str, dry: bool = False) -> GcReport:
    """Drop stored states of this store until what is left fits, as far as it may."""
    if budget.bytes < 0 or budget.inodes < 0:
        raise UsageError("a budget cannot be negative", remedy="Give 0 or more")
    report = GcReport()
    for images in engine.tools.images.values():
        chosen = await _choose(engine.tools, images, budget)
        if dry:
            report.dropped += chosen.drops
        else:
            await _drop_all(engine, images, chosen, actor, report)
        after = chosen.after if dry else await _measure(images)
        report.before = _sum(report.before, chosen.before)
        report.after = _sum(report.after, after)
        for why, count in chosen.pinned.items():
            report.pinned[why] = report.pinned.get(why, 0) + count
        report.fits = report.fits and chosen.fits
    return report


async def owners(tools: Toolbox) -> dict[str, Owner]:
    """Every image that some log of this store names, by image id."""
    found: dict[str, Owner] = {}
    for record in await tools.store.rollouts.select(limit=_ALL):
        tree = await load_tree(tools, record.id)
        if tree.root_id:
            live = record.owner is not None or not record.state.final
            found |= owners_of(tree, live=live)
    return found


async def _choose(tools: Toolbox, images: ImageStore, budget: Budget) -> Plan:
    # In this order: what a dead engine made is in the log by the time the log is read,
    # and what a live one makes after the first look is not looked at.
    inventory = await images.inventory()
    live = frozenset(item.id for item in await tools.store.engines.live())
    named = await owners(tools)
    return plan(inventory, named, budget, store=str(tools.home), live_engines=live)


async def _drop_all(
    engine: Engine, images: ImageStore, chosen: Plan, actor: str, report: GcReport
) -> None:
    by_rollout: dict[str, list[Drop]] = {}
    for item in chosen.drops:
        if item.owner is None:
            await images.drop(item.image)
            report.dropped.append(item)
        else:
            by_rollout.setdefault(item.owner.rollout, []).append(item)
    for rollout, items in by_rollout.items():
        try:
            gone = await _record(engine, rollout, items, actor)
        except BenchFlowError as error:
            report.skipped.append(f"rollout {rollout}: {error}")
            continue
        for item in gone:
            await images.drop(item.image)
            report.dropped.append(item)


async def _record(engine: Engine, rollout: str, items: Sequence[Drop], actor: str) -> list[Drop]:
    """Write into the log that these states go; those that must stay by now are left out.

    Raises Conflict while somebody owns the rollout.
    """
    tools = engine.tools
    record = await tools.store.rollouts.get(rollout)
    if not record.state.final:
        raise Conflict("it runs again", where=f"rollout {rollout}")
    own = await tools.store.rollouts.claim(engine.id, rollout)
    tree = await load_tree(tools, rollout)
    keeper = engine.keeper(own)
    gone: list[Drop] = []
    try:
        named = owners_of(tree, live=False)
        gone = [item for item in items if _may_go(named, item)]
        await keeper.commit(
            *(
                ev.encode(
                    ev.CheckpointDropped(
                        item.owner.node, item.image.id, "dropped to make room", actor
                    ),
                    line=tree.nodes[item.owner.node].line,
                )
                for item in gone
                if item.owner is not None
            )
        )
    finally:
        await engine.close(own, keeper, outcome_of(tree), ended_at=record.ended_at)
    return gone


def _may_go(named: Mapping[str, Owner], item: Drop) -> bool:
    owner = named.get(item.image.id)
    return owner is not None and owner == item.owner and not owner.pin


async def _measure(images: ImageStore) -> Size:
    inventory = await images.inventory()
    return Size(
        sum(layer.bytes for layer in inventory.layers),
        sum(layer.inodes for layer in inventory.layers),
    )


def _sum(one: Size, other: Size) -> Size:
    return Size(one.bytes + other.bytes, one.inodes + other.inodes)
