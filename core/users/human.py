"""The human user: every question becomes a stored request, answered from any process.

The request outlives this process; the answer is whatever the store says was
given first. When nobody waits any more (the turn was cancelled, the line
ended) the request is withdrawn, so that no person answers into the void.
"""

from __future__ import annotations

import asyncio
import contextlib

from core.contracts.agent import Answer, AskUser
from core.contracts.errors import StoreError
from core.contracts.store import NewRequest, Ownership, RequestRecord, Requests, RequestState
from core.contracts.user import AskContext, Nudge, TurnEnd, default_answer
from core.contracts.values import JsonObject
from core.users.form import (
    answer_from_json,
    answer_to_json,
    ask_to_json,
    nudge_text,
    turn_end_to_json,
)

NAME = "human"
WITHDRAW_SECONDS = 5.0
ACCEPT: JsonObject = {"action": "accept", "content": {}}


class HumanUser:
    """Opens requests for one owned rollout and waits for their answers.

    ``turn_seconds`` is how long a person has to nudge after a turn: None waits
    without end, 0 accepts every turn at once. Answers carry the id of their
    request, for whoever delivers them.
    """

    def __init__(
        self, requests: Requests, own: Ownership, *, turn_seconds: float | None = None
    ) -> None:
        self._requests = requests
        self._own = own
        self._turn_seconds = turn_seconds

    @property
    def name(self) -> str:
        return NAME

    async def answer(self, ask: AskUser, context: AskContext) -> Answer:
        record = await self._settled(
            NewRequest(
                rollout=context.rollout,
                line=context.line,
                node=context.node,
                ask_index=context.ask_index,
                kind="ask_user",
                question=ask_to_json(ask),
                default=answer_to_json(default_answer(ask, actor=NAME)),
                deadline_seconds=context.deadline_seconds,
            )
        )
        return _answer(record)

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        """A person's nudge, or None: they accepted, or had their time."""
        if self._turn_seconds == 0:
            return None
        record = await self._settled(
            NewRequest(
                rollout=turn.rollout,
                line=turn.line,
                node=turn.node,
                ask_index=turn.turn,
                kind="turn_end",
                question=turn_end_to_json(turn),
                default=ACCEPT,
                deadline_seconds=self._turn_seconds,
            )
        )
        answer = _answer(record)
        text = nudge_text(answer)
        if text is None:
            if answer.request:
                await self._requests.deliver(self._own, answer.request)
            return None
        return Nudge(text, actor=answer.actor, via=answer.via, request=answer.request)

    async def _settled(self, new: NewRequest) -> RequestRecord:
        try:
            record = await self._requests.open(self._own, new)
            return await self._requests.wait(record.id)
        except asyncio.CancelledError:
            await self._withdraw(new.line)
            raise

    async def _withdraw(self, line: int) -> None:
        """Bounded, and quiet when the store is gone: its fence protects the request then."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self._requests.withdraw(self._own, line=line)


def _answer(record: RequestRecord) -> Answer:
    match record.state:
        case RequestState.ANSWERED | RequestState.DELIVERED:
            given = record.answer or record.default
            return answer_from_json(
                given, actor=record.actor or "", via=record.via or "", request=record.id
            )
        case RequestState.EXPIRED:
            given = record.answer or record.default
            return answer_from_json(
                given, actor=record.actor or NAME, via="default", request=record.id
            )
        case _:
            return Answer("cancel", via="withdrawn")
