"""Events: what is written is what is read, and what is unknown is refused or ignored."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.errors import StoreError
from core.contracts.values import Outcome, Phase
from core.kernel import events as ev
from tests.core.kernel.logs import BY_TYPE, any_body, bodies_of

KINDS = list(ev.KINDS.values())


@given(any_body(), st.integers(0, 9))
def test_every_event_is_read_as_it_was_written(body: ev.Body, line: int) -> None:
    draft = ev.encode(body, line=line)
    stored = json.loads(json.dumps(draft.payload))
    assert draft.line == line
    assert ev.decode(draft.kind, draft.version, stored) == body


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_a_kind_with_nothing_optional_given_can_be_read_back(kind: type[ev.Body]) -> None:
    required = {
        item.name: None if "None" in str(item.type) else _least(str(item.type))
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    body = kind(**required)  # type: ignore[arg-type]
    draft = ev.encode(body)
    assert ev.decode(draft.kind, draft.version, draft.payload) == body


def _least(typed: str) -> object:
    least: dict[str, object] = {"str": "", "int": 0, "float": 0.0, "bool": False}
    return least.get(typed, [] if typed.startswith("list") else {})


def test_every_kind_of_the_union_has_a_name_of_its_own() -> None:
    names = [kind.KIND for kind in get_args(ev.Body)]
    assert len(names) == len(set(names))
    assert set(names) == set(ev.KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_every_field_is_json(kind: type[ev.Body]) -> None:
    assert {str(item.type) for item in dataclasses.fields(kind)} <= set(BY_TYPE)


@given(any_body(), st.dictionaries(st.text(min_size=1), st.integers(), max_size=3))
def test_keys_of_a_later_program_are_ignored(body: ev.Body, extra: dict[str, int]) -> None:
    draft = ev.encode(body)
    known = {item.name for item in dataclasses.fields(body)}
    more = {f"later_{key}": value for key, value in extra.items()}
    assert not known & set(more)
    assert ev.decode(draft.kind, draft.version, {**more, **draft.payload}) == body


def test_a_kind_of_a_later_program_is_an_error_that_says_so() -> None:
    with pytest.raises(StoreError, match=r"newer than this program.*Update"):
        ev.decode("teleported", 1, {})


@pytest.mark.parametrize("kind", sorted(ev.KINDS))
def test_a_version_of_a_later_program_is_an_error(kind: str) -> None:
    with pytest.raises(StoreError, match=f"version {ev.VERSION + 1}"):
        ev.decode(kind, ev.VERSION + 1, {})


def test_a_missing_field_is_an_error_that_names_it() -> None:
    with pytest.raises(StoreError, match=r"'text'.*fsck"):
        ev.decode("said", 1, {})


@given(bodies_of(ev.ToolChanged))
def test_what_is_unset_takes_no_room(body: ev.Body) -> None:
    assert None not in ev.encode(body).payload.values()


def test_words_of_the_contract_are_written_as_their_values() -> None:
    body = ev.PhaseEnded(Phase.VERIFY, 0.5, Outcome.OK)
    stored = json.loads(json.dumps(ev.encode(body).payload))
    assert (stored["phase"], stored["outcome"]) == ("verify", "ok")
    assert ev.decode("phase_ended", 1, stored) == body
