"""Text for a terminal: as wide as it says, in words that fit the number."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from app.node_render import changes_text
from app.render import answered_text, cut, table
from core.contracts.store import RequestRecord, RequestState
from core.contracts.values import JsonObject
from core.services.rescoring import Changes


@pytest.mark.parametrize("text", ["plain words", "漢字" * 20, "a漢b字", "e\u0301" * 30, ""])
@pytest.mark.parametrize("room", [1, 2, 5, 11, 40])
def test_a_cut_text_fits_its_cells(text: str, room: int) -> None:
    shown = cut(text, room)
    assert cell_len(shown) <= room
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_a_text_that_fits_is_left_alone() -> None:
    assert cut("漢字", 4) == "漢字"
    assert cut("漢字", 3) == "漢…"


def test_columns_line_up_beside_wide_characters() -> None:
    lines = table([("NAME", "N"), ("漢字漢字", "1"), ("ab", "2")]).splitlines()
    assert {cell_len(line) for line in lines} == {11}


def answered(answer: JsonObject) -> RequestRecord:
    return RequestRecord(
        id="q1",
        rollout="r1",
        line=0,
        node="n26",
        ask_index=0,
        kind="ask_user",
        question={},
        default={},
        state=RequestState.ANSWERED,
        answer=answer,
        actor="ann",
        via="cli",
        deadline_at=None,
        opened_at=0.0,
        answered_at=1.0,
        draft="",
        revision=1,
    )


def test_an_answer_says_which_question_it_answered_and_how() -> None:
    given = answered({"action": "accept", "content": {"order": "55\x1b[2J18"}})
    assert answered_text(given) == "answered ask_user q1 at n26 of rollout r1: 5518"
    assert answered_text(answered({"action": "decline"})).endswith(": decline")


def test_one_leaf_is_no_leaves() -> None:
    assert changes_text(Changes((), ())).startswith("0 leaves")
