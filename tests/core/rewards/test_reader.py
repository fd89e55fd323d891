"""What is a reward and what is not: the table of bad files, and properties."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.contracts.errors import RewardInvalid, RewardMissing, VerifierError
from core.rewards.reader import read_reward

GOOD_TEXT = [
    (b"0", 0.0),
    (b"1", 1.0),
    (b"1.0\n", 1.0),
    (b"  0.25\r\n", 0.25),
    (b".5", 0.5),
    (b"1.", 1.0),
    (b"5e-1", 0.5),
    (b"+0.75", 0.75),
    (b"-0", 0.0),
]
BAD_TEXT = [
    b"nan",
    b"NaN",
    b"inf",
    b"-Infinity",
    b"1e400",
    b"1e99999",
    b"0,5",
    b"1_0",
    b"0_1",
    "１".encode(),
    "٠".encode(),
    b"0x1",
    b"1.5",
    b"-0.1",
    b"1 0",
    b"1\n1",
    b"0.5\nPASS",
    b"True",
    b"reward: 1",
    b"1.0\x00",
    b"\xef\xbb\xbf1",
    b"\xff\xfe1\x00",
    b"--1",
    b"1e",
    b".",
    b"e1",
    b"0" * 200,
]
GOOD_JSON = [
    (b'{"reward": 1}', 1.0),
    (b'{"reward": 0.5, "items": {"a": 1, "b": 0.25}}', 0.5),
    (b'{"reward": 1e-2, "metrics": {"seconds": 3}}', 0.01),
]
BAD_JSON = [
    b"1.0",
    b"[]",
    b"null",
    b"{}",
    b'{"score": 1}',
    b'{"reward": null}',
    b'{"reward": true}',
    b'{"reward": "1"}',
    b'{"reward": NaN}',
    b'{"reward": Infinity}',
    b'{"reward": 1e400}',
    b'{"reward": 1.01}',
    b'{"reward": [1]}',
    b'{"reward": 1, "reward": 0}',
    b'{"reward": 1, "items": [1]}',
    b'{"reward": 1, "items": {"a": null}}',
    b'{"reward": 1, "items": {"a": true}}',
    b'{"reward": 1, "items": {"a": 1e999}}',
    b'{"reward": 1, "rubric": {}}',
    b'{"reward": 1, "rubric": [{"score": 1}]}',
    b'{"reward": 1, "rubric": [{"name": "a", "score": "1"}]}',
    b'{"reward": 1, "rubric": [{"name": "a", "score": 1, "space": "soul"}]}',
    b'{"reward": 1',
    b'{"reward": 1} trailing',
    b"\xff\xfe",
    b"[" * 100_000,
]


@pytest.mark.parametrize(("text", "value"), GOOD_TEXT)
def test_a_decimal_number_is_read_and_its_writing_kept(text: bytes, value: float) -> None:
    reading = read_reward(text, None)
    assert reading.reward == value
    assert math.copysign(1, reading.reward) == 1
    assert reading.raw == text.strip().decode()


@pytest.mark.parametrize("text", BAD_TEXT)
def test_what_is_no_decimal_in_range_is_refused(text: bytes) -> None:
    with pytest.raises(RewardInvalid, match=r"reward\.txt"):
        read_reward(text, None)


@pytest.mark.parametrize(("document", "value"), GOOD_JSON)
def test_a_json_reward_is_read(document: bytes, value: float) -> None:
    assert read_reward(None, document).reward == value


@pytest.mark.parametrize("document", BAD_JSON, ids=lambda raw: repr(raw[:40]))
def test_what_is_no_json_reward_is_refused(document: bytes) -> None:
    with pytest.raises(RewardInvalid, match=r"reward\.json"):
        read_reward(None, document)


@pytest.mark.parametrize("text", [None, b"", b" \n"])
@pytest.mark.parametrize("document", [None, b"", b"\n"])
def test_nothing_written_is_missing_and_never_a_zero(
    text: bytes | None, document: bytes | None
) -> None:
    with pytest.raises(RewardMissing):
        read_reward(text, document)


def test_the_two_files_must_say_the_same() -> None:
    assert read_reward(b"0.50\n", b'{"reward": 0.5}').reward == 0.5
    with pytest.raises(RewardInvalid, match="disagree: 1 against 0"):
        read_reward(b"1", b'{"reward": 0}')


@pytest.mark.parametrize(
    ("text", "document"), [(b"1", b'{"reward": NaN}'), (b"x", b'{"reward": 1}')]
)
def test_one_bad_file_is_not_saved_by_a_good_one(text: bytes, document: bytes) -> None:
    with pytest.raises(RewardInvalid):
        read_reward(text, document)


def test_json_keeps_the_number_as_written() -> None:
    assert read_reward(None, b'{"reward": 0.100}').raw == "0.100"


def test_a_rubric_becomes_items_and_tagged_events() -> None:
    reading = read_reward(
        None,
        b'{"reward": 1, "items": {"a": 1}, "rubric":'
        b' [{"name": "asked", "score": 0.5, "space": "action", "granularity": "step"}]}',
    )
    assert reading.items == {"a": 1.0, "asked": 0.5}
    (event,) = reading.events
    assert (event.space, event.granularity, event.value) == ("action", "step", 0.5)


def test_the_declared_range_is_the_range() -> None:
    assert read_reward(b"-3.5", None, span=(-5.0, 5.0)).reward == -3.5
    with pytest.raises(RewardInvalid, match="outside the declared range -5 to 5"):
        read_reward(b"5.01", None, span=(-5.0, 5.0))


@given(st.binary(max_size=80))
@example(b"0.5")
def test_any_bytes_give_a_finite_reward_in_range_or_a_typed_refusal(raw: bytes) -> None:
    for text, document in ((raw, None), (None, raw)):
        try:
            reading = read_reward(text, document)
        except VerifierError:
            continue
        assert 0.0 <= reading.reward <= 1.0


@given(st.floats(0, 1))
def test_every_float_python_writes_comes_back(value: float) -> None:
    text, document = repr(value).encode(), json.dumps({"reward": value}).encode()
    assert read_reward(text, document).reward == value
