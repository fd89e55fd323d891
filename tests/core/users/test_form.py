"""A question through JSON and back, and every way to type an answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.agent import Answer, AskField, AskUser, Option
from core.contracts.errors import UsageError
from core.contracts.values import JsonValue
from core.users.form import (
    MAX_ANSWER,
    answer_from_json,
    answer_to_json,
    ask_from_json,
    ask_to_json,
    nudge_text,
    parse_answer,
    turn_end_ask,
    turn_end_to_json,
)
from core.users.values import allowed, check_content
from tests.contracts.user_suite import BARE, CHOICE, FORM, TEXT, turn_end

NUMBERS = AskUser(
    "How many?",
    (
        AskField("count", "Count", "integer", required=True),
        AskField("price", "Price", "number"),
        AskField("note", "Note", "text"),
    ),
    "elicitation",
)
SEVERAL = AskUser(
    "Which days?",
    (
        AskField(
            "days",
            "Days",
            "multi",
            (Option("mon", "Monday"), Option("tue", "Tuesday"), Option("wed", "Wednesday")),
            required=True,
        ),
    ),
    "elicitation",
)
DIGITS = AskUser(
    "How many?",
    (AskField("n", "N", "choice", (Option("10", "Ten"), Option("1", "One"), Option("5", "Five"))),),
    "elicitation",
)

values = st.one_of(st.none(), st.booleans(), st.integers(), st.text())
options = st.builds(Option, st.text(min_size=1), st.text(min_size=1), st.text(), st.text())
fields = st.builds(
    AskField,
    st.text(min_size=1),
    st.text(min_size=1),
    st.sampled_from(["choice", "multi", "text", "number", "integer", "boolean"]),
    st.lists(options, max_size=4).map(tuple),
    st.booleans(),
    values,
)
questions = st.builds(
    AskUser,
    st.text(),
    st.lists(fields, max_size=4, unique_by=lambda item: item.name).map(tuple),
    st.sampled_from(["elicitation", "permission", "tool", "command"]),
    st.one_of(st.none(), st.text()),
)


@given(questions)
def test_a_question_survives_json(ask: AskUser) -> None:
    stored = json.loads(json.dumps(ask_to_json(ask)))
    assert ask_from_json(stored) == ask


def test_the_agents_own_request_stays_out_of_the_stored_form() -> None:
    ask = replace(TEXT, native={"secret": "x"})
    assert "secret" not in json.dumps(ask_to_json(ask))


@pytest.mark.parametrize(
    "stored", [{}, {"fields": 3}, {"fields": [7, {}]}, {"question": None, "source": "elsewhere"}]
)
def test_a_damaged_question_still_reads_as_a_question(stored: dict[str, JsonValue]) -> None:
    assert isinstance(ask_from_json(stored), AskUser)


@given(
    st.sampled_from(["accept", "decline", "cancel"]),
    st.dictionaries(st.text(), values),
    st.text(),
)
def test_an_answer_survives_json(action: str, content: dict[str, JsonValue], actor: str) -> None:
    given_answer = answer_from_json({"action": action, "content": content}, actor=actor, via="web")
    again = answer_from_json(answer_to_json(given_answer), actor=actor, via="web")
    assert again == given_answer
    assert again.action == action


def test_an_unreadable_answer_is_a_cancel() -> None:
    assert answer_from_json({"action": "yes please"}).action == "cancel"


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        ("refund", "refund"),
        ("Send a new one", "replace"),
        ("REFUND", "refund"),
        ("send a new one", "replace"),
        ("1", "refund"),
        ("2", "replace"),
        (" 2 \n", "replace"),
        ("remedy=refund", "refund"),
        ("remedy=2", "replace"),
        ("remedy='Send a new one'", "replace"),
        ('{"remedy": "refund"}', "refund"),
        ('{"action": "accept", "content": {"remedy": "Refund it"}}', "refund"),
    ],
)
def test_an_option_is_picked_by_number_value_or_label(typed: str, remedy: str) -> None:
    answer = parse_answer(CHOICE, typed, actor="ann", via="cli")
    assert answer == Answer("accept", {"remedy": remedy}, "ann", "cli")


@pytest.mark.parametrize("typed", ["0", "3", "99", "both", "", "accept", "remedy=both", "{}", "[]"])
def test_what_no_option_says_is_refused_with_what_is_allowed(typed: str) -> None:
    with pytest.raises(UsageError, match=r"refund\|replace"):
        parse_answer(CHOICE, typed)


@pytest.mark.parametrize(
    ("typed", "action"),
    [
        ("decline", "decline"),
        ("Cancel", "cancel"),
        ('{"action": "decline"}', "decline"),
        ('{"action": "cancel", "content": {}}', "cancel"),
    ],
)
def test_a_person_may_decline_or_cancel(typed: str, action: str) -> None:
    for ask in (CHOICE, TEXT, FORM, BARE):
        assert parse_answer(ask, typed) == Answer(action)  # type: ignore[arg-type]


def test_an_option_called_decline_is_an_option() -> None:
    ask = AskUser("?", (AskField("a", "A", "choice", (Option("decline", "No"),)),), "tool")
    assert parse_answer(ask, "decline") == Answer("accept", {"a": "decline"})


def test_a_number_that_is_also_another_options_name_must_be_made_clear() -> None:
    with pytest.raises(UsageError, match="n=1"):
        parse_answer(DIGITS, "1")
    assert parse_answer(DIGITS, "n=1").content == {"n": "1"}
    assert parse_answer(DIGITS, "2").content == {"n": "1"}
    assert parse_answer(DIGITS, "10").content == {"n": "10"}
    assert parse_answer(DIGITS, "Five").content == {"n": "5"}


@pytest.mark.parametrize(
    "typed", ["BF-1042", "a=b c", "{not json", '{"other": 1}', "it is 3 = three", "[1, 2]", "2"]
)
def test_free_text_goes_to_the_text_field_as_typed(typed: str) -> None:
    assert parse_answer(TEXT, typed).content == {"order": typed}


def test_a_text_field_that_must_be_filled_is_not_filled_by_nothing() -> None:
    with pytest.raises(UsageError, match="leaves out order"):
        parse_answer(TEXT, "  ")


def test_free_text_beside_a_required_choice_asks_for_the_choice() -> None:
    ask = AskUser("?", (*CHOICE.fields, AskField("why", "Why", "text")), "elicitation")
    with pytest.raises(UsageError, match="leaves out remedy"):
        parse_answer(ask, "because it leaks")
    both = parse_answer(ask, "remedy=refund why=because it leaks")
    assert both.content == {"remedy": "refund", "why": "because it leaks"}


@pytest.mark.parametrize(
    ("typed", "content"),
    [
        ("fast", {"speed": "fast", "gift": False, "copies": 1}),
        ("speed=fast gift=yes copies=3", {"speed": "fast", "gift": True, "copies": 3}),
        ("speed=fast, gift=off", {"speed": "fast", "gift": False, "copies": 1}),
        ("speed=2\ncopies=+4", {"speed": "fast", "gift": False, "copies": 4}),
        ('{"speed": "slow", "gift": true}', {"speed": "slow", "gift": True, "copies": 1}),
        ('{"speed": "slow", "copies": 2.0}', {"speed": "slow", "gift": False, "copies": 2}),
    ],
)
def test_a_form_is_filled_by_pairs_or_json(typed: str, content: dict[str, JsonValue]) -> None:
    assert parse_answer(FORM, typed).content == content


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("speed=fast gift=maybe", "'maybe' is not a value for 'gift'"),
        ("speed=fast copies=2.5", "'2.5' is not a value for 'copies'"),
        ("speed=fast copies=many", "WHOLE-NUMBER"),
        ("speed=fast speed=slow", "given twice"),
        ('{"speed": "fast", "colour": "red"}', "no field 'colour'"),
        ('{"speed": "fast", "copies": true}', "not a value for 'copies'"),
        ('{"speed": "fast", "copies": NaN}', "not an answer"),
        ('{"speed": ["fast"]}', "not a value for 'speed'"),
        ("gift=yes", "leaves out speed"),
        ("colour=red", "not an answer"),
    ],
)
def test_a_form_refuses_what_a_field_does_not_take(typed: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_answer(FORM, typed)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("typed", "days"),
    [
        ("mon", ["mon"]),
        ("3", ["wed"]),
        ("mon, Tuesday", ["mon", "tue"]),
        ("1,3", ["mon", "wed"]),
        ("days=[mon, wed]", ["mon", "wed"]),
        ('{"days": ["tue", "Wednesday"]}', ["tue", "wed"]),
    ],
)
def test_several_options_are_given_as_a_list(typed: str, days: list[str]) -> None:
    assert parse_answer(SEVERAL, typed).content == {"days": days}


def test_several_options_refuse_one_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="'sun' is not a value"):
        parse_answer(SEVERAL, "mon, sun")


@pytest.mark.parametrize("price", ["nan", "inf", "1e999", "-inf"])
def test_a_number_is_finite(price: str) -> None:
    with pytest.raises(UsageError, match="'price'"):
        parse_answer(NUMBERS, f"count=1 price={price}")


def test_a_default_the_field_itself_does_not_take_is_no_default() -> None:
    ask = AskUser("?", (AskField("n", "N", "integer", default="many"), *TEXT.fields), "tool")
    assert parse_answer(ask, "order=BF-1042").content == {"order": "BF-1042"}


def test_numbers_keep_their_kind() -> None:
    content = parse_answer(NUMBERS, "count=3 price=2.5").content
    assert content == {"count": 3, "price": 2.5}
    assert isinstance(content["count"], int)


def test_a_lone_number_field_takes_a_bare_number() -> None:
    ask = AskUser("How many?", (AskField("count", "Count", "integer", required=True),), "tool")
    assert parse_answer(ask, "42").content == {"count": 42}
    with pytest.raises(UsageError, match="WHOLE-NUMBER"):
        parse_answer(ask, "a lot")


def test_a_question_without_fields_is_accepted_or_declined() -> None:
    assert parse_answer(BARE, "accept").content == {}
    with pytest.raises(UsageError, match="accept, decline or cancel"):
        parse_answer(BARE, "why?")


def test_an_answer_may_not_be_longer_than_the_limit() -> None:
    with pytest.raises(UsageError, match="characters"):
        parse_answer(TEXT, "x" * (MAX_ANSWER + 1))


def test_what_is_allowed_names_every_field_of_a_form() -> None:
    said = allowed(FORM)
    assert "speed=slow|fast" in said
    assert "gift=yes|no" in said
    assert "copies=WHOLE-NUMBER" in said


def test_a_turn_end_is_accepted_by_nothing_and_nudged_by_text() -> None:
    ask = turn_end_ask(turn_end())
    assert nudge_text(parse_answer(ask, "")) is None
    assert nudge_text(parse_answer(ask, "accept")) is None
    assert nudge_text(parse_answer(ask, "decline")) is None
    assert nudge_text(parse_answer(ask, "try again")) == "try again"
    assert ask_from_json(turn_end_to_json(turn_end())) == ask


@given(questions, st.text())
def test_any_text_is_an_answer_the_form_takes_or_a_usage_error(ask: AskUser, typed: str) -> None:
    try:
        answer = parse_answer(ask, typed)
    except UsageError:
        return
    if answer.action == "accept":
        assert check_content(ask, answer.content) == answer.content
        json.dumps(answer.content, allow_nan=False)


@given(st.text())
def test_any_json_like_text_never_raises_anything_else(tail: str) -> None:
    for ask in (CHOICE, FORM, NUMBERS, SEVERAL):
        for typed in ("{" + tail, '{"speed":' + tail, "speed=" + tail, "days=" + tail):
            try:
                parse_answer(ask, typed)
            except UsageError:
                continue
