"""Which stored states to drop. Pure: an inventory and its owners in, a plan out.

Never chosen: what is pinned, what something running stands on, what another store
or a live engine owns. What no log names goes first; then the least recently used,
as long as dropping it frees anything, until bytes and inodes fit the budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.contracts.errors import UsageError
from core.contracts.images import Inventory, StoredImage
from core.kernel.tree import Tree

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


@dataclass(frozen=True, slots=True)
class Budget:
    """How much the stored states may take."""

    bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The node whose checkpoint an image is. ``pin`` says why it must stay, if it must."""

    rollout: str
    node: str
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Drop:
    """One image to drop; without an owner no log names it."""

    image: StoredImage
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Plan:
    drops: tuple[Drop, ...]
    before: Size
    after: Size
    pinned: Mapping[str, int]
    """How many images must stay, by reason."""
    fits: bool


def parse_size(text: str) -> int:
    """``10GB`` or ``500 MiB`` in bytes. Raises UsageError naming the units."""
    word = text.strip().upper()
    digits = word.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = word[len(digits) :].strip()
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if unit not in _UNITS or not 0 <= number < float("inf"):
        raise UsageError(
            f"{text!r} is no size", remedy="Give a number with KB, MB, GB or TB, such as 10GB"
        )
    return int(number * _UNITS[unit])


def owners_of(tree: Tree, *, live: bool) -> dict[str, Owner]:
    """Every image that this rollout's log names, and why it must stay, if it must."""
    line, leaf = tree.main_line, tree.main_leaf
    path = {node.id for node in leaf.path} if leaf is not None else set()
    found = {}
    for node in tree.nodes.values():
        if node.checkpoint is None:
            continue
        pin = ""
        if live:
            pin = "of a live rollout"
        elif node.kind == "root":
            pin = "the root"
        elif line is not None and leaf is not None and node.id == leaf.id:
            pin = "the main line's leaf"
        elif node.kind == "ask" and node.id in path:
            pin = "a question of the main line"
        found[node.checkpoint.id] = Owner(tree.rollout, node.id, pin)
    return found


def plan(
    inventory: Inventory,
    owners: Mapping[str, Owner],
    budget: Budget,
    *,
    store: str,
    live_engines: frozenset[str],
) -> Plan:
    """What to drop so that the rest fits. ``store`` is this store's label."""
    room = _Room(inventory)
    before = room.size
    stay: Counter[str] = Counter()
    orphans: list[StoredImage] = []
    groups: dict[str, list[StoredImage]] = {}
    for image in inventory.images:
        why = _why_stays(image, owners.get(image.id), room, store, live_engines)
        top = image.layers[-1] if image.layers else image.id
        if why:
            stay[why] += 1
        elif image.id not in owners:
            orphans.append(image)
        else:
            groups.setdefault(top, []).append(image)
    drops = [Drop(image, None) for image in orphans]
    for image in orphans:
        room.take(image)
    # Equal states share a layer: only all of them together free anything.
    waiting = sorted(groups.values(), key=lambda group: max(item.used_at for item in group))
    drops += _until_it_fits(waiting, owners, room, budget)
    return Plan(tuple(drops), before, room.size, dict(stay), room.fits(budget))


def _until_it_fits(
    waiting: list[list[StoredImage]], owners: Mapping[str, Owner], room: _Room, budget: Budget
) -> list[Drop]:
    drops: list[Drop] = []
    while not room.fits(budget):
        # One that frees nothing now may do so once those that stand on it are gone.
        group = next((item for item in waiting if room.frees(item)), None)
        if group is None:
            break
        waiting.remove(group)
        for image in group:
            room.take(image)
            drops.append(Drop(image, owners[image.id]))
    return drops


def _why_stays(
    image: StoredImage,
    owner: Owner | None,
    room: _Room,
    store: str,
    live_engines: frozenset[str],
) -> str:
    if image.labels.get("store") != store:
        return "of another store"
    if owner is None:
        return "of a live engine" if image.labels.get("engine") in live_engines else ""
    if owner.pin:
        return owner.pin
    return "in use" if image.layers and room.in_use(image.layers[-1]) else ""


class _Room:
    """What is stored while images are taken away: layers count while anybody needs them."""

    def __init__(self, inventory: Inventory) -> None:
        self._layers = {layer.id: layer for layer in inventory.layers}
        self._needed = Counter(
            layer for image in inventory.images for layer in image.layers if layer in self._layers
        )
        self._bytes = sum(layer.bytes for layer in inventory.layers)
        self._inodes = sum(layer.inodes for layer in inventory.layers)

    @property
    def size(self) -> Size:
        return Size(self._bytes, self._inodes)

    def fits(self, budget: Budget) -> bool:
        return self._bytes <= budget.bytes and self._inodes <= budget.inodes

    def in_use(self, layer: str) -> bool:
        return layer in self._layers and self._layers[layer].in_use

    def frees(self, group: Sequence[StoredImage]) -> bool:
        mine = Counter(layer for image in group for layer in image.layers)
        return any(self._goes(layer, times) for layer, times in mine.items())

    def take(self, image: StoredImage) -> None:
        for layer in image.layers:
            if self._goes(layer, 1):
                self._bytes -= self._layers[layer].bytes
                self._inodes -= self._layers[layer].inodes
            self._needed[layer] -= 1

    def _goes(self, layer: str, times: int) -> bool:
        """Whether it goes once ``times`` of those that need it do. Seeds are kept as a cache."""
        known = self._layers.get(layer)
        if known is None or known.in_use or layer.startswith("b"):
            return False
        return self._needed[layer] <= times
