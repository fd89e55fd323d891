"""What every user model must do, whichever it is.

A test module subclasses ``UserModelSuite`` and says how to build its user, and
who (if anybody) has to speak for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from core.contracts.agent import Answer, AskField, AskUser, Option
from core.contracts.user import AskContext, Nudge, TurnEnd, UserModel
from core.contracts.values import StopReason
from core.users.values import check_content

CHOICE = AskUser(
    "Refund or replace the damaged kettle?",
    (
        AskField(
            "remedy",
            "Remedy",
            "choice",
            (Option("refund", "Refund it"), Option("replace", "Send a new one")),
            required=True,
        ),
    ),
    "elicitation",
)
TEXT = AskUser(
    "What is your order id?", (AskField("order", "Order", "text", required=True),), "tool"
)
FORM = AskUser(
    "How should it be shipped?",
    (
        AskField(
            "speed", "Speed", "choice", (Option("slow", "Slow"), Option("fast", "Fast")), True
        ),
        AskField("gift", "Gift wrap", "boolean", default=False),
        AskField("copies", "Copies", "integer", default=1),
    ),
    "elicitation",
)
BARE = AskUser("May I go on?", (), "tool")
QUESTIONS = (CHOICE, TEXT, FORM, BARE)


def place(index: int = 0, *, line: int = 0, deadline: float | None = None) -> AskContext:
    return AskContext("rollout-1", line, f"n{index + 3}", index, deadline)


def turn_end(turn: int = 1, stop: StopReason = StopReason.END_TURN) -> TurnEnd:
    return TurnEnd("rollout-1", 0, "n9", turn, stop, "All done.")


class UserModelSuite:
    name: str

    def user(self) -> UserModel:
        raise NotImplementedError

    @asynccontextmanager
    async def spoken_for(self, user: UserModel) -> AsyncIterator[None]:
        """Whoever answers on this user's behalf is there inside this block."""
        yield

    def test_it_says_which_user_model_it_is(self) -> None:
        assert self.user().name == self.name

    @pytest.mark.parametrize("ask", QUESTIONS, ids=lambda ask: ask.question)
    async def test_an_accepted_answer_is_one_the_form_takes(self, ask: AskUser) -> None:
        answer = await self._answer(ask)
        assert answer.action in ("accept", "decline", "cancel")
        if answer.action == "accept":
            assert check_content(ask, answer.content) == answer.content
        else:
            assert answer.content == {}

    @pytest.mark.parametrize("ask", QUESTIONS, ids=lambda ask: ask.question)
    async def test_an_answer_says_who_gave_it_and_from_where(self, ask: AskUser) -> None:
        answer = await self._answer(ask)
        assert answer.actor
        assert answer.via

    async def test_the_same_question_at_the_same_place_has_the_same_answer(self) -> None:
        user = self.user()
        async with self.spoken_for(user):
            first = await user.answer(CHOICE, place())
            again = await user.answer(CHOICE, place())
        assert again == first

    async def test_a_question_does_not_change_what_a_later_one_hears(self) -> None:
        alone = await self._answer(FORM)
        user = self.user()
        async with self.spoken_for(user):
            await user.answer(CHOICE, place(0))
            after = await user.answer(FORM, place(0))
        assert (after.action, after.content) == (alone.action, alone.content)

    async def test_a_turn_end_gives_a_nudge_with_text_or_nothing(self) -> None:
        user = self.user()
        async with self.spoken_for(user):
            for number in (1, 2, 3):
                nudge = await user.after_turn(turn_end(number))
                assert nudge is None or _whole(nudge)

    async def _answer(self, ask: AskUser) -> Answer:
        user = self.user()
        async with self.spoken_for(user):
            return await user.answer(ask, place())


def _whole(nudge: Nudge) -> bool:
    return bool(nudge.text.strip() and nudge.actor and nudge.via)
