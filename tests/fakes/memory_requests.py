"""The inbox in memory: the Requests contract without a database, for one process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace

from core.contracts.errors import Conflict, Fenced, NotFound
from core.contracts.store import (
    Event,
    EventDraft,
    NewRequest,
    Ownership,
    RequestRecord,
    RequestState,
)
from core.contracts.values import JsonObject


class MemoryRequests:
    """``terms`` holds each rollout's current term; an older owner is fenced."""

    def __init__(self) -> None:
        self.rows: dict[str, RequestRecord] = {}
        self.terms: dict[str, int] = {}
        self.events: list[EventDraft] = []
        self.delivered: set[str] = set()
        self._keys: dict[str, str] = {}
        self._idem: dict[str, str] = {}
        self._changed = asyncio.Condition()
        self._revision = 0

    async def open(self, own: Ownership, new: NewRequest) -> RequestRecord:
        self._fence(own)
        key = json.dumps([new.rollout, new.line, new.ask_index, new.question], sort_keys=True)
        if key in self._keys:
            known = self.rows[self._keys[key]]
            if known.state is not RequestState.WITHDRAWN:
                return known
            return await self._write(replace(known, state=RequestState.OPEN))
        seconds = new.deadline_seconds
        now = time.time()
        record = RequestRecord(
            id=f"request-{len(self.rows) + 1}",
            rollout=new.rollout,
            line=new.line,
            node=new.node,
            ask_index=new.ask_index,
            kind=new.kind,
            question=new.question,
            default=new.default,
            state=RequestState.OPEN,
            answer=None,
            actor=None,
            via=None,
            deadline_at=None if seconds is None else now + seconds,
            opened_at=now,
            answered_at=None,
            draft="",
            revision=0,
        )
        self._keys[key] = record.id
        return await self._write(record)

    async def get(self, ref: str) -> RequestRecord:
        if ref not in self.rows:
            raise NotFound(f"there is no request {ref!r}")
        return self.rows[ref]

    async def select(
        self, *, rollout: str | None = None, open_only: bool = True, limit: int = 200
    ) -> list[RequestRecord]:
        found = [
            row
            for row in self.rows.values()
            if (rollout is None or row.rollout == rollout)
            and (not open_only or row.state is RequestState.OPEN)
        ]
        return found[:limit]

    async def answer(
        self, request: str, answer: JsonObject, *, actor: str, via: str, idem_key: str
    ) -> RequestRecord:
        record = await self.get(request)
        if self._idem.get(idem_key) == request:
            return record
        if record.state is not RequestState.OPEN:
            raise Conflict(f"{record.actor or 'nobody'} answered {record.answer}")
        self._idem[idem_key] = request
        return await self._write(
            replace(
                record,
                state=RequestState.ANSWERED,
                answer=answer,
                actor=actor,
                via=via,
                answered_at=time.time(),
            )
        )

    async def save_draft(self, request: str, text: str) -> RequestRecord:
        record = await self.get(request)
        if record.state is not RequestState.OPEN:
            raise Conflict("this request is no longer open")
        return await self._write(replace(record, draft=text))

    async def wait(self, request: str) -> RequestRecord:
        record = await self.get(request)
        left = None if record.deadline_at is None else max(0.0, record.deadline_at - time.time())

        def settled() -> bool:
            return self.rows[request].state is not RequestState.OPEN

        try:
            async with asyncio.timeout(left):
                await self._until(settled)
        except TimeoutError:
            record = self.rows[request]
            await self._write(
                replace(record, state=RequestState.EXPIRED, answer=record.default, actor="deadline")
            )
        return self.rows[request]

    async def opened(self, count: int) -> None:
        """Return once ``count`` requests were opened, ever."""
        await self._until(lambda: len(self.rows) >= count)

    async def deliver(self, own: Ownership, request: str, *drafts: EventDraft) -> tuple[Event, ...]:
        self._fence(own)
        record = await self.get(request)
        if request in self.delivered:
            return ()
        if record.state not in (RequestState.ANSWERED, RequestState.EXPIRED):
            raise Conflict("this request has no answer to deliver")
        first = len(self.events) + 1
        self.events += drafts
        self.delivered.add(request)
        if record.state is RequestState.ANSWERED:  # an expired one goes on showing why
            await self._write(replace(record, state=RequestState.DELIVERED))
        return tuple(
            Event(
                own.rollout, first + i, own.term, own.attempt, d.line, first + i,
                d.kind, d.version, time.time(), d.payload,
            )
            for i, d in enumerate(drafts)
        )  # fmt: skip

    async def withdraw(self, own: Ownership, *, line: int | None = None) -> int:
        self._fence(own)
        count = 0
        for row in list(self.rows.values()):
            mine = row.rollout == own.rollout and (line is None or row.line == line)
            if mine and row.state is RequestState.OPEN:
                await self._write(replace(row, state=RequestState.WITHDRAWN))
                count += 1
        return count

    def _fence(self, own: Ownership) -> None:
        if self.terms.setdefault(own.rollout, own.term) != own.term:
            raise Fenced(f"{own.rollout} has another owner", remedy="Stop writing")

    async def _write(self, record: RequestRecord) -> RequestRecord:
        self._revision += 1
        record = replace(record, revision=self._revision)
        self.rows[record.id] = record
        async with self._changed:
            self._changed.notify_all()
        return record

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)
