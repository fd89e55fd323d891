"""What garbage collection chooses: never a pin, never in vain, oldest first."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.errors import UsageError
from core.contracts.images import Inventory, StoredImage, StoredLayer
from core.kernel import events as ev
from core.kernel.replay import fold
from core.sandboxes.inventory import LocalImages
from core.sandboxes.layers import LayerStore
from core.services.collecting import Budget, Owner, Plan, owners_of, parse_size, plan
from tests.core.kernel.logs import log

STORE = "/home/store"
LOTS = Budget(10**12, 10**9)
NOTHING = Budget(0, 0)


def image(name: str, *layers: str, used: float = 0.0, engine: str = "dead") -> StoredImage:
    return StoredImage(name, {"store": STORE, "engine": engine}, ("b0", *layers), used)


def stored(*images: StoredImage, used: tuple[str, ...] = (), size: int = 100) -> Inventory:
    names = dict.fromkeys(layer for item in images for layer in item.layers)
    layers = tuple(StoredLayer(name, size, 10, name in used) for name in names)
    return Inventory(images, layers)


def choose(
    inventory: Inventory, budget: Budget, pins: dict[str, str] | None = None, orphans: str = ""
) -> Plan:
    owners = {
        item.id: Owner("r1", f"n{item.id}", (pins or {}).get(item.id, ""))
        for item in inventory.images
        if item.id not in orphans.split()
    }
    return plan(inventory, owners, budget, store=STORE, live_engines=frozenset({"live"}))


def dropped(found: Plan) -> list[str]:
    return [item.image.id for item in found.drops]


def test_what_fits_stays() -> None:
    found = choose(stored(image("a", "l1"), image("b", "l2")), LOTS)
    assert (dropped(found), found.fits) == ([], True)


def test_the_least_recently_used_goes_until_it_fits() -> None:
    inventory = stored(
        image("new", "l1", used=3), image("old", "l2", used=1), image("mid", "l3", used=2)
    )
    found = choose(inventory, Budget(200, 10**9))
    assert dropped(found) == ["old", "mid"]
    assert (found.before.bytes, found.after.bytes, found.fits) == (400, 200, True)


def test_too_many_files_are_too_much_even_where_the_bytes_fit() -> None:
    found = choose(stored(image("a", "l1", used=1), image("b", "l2", used=2)), Budget(10**9, 25))
    assert dropped(found) == ["a"]
    assert found.after.inodes == 20


def test_pins_stay_whatever_the_budget_and_say_why() -> None:
    inventory = stored(image("root", "l1"), image("leaf", "l2"), image("side", "l3"))
    found = choose(inventory, NOTHING, {"root": "the root", "leaf": "the main line's leaf"})
    assert dropped(found) == ["side"]
    assert found.pinned == {"the root": 1, "the main line's leaf": 1}
    assert not found.fits


def test_what_runs_what_is_foreign_and_what_a_live_engine_makes_stays() -> None:
    foreign = StoredImage("foreign", {"store": "/elsewhere"}, ("b0", "l3"), 0.0)
    inventory = stored(
        image("running", "l1"), image("making", "l2", engine="live"), foreign, used=("l1",)
    )
    found = choose(inventory, NOTHING, orphans="making foreign")
    assert dropped(found) == []
    assert found.pinned == {"in use": 1, "of a live engine": 1, "of another store": 1}


def test_an_image_that_no_log_names_goes_first_and_always() -> None:
    found = choose(stored(image("stray", "l1", used=9), image("a", "l2")), LOTS, orphans="stray")
    assert dropped(found) == ["stray"]
    assert found.drops[0].owner is None


def test_nothing_is_dropped_in_vain() -> None:
    """The parent's layer is needed by its pinned child: dropping it would free nothing."""
    inventory = stored(image("parent", "l1"), image("child", "l1", "l2"))
    assert dropped(choose(inventory, NOTHING, {"child": "the main line's leaf"})) == []


def test_a_chain_goes_from_its_end() -> None:
    inventory = stored(image("parent", "l1", used=1), image("child", "l1", "l2", used=2))
    assert dropped(choose(inventory, NOTHING)) == ["child", "parent"]
    assert dropped(choose(inventory, Budget(200, 10**9))) == ["child"]


def test_equal_states_go_together_or_not_at_all() -> None:
    twins = stored(image("one", "l1"), image("two", "l1"))
    assert sorted(dropped(choose(twins, NOTHING))) == ["one", "two"]
    assert dropped(choose(twins, NOTHING, {"two": "the root"})) == []


