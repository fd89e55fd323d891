"""The auto user keeps to its declared policy."""

from __future__ import annotations

import pytest

from core.contracts.agent import AskField, AskUser, Option
from core.contracts.errors import UsageError
from core.contracts.user import UserModel
from core.users.auto import POLICIES, AutoUser, auto_policy
from tests.contracts.user_suite import BARE, CHOICE, FORM, TEXT, UserModelSuite, place, turn_end

GRANT = AskUser(
    "May I delete the folder?",
    (
        AskField(
            "grant",
            "Grant",
            "choice",
            (
                Option("no", "No", kind="reject_once"),
                Option("yes", "Yes", kind="allow_once"),
            ),
            required=True,
        ),
    ),
    "permission",
)


class TestFirst(UserModelSuite):
    name = "auto"

    def user(self) -> UserModel:
        return AutoUser("first")


class TestDefault(TestFirst):
    def user(self) -> UserModel:
        return AutoUser("default")


class TestDecline(TestFirst):
    def user(self) -> UserModel:
        return AutoUser("decline")


class TestAccept(TestFirst):
    def user(self) -> UserModel:
        return AutoUser("accept")


async def test_first_takes_the_first_option_and_the_defaults_elsewhere() -> None:
    answer = await AutoUser("first").answer(FORM, place())
    assert answer.content == {"speed": "slow", "gift": False, "copies": 1}


async def test_first_of_a_multiple_choice_is_a_list_of_one() -> None:
    ask = AskUser("Which?", (AskField("a", "A", "multi", (Option("x", "X"),)),), "tool")
    assert (await AutoUser("first").answer(ask, place())).content == {"a": ["x"]}


async def test_a_required_text_that_no_rule_can_fill_is_declined() -> None:
    for policy in POLICIES:
        assert (await AutoUser(policy).answer(TEXT, place())).action == "decline"


async def test_default_declines_where_there_is_no_default() -> None:
    assert (await AutoUser("default").answer(CHOICE, place())).action == "decline"


async def test_decline_declines_everything() -> None:
    for ask in (CHOICE, FORM, BARE, GRANT):
        assert (await AutoUser("decline").answer(ask, place())).action == "decline"


async def test_accept_takes_the_option_that_allows() -> None:
    assert (await AutoUser("accept").answer(GRANT, place())).content == {"grant": "yes"}
    assert (await AutoUser("accept").answer(BARE, place())).action == "accept"


async def test_it_never_nudges() -> None:
    assert await AutoUser("accept").after_turn(turn_end()) is None


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    assert auto_policy("decline") == "decline"
    with pytest.raises(UsageError, match="first, default, decline, accept"):
        auto_policy("guess")
