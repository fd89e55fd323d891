"""Nothing an agent prints can act on the screen that shows it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.services.sanitise import clean

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
NASTY = st.text(
    st.sampled_from(
        "\x1b\x9b\x9d\x90\x07\x00\x08\r\n\t[]()?;0149mhHJPX^_\\ ab" + BIDI + "\ud800é日"
    )
)


@given(st.text() | NASTY, st.booleans())
def test_no_control_character_survives(text: str, multiline: bool) -> None:
    allowed = {"\n", "\t"} if multiline else set()
    for char in clean(text, multiline=multiline):
        assert char in allowed or unicodedata.category(char) not in ("Cc", "Cs"), repr(char)
        assert char not in BIDI + "\u2028\u2029\ufeff", repr(char)


@given(st.text() | NASTY, st.booleans())
def test_cleaning_twice_is_cleaning_once(text: str, multiline: bool) -> None:
    once = clean(text, multiline=multiline)
    assert clean(once, multiline=multiline) == once


@given(st.text() | NASTY)
def test_a_cleaned_line_is_one_line_that_can_be_written(text: str) -> None:
    line = clean(text)
    assert len(line.splitlines()) <= 1
    line.encode()


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_plain_text_is_left_alone(text: str) -> None:
    assert clean(text) == text
    assert clean(text, multiline=True) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;c3RlYWw=", ""),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("\x1bcreset", "reset"),
        ("a\x08b", "a\ufffdb"),
        ("user\u202egpj.exe", "user\ufffdgpj.exe"),
        ("one\r\ntwo", "one two"),
        ("over\rwrite", "over\ufffdwrite"),
        ("half\ud800", "half\ufffd"),
    ],
)
def test_known_tricks_are_made_harmless(hostile: str, shown: str) -> None:
    assert clean(hostile) == shown


def test_several_lines_are_kept_where_they_are_wanted() -> None:
    assert clean("a\r\nb\tc\n", multiline=True) == "a\nb\tc\n"


def test_an_escape_that_a_removed_one_leaves_behind_is_removed_too() -> None:
    assert "\x1b" not in clean("\x1b\x1b[31m[31m")