chains = st.lists(
    st.tuples(st.integers(-1, 9), st.booleans(), st.booleans(), st.integers(0, 5)), max_size=10
)


@given(chains, st.integers(0, 1200))
def test_no_pin_no_running_layer_and_no_layer_of_theirs_is_ever_lost(
    made: list[tuple[int, bool, bool, int]], allowed: int
) -> None:
    images: list[StoredImage] = []
    pins: dict[str, str] = {}
    used: list[str] = []
    for number, (parent, pinned, running, age) in enumerate(made):
        below = images[parent].layers[1:] if 0 <= parent < number else ()
        images.append(image(f"i{number}", *below, f"l{number}", used=age))
        if pinned:
            pins[f"i{number}"] = "the root"
        if running:
            used.extend((*below, f"l{number}"))
    found = choose(stored(*images, used=tuple(used)), Budget(allowed, 10**9), pins)
    gone = set(dropped(found))
    stay = [item for item in images if item.id not in gone]
    assert not gone & pins.keys()
    assert all(item.layers[-1] not in used for item in images if item.id in gone)
    needed = {layer for item in stay for layer in item.layers} | set(used)
    if images:
        assert found.after.bytes == 100 * len(needed | {"b0"})
    assert found.fits == (found.after.bytes <= allowed)


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("500 MiB", 500 << 20), ("0", 0), ("1.5kb", 1500), ("7", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "ten", "1 PB", "inf", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_size(text)


def test_owners_name_the_nodes_and_why_they_stay() -> None:
    question: dict[str, object] = {"question": "Which?", "fields": []}
    tree = fold(
        log(
            (0, ev.Checkpointed("n1", "i-root", "quiesced", {})),
            (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
            (0, ev.Asked(0, question)),  # type: ignore[arg-type]
            (0, ev.Checkpointed("n4", "i-ask", "quiesced", {})),
            (0, ev.Answered("n4", "accept", {}, "ann", "cli")),
            (0, ev.StepStarted("updates")),
            (0, ev.Checkpointed("n7", "i-leaf", "quiesced", {})),
            (0, ev.LineEnded("scored")),
            (1, ev.LineStarted("n4", {"kind": "answer"}, origin="option")),
            (1, ev.StepStarted("updates")),
            (1, ev.Checkpointed("n11", "i-side", "quiesced", {})),
            (1, ev.LineEnded("scored")),
        )
    )
    assert {name: owner.pin for name, owner in owners_of(tree, live=False).items()} == {
        "i-root": "the root",
        "i-ask": "a question of the main line",
        "i-leaf": "the main line's leaf",
        "i-side": "",
    }
    assert {owner.pin for owner in owners_of(tree, live=True).values()} == {"of a live rollout"}


# -- what is on disk -------------------------------------------------------------


def make_layer(store: LayerStore, name: str, parent: str | None, *refs: str) -> None:
    folder = store.layers / name
    (folder / "refs").mkdir(parents=True)
    (folder / "fs").mkdir()
    (folder / "fs" / "data").write_bytes(b"x" * 8192)
    (folder / "layer.json").write_text(json.dumps({"parent": parent}))
    for ref in refs:
        (folder / "refs" / ref).touch()


def test_the_local_store_tells_what_it_holds_and_drops_one_image(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    store.open()
    make_layer(store, "l1", None, "image-i1", "layer-l2")
    make_layer(store, "l2", "l1", "image-i2", "sandbox-s1")
    store.save_image("i1", ["l1"], {"store": STORE})
    store.save_image("i2", ["l1", "l2"], {"store": STORE})
    images = LocalImages(tmp_path)
    found = asyncio.run(images.inventory())
    assert [(item.id, item.layers) for item in found.images] == [
        ("i1", ("l1",)),
        ("i2", ("l1", "l2")),
    ]
    assert all(layer.in_use and layer.bytes >= 8192 for layer in found.layers)
    asyncio.run(images.drop(found.images[1]))
    asyncio.run(images.drop(found.images[1]))
    left = asyncio.run(images.inventory())
    assert [item.id for item in left.images] == ["i1"]
    assert [layer.id for layer in left.layers] == ["l1", "l2"], "a sandbox still stands on l2"


def test_a_store_that_was_never_used_is_empty(tmp_path: Path) -> None:
    found = asyncio.run(LocalImages(tmp_path / "none").inventory())
    assert (found.images, found.layers) == ((), ())
