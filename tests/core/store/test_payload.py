from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.errors import BundleCorrupt
from core.contracts.store import EventDraft
from core.contracts.values import JsonObject, JsonValue
from core.store import payload
from core.store.sql import SqlStore
from tests.core.store.helpers import owned

_texts = st.text(st.characters(codec=None), max_size=30)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | _texts
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4)
)


@given(value=_values)
def test_whatever_an_agent_says_becomes_valid_json(value: JsonValue) -> None:
    text = payload.dump(value)
    text.encode()
    assert "\\u0000" not in text
    assert json.loads(text, parse_constant=pytest.fail) == payload.clean(value)


@given(value=_values)
def test_cleaning_twice_changes_nothing_more(value: JsonValue) -> None:
    once = payload.clean(value)
    assert payload.dump(payload.clean(once)) == payload.dump(once)


def test_lone_surrogates_and_nul_are_replaced_and_the_rest_is_kept() -> None:
    assert payload.clean("a\ud800b\0c\U0001f600\ud83d\ude00") == "a\ufffdb\ufffdc😀😀"


def test_a_payload_deeper_than_the_limit_is_cut_with_a_note() -> None:
    deep: JsonValue = "core"
    for _ in range(5000):
        deep = [deep]
    text = payload.dump({"deep": deep})
    assert "nested deeper than 200 levels" in text


@given(value=st.dictionaries(_texts, _values, max_size=4), size=st.integers(70_000, 90_000))
def test_a_split_payload_comes_back_whole(value: dict[str, JsonValue], size: int) -> None:
    store: dict[str, bytes] = {}

    def write(data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        store[name] = data
        return name

    whole = cast(JsonObject, payload.clean({**value, "big": "é" * size, "$blob": "forged"}))
    row, moved = payload.split(payload.dump(whole), write)
    assert moved == len(payload.digests(payload.load(row))) >= 1
    assert len(row.encode()) <= payload.LIMIT
    assert payload.expand(payload.load(row), store.__getitem__) == whole
    shown = payload.preview(payload.load(row))
    assert isinstance(shown, dict)
    assert shown["$blob"] == "forged"
    assert f"{2 * size} bytes" in str(shown["big"])


def test_a_big_structure_without_big_strings_is_moved_whole() -> None:
    store: dict[str, bytes] = {}

    def write(data: bytes) -> str:
        store["x" * 64] = data
        return "x" * 64

    whole: JsonObject = {"rows": [[number, "text"] for number in range(20_000)], "n": 1}
    row, moved = payload.split(payload.dump(whole), write)
    assert (moved, len(row) < 10_000) == (1, True)
    assert payload.preview(payload.load(row)) == {"rows": [], "n": 1}
    assert payload.expand(payload.load(row), store.__getitem__) == whole


async def test_the_log_gives_the_preview_and_on_request_the_whole(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    text = "start" + "é" * 100_000 + "end"
    await store.log.recorder(own).commit(EventDraft("said", {"text": text, "n": 3}))
    (event,) = await store.log.read(own.rollout)
    shown = str(event.payload["text"])
    assert len(shown) < 6000
    assert shown.startswith("start")
    assert shown.endswith("end")
    (event,) = await store.log.read(own.rollout, whole=True)
    assert event.payload == {"text": text, "n": 3}


async def test_a_damaged_blob_is_never_given_out(store: SqlStore) -> None:
    digest = await store.blobs.write(b"truth")
    assert await store.blobs.read(digest) == b"truth"
    store.files.path(digest).write_bytes(b"lie")
    with pytest.raises(BundleCorrupt, match="hash"):
        await store.blobs.read(digest)
