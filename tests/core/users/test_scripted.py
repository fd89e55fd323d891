"""The scripted user: which of its answers a question hears."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.agent import AskField, AskUser, Option
from core.contracts.errors import UsageError
from core.contracts.user import UserModel
from core.contracts.values import StopReason
from core.tasks.models import ScriptedAnswer, UserSpec
from core.users.scripted import ScriptedUser
from tests.contracts.user_suite import BARE, CHOICE, FORM, TEXT, UserModelSuite, place, turn_end

SPEC = UserSpec(
    answers=(
        ScriptedAnswer("refund or replace", "Send a new one"),
        ScriptedAnswer("shipped", "speed=fast gift=yes"),
    ),
    private_facts={"order_id": "BF-1042", "id": "wrong", "delivery window": "Tuesday"},
    nudges=("Check the order again.", "And write it down."),
)


class TestScriptedUser(UserModelSuite):
    name = "scripted"

    def user(self) -> UserModel:
        return ScriptedUser(SPEC)


async def test_a_rule_is_found_by_its_words_in_any_case() -> None:
    answer = await ScriptedUser(SPEC).answer(CHOICE, place())
    assert answer.content == {"remedy": "replace"}
    assert (answer.actor, answer.via) == ("scripted", "user-model")


async def test_a_rule_may_fill_several_fields() -> None:
    answer = await ScriptedUser(SPEC).answer(FORM, place())
    assert answer.content == {"speed": "fast", "gift": True, "copies": 1}


async def test_the_fact_with_most_of_its_words_in_the_question_is_told_first() -> None:
    answer = await ScriptedUser(SPEC).answer(TEXT, place())
    assert str(answer.content["order"]).startswith("BF-1042")


async def test_a_fact_answers_the_field_that_names_it() -> None:
    ask = AskUser(
        "A few details, please",
        (
            AskField("order_id", "Your order", "text", required=True),
            AskField("when", "Delivery window", "text"),
        ),
        "elicitation",
    )
    answer = await ScriptedUser(SPEC).answer(ask, place())
    assert answer.content == {"order_id": "BF-1042", "when": "Tuesday"}


async def test_a_fact_can_name_an_option() -> None:
    ask = AskUser(
        "Which delivery window suits you?",
        (AskField("day", "Day", "choice", (Option("mon", "Monday"), Option("tue", "Tuesday"))),),
        "elicitation",
    )
    assert (await ScriptedUser(SPEC).answer(ask, place())).content == {"day": "tue"}


async def test_what_it_knows_nothing_of_gets_the_questions_default() -> None:
    ask = AskUser("Colour?", (AskField("colour", "Colour", "text", default="blue"),), "tool")
    answer = await ScriptedUser(UserSpec()).answer(ask, place())
    assert (answer.content, answer.via) == ({"colour": "blue"}, "default")
    assert (await ScriptedUser(UserSpec()).answer(CHOICE, place())).action == "decline"
    assert (await ScriptedUser(UserSpec()).answer(BARE, place())).action == "decline"


async def test_a_rule_this_question_does_not_take_is_passed_over() -> None:
    spec = UserSpec(
        answers=(ScriptedAnswer("kettle", "burn it"), ScriptedAnswer("damaged", "refund"))
    )
    assert (await ScriptedUser(spec).answer(CHOICE, place())).content == {"remedy": "refund"}


async def test_the_nth_question_gets_the_nth_override() -> None:
    user = ScriptedUser(SPEC, override=["refund", "slow"])
    assert (await user.answer(CHOICE, place(0))).content == {"remedy": "refund"}
    assert (await user.answer(FORM, place(1))).content["speed"] == "slow"
    assert (await user.answer(CHOICE, place(2))).content == {"remedy": "replace"}


async def test_an_override_the_question_does_not_take_is_an_error_that_says_what_it_takes() -> None:
    user = ScriptedUser(SPEC, override=["burn it"])
    with pytest.raises(UsageError, match=r"(?s)burn it.*refund\|replace"):
        await user.answer(CHOICE, place(0))


async def test_nudges_follow_the_turns_that_the_agent_ended_itself() -> None:
    user = ScriptedUser(SPEC)
    first, second = await user.after_turn(turn_end(1)), await user.after_turn(turn_end(2))
    assert first is not None
    assert first.text == "Check the order again."
    assert second is not None
    assert second.text == "And write it down."
    assert await user.after_turn(turn_end(3)) is None
    assert await user.after_turn(turn_end(1, StopReason.CANCELLED)) is None
    assert await user.after_turn(turn_end(1, StopReason.REFUSAL)) is None


@given(st.text(), st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1))))
async def test_any_question_is_answered_in_a_form_it_takes(
    question: str, rules: list[tuple[str, str]]
) -> None:
    spec = UserSpec(
        answers=tuple(ScriptedAnswer(when, said) for when, said in rules),
        private_facts=dict(rules),
    )
    ask = AskUser(question, (*CHOICE.fields, AskField("why", "Why", "text")), "tool")
    answer = await ScriptedUser(spec).answer(ask, place())
    if answer.action == "accept":
        assert answer.content["remedy"] in ("refund", "replace")
