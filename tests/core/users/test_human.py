"""The human user: a request opened, waited for, and withdrawn when nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from core.contracts.errors import Fenced
from core.contracts.store import Ownership, RequestRecord, RequestState
from core.contracts.user import UserModel
from core.contracts.values import JsonObject
from core.users.form import answer_to_json, ask_from_json, parse_answer
from core.users.human import HumanUser
from tests.contracts.user_suite import BARE, CHOICE, FORM, UserModelSuite, place, turn_end
from tests.fakes.memory_requests import MemoryRequests

OWN = Ownership("rollout-1", "engine-1", 1, 1)


class TestHumanUser(UserModelSuite):
    """A person sits at the inbox and answers whatever opens."""

    name = "human"

    def user(self) -> UserModel:
        self.requests = MemoryRequests()
        return HumanUser(self.requests, OWN)

    @asynccontextmanager
    async def spoken_for(self, user: UserModel) -> AsyncIterator[None]:
        person = asyncio.create_task(_answer_all(self.requests))
        yield
        person.cancel()
        await asyncio.gather(person, return_exceptions=True)


async def _answer_all(requests: MemoryRequests) -> None:
    seen = 0
    while True:
        await requests.opened(seen + 1)
        for record in await requests.select():
            await _say(requests, record, "2")
        seen = len(requests.rows)


async def _say(requests: MemoryRequests, record: RequestRecord, typed: str) -> RequestRecord:
    """Answer as a screen does: the question comes from the stored JSON."""
    ask = ask_from_json(record.question)
    if record.kind == "ask_user" and (not ask.fields or ask.choice is None):
        typed = "decline" if not ask.fields else typed
    answer: JsonObject = answer_to_json(parse_answer(ask, typed))
    return await requests.answer(record.id, answer, actor="ann", via="cli", idem_key=record.id)


async def _open_request(requests: MemoryRequests, count: int = 1) -> RequestRecord:
    await requests.opened(count)
    return list(requests.rows.values())[-1]


async def test_the_answer_carries_the_person_the_place_and_the_request() -> None:
    requests = MemoryRequests()
    asking = asyncio.create_task(HumanUser(requests, OWN).answer(CHOICE, place(0, line=2)))
    record = await _open_request(requests)
    assert (record.kind, record.line, record.node, record.ask_index) == ("ask_user", 2, "n3", 0)
    assert ask_from_json(record.question) == CHOICE
    await _say(requests, record, "Send a new one")
    answer = await asking
    assert answer.content == {"remedy": "replace"}
    assert (answer.actor, answer.via, answer.request) == ("ann", "cli", record.id)


async def test_a_deadline_takes_the_questions_default() -> None:
    requests = MemoryRequests()
    answer = await HumanUser(requests, OWN).answer(CHOICE, place(deadline=0.0))
    assert (answer.action, answer.via) == ("decline", "default")
    assert answer.actor == "deadline"
    assert answer.request in requests.rows


async def test_a_question_raised_again_finds_the_answer_it_already_has() -> None:
    requests = MemoryRequests()
    asking = asyncio.create_task(HumanUser(requests, OWN).answer(CHOICE, place()))
    await _say(requests, await _open_request(requests), "refund")
    first = await asking
    assert await HumanUser(requests, OWN).answer(CHOICE, place()) == first
    assert len(requests.rows) == 1


async def test_a_cancelled_wait_withdraws_its_request() -> None:
    requests = MemoryRequests()
    asking = asyncio.create_task(HumanUser(requests, OWN).answer(FORM, place()))
    record = await _open_request(requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert requests.rows[record.id].state is RequestState.WITHDRAWN


async def test_a_cancelled_wait_of_a_fenced_owner_leaves_the_request_alone() -> None:
    requests = MemoryRequests()
    asking = asyncio.create_task(HumanUser(requests, OWN).answer(FORM, place()))
    record = await _open_request(requests)
    requests.terms["rollout-1"] = 2
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert requests.rows[record.id].state is RequestState.OPEN


async def test_a_fenced_owner_cannot_ask() -> None:
    requests = MemoryRequests()
    requests.terms["rollout-1"] = 2
    with pytest.raises(Fenced):
        await HumanUser(requests, OWN).answer(BARE, place())


async def test_a_withdrawn_question_is_cancelled_and_settles_no_request() -> None:
    requests = MemoryRequests()
    asking = asyncio.create_task(HumanUser(requests, OWN).answer(BARE, place()))
    await _open_request(requests)
    await requests.withdraw(OWN)
    answer = await asking
    assert (answer.action, answer.request) == ("cancel", "")


async def test_a_turn_end_is_a_request_that_shows_the_agents_last_words() -> None:
    requests = MemoryRequests()
    ending = asyncio.create_task(HumanUser(requests, OWN).after_turn(turn_end(2)))
    record = await _open_request(requests)
    assert record.kind == "turn_end"
    assert record.question["message"] == "All done."
    assert record.question["turn"] == 2
    await _say(requests, record, "Look at the second page too")
    nudge = await ending
    assert nudge is not None
    assert (nudge.text, nudge.actor, nudge.via) == ("Look at the second page too", "ann", "cli")
    assert nudge.request == record.id


@pytest.mark.parametrize("typed", ["", "accept", "decline"])
async def test_accepting_a_turn_settles_its_request(typed: str) -> None:
    requests = MemoryRequests()
    ending = asyncio.create_task(HumanUser(requests, OWN).after_turn(turn_end()))
    record = await _open_request(requests)
    await _say(requests, record, typed)
    assert await ending is None
    assert requests.rows[record.id].state is RequestState.DELIVERED


async def test_a_turn_nobody_looks_at_is_accepted_at_its_deadline() -> None:
    requests = MemoryRequests()
    assert await HumanUser(requests, OWN, turn_seconds=0.01).after_turn(turn_end()) is None
    assert [row.state for row in requests.rows.values()] == [RequestState.EXPIRED]
    assert requests.delivered == set(requests.rows)


async def test_no_time_for_nudges_opens_no_request() -> None:
    requests = MemoryRequests()
    assert await HumanUser(requests, OWN, turn_seconds=0).after_turn(turn_end()) is None
    assert requests.rows == {}


async def test_each_turn_has_a_request_of_its_own() -> None:
    requests = MemoryRequests()
    user = HumanUser(requests, OWN, turn_seconds=0.01)
    await user.after_turn(turn_end(1))
    await user.after_turn(turn_end(2))
    assert len(requests.rows) == 2
