"""The human user over the real store: what the fake stands for is what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.contracts.store import Ownership, RequestRecord, RequestState
from core.store.sql import SqlStore
from core.users.form import answer_to_json, ask_from_json, parse_answer
from core.users.human import HumanUser
from tests.contracts.user_suite import CHOICE, place, turn_end
from tests.core.store.helpers import opened, owned


@dataclass(frozen=True)
class Inbox:
    store: SqlStore
    own: Ownership

    async def one(self, revision: int = 0) -> RequestRecord:
        """The request that is open, as soon as there is one."""
        while not (found := await self.store.requests.select(rollout=self.own.rollout)):
            revision = await self.store.changed(revision, timeout=5)
        return found[0]

    async def say(self, record: RequestRecord, typed: str) -> None:
        answer = answer_to_json(parse_answer(ask_from_json(record.question), typed))
        await self.store.requests.answer(
            record.id, answer, actor="ann", via="cli", idem_key=record.id
        )

    async def state(self, request: str) -> RequestState:
        return (await self.store.requests.get(request)).state


@pytest.fixture
async def inbox(tmp_path: Path) -> AsyncIterator[Inbox]:
    async with opened(tmp_path / "store") as store:
        yield Inbox(store, await owned(store, tmp_path))


async def test_a_question_is_answered_through_the_store(inbox: Inbox) -> None:
    where = replace(place(), rollout=inbox.own.rollout)
    asking = asyncio.create_task(HumanUser(inbox.store.requests, inbox.own).answer(CHOICE, where))
    record = await inbox.one()
    await inbox.say(record, "2")
    answer = await asking
    assert answer.content == {"remedy": "replace"}
    assert (answer.actor, answer.via, answer.request) == ("ann", "cli", record.id)


async def test_a_deadline_gives_the_default_and_can_be_delivered(inbox: Inbox) -> None:
    where = replace(place(deadline=0.01), rollout=inbox.own.rollout)
    answer = await HumanUser(inbox.store.requests, inbox.own).answer(CHOICE, where)
    assert (answer.action, answer.actor, answer.via) == ("decline", "deadline", "default")
    await inbox.store.requests.deliver(inbox.own, answer.request)
    assert await inbox.state(answer.request) is RequestState.EXPIRED


async def test_a_cancelled_wait_withdraws_its_request(inbox: Inbox) -> None:
    where = replace(place(), rollout=inbox.own.rollout)
    asking = asyncio.create_task(HumanUser(inbox.store.requests, inbox.own).answer(CHOICE, where))
    record = await inbox.one()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await inbox.state(record.id) is RequestState.WITHDRAWN


@pytest.mark.parametrize(
    ("typed", "text"), [("accept", None), ("Look once more", "Look once more")]
)
async def test_a_turn_end_is_accepted_or_nudged(inbox: Inbox, typed: str, text: str | None) -> None:
    turn = replace(turn_end(), rollout=inbox.own.rollout)
    ending = asyncio.create_task(HumanUser(inbox.store.requests, inbox.own).after_turn(turn))
    record = await inbox.one()
    await inbox.say(record, typed)
    nudge = await ending
    assert (nudge.text if nudge else None) == text
    settled = RequestState.ANSWERED if text else RequestState.DELIVERED
    assert await inbox.state(record.id) is settled
