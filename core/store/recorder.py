"""The recorder: the one writer of one owned rollout.

Invariant: events are committed in the order they were queued, in whole batches;
after the first failure nothing more is written and every call raises it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection

from core.contracts.errors import Fenced, StoreBusy, StoreError, StoreFull
from core.contracts.store import Event, EventDraft, Ownership
from core.contracts.values import JsonObject
from core.store import payload
from core.store.append import Entry, Numbers, append, to_events
from core.store.blobs import FileBlobs
from core.store.database import Database

BATCH_SECONDS = 0.05
BATCH_EVENTS = 200
BACKLOG_EVENTS = 1000
"""How many are taken at once when they come faster than they are written."""
CAPACITY = 2000
"""Events the queue holds before ``put`` waits."""
BUSY_SECONDS = 60.0
"""How long a recorder outlasts a locked database before it gives up."""

Extra = Callable[[Connection], None]
"""More statements of the same transaction, run after the fence and before the events."""


@dataclass(slots=True)
class _Item:
    entries: tuple[Entry, ...]
    done: asyncio.Future[tuple[Event, ...]] | None = None
    name: str = "events"
    extra: Extra | None = None


class EventEncoder:
    """Turns drafts into entries: cleaned, timed, with big values moved into blobs."""

    def __init__(self, blobs: FileBlobs, clock: Callable[[], float]) -> None:
        self._blobs = blobs
        self._clock = clock

    async def encode(self, drafts: Sequence[EventDraft]) -> tuple[Entry, ...]:
        return tuple([await self._one(draft) for draft in drafts])

    async def _one(self, draft: EventDraft) -> Entry:
        at = self._clock()
        body, text = payload.tidy(draft.payload)
        moved = 0
        # A character is at most four bytes: most payloads need no exact measure.
        if len(text) * 4 > payload.LIMIT and len(text.encode()) > payload.LIMIT:
            text, moved = await self._blobs.split(text)
        shown = cast(JsonObject, body)
        return Entry(draft.kind, draft.version, draft.line, at, shown, text, moved)


class SqlRecorder:
    """Implements ``Recorder``. One task writes; callers only queue."""

    def __init__(
        self,
        own: Ownership,
        database: Database,
        encoder: EventEncoder,
        on_close: Callable[[Ownership], None],
    ) -> None:
        self._own = own
        self._database = database
        self._encoder = encoder
        self._on_close = on_close
        self._queue: deque[_Item] = deque()
        self._queued = 0
        self._waited_for = 0
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: StoreError | None = None
        self._closing = False
        self._writer: asyncio.Task[None] | None = None

    @property
    def ownership(self) -> Ownership:
        return self._own

    async def put(self, draft: EventDraft) -> None:
        await self._enqueue(_Item(await self._encoder.encode([draft])))

    async def commit(self, *drafts: EventDraft) -> tuple[Event, ...]:
        return await self._settled(_Item(await self._encoder.encode(drafts)))

    async def act(self, drafts: Sequence[EventDraft], name: str, extra: Extra) -> tuple[Event, ...]:
        """Events and other rows in one durable transaction of their own, in queue order.

        A Conflict that ``extra`` raises fails this act only.
        """
        entries = await self._encoder.encode(drafts)
        return await self._settled(_Item(entries, name=name, extra=extra))

    async def flush(self) -> None:
        """Until everything queued so far is committed."""
        await self._settled(_Item(()))

    async def close(self) -> None:
        try:
            if not self._closing and self._failure is None and self._queue:
                await self.flush()
        finally:
            self._closing = True
            self._work.set()
            self._hurry.set()
            if self._writer is not None:
                await self._writer
            self._on_close(self._own)
        if self._failure is not None:
            raise self._failure

    async def _settled(self, item: _Item) -> tuple[Event, ...]:
        item.done = asyncio.get_running_loop().create_future()
        await self._enqueue(item)
        return await item.done

    async def _enqueue(self, item: _Item) -> None:
        while self._queued >= CAPACITY and self._failure is None:
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StoreError("this recorder is closed", where=f"rollout {self._own.rollout}")
        self._queue.append(item)
        self._queued += len(item.entries)
        self._work.set()
        self._waited_for += item.done is not None
        if self._in_a_hurry():
            self._hurry.set()
        if self._writer is None:
            self._writer = asyncio.create_task(self._run(), name=f"recorder {self._own.rollout}")

    async def _run(self) -> None:
        while await self._wait_for_batch():
            batch = self._next_batch()
            try:
                numbered = await self._store(batch)
            except Exception as error:  # the outermost loop of the writer task
                self._failed(batch, error)
            else:
                self._settle(batch, numbered)

    async def _wait_for_batch(self) -> bool:
        """Wait for work, then 50 ms for company unless there is enough or somebody waits."""
        if not self._queue:
            if self._closing:
                return False
            self._work.clear()
            await self._work.wait()
        if not self._in_a_hurry():
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BATCH_SECONDS):
                    await self._hurry.wait()
        return self._failure is None and bool(self._queue)

    def _in_a_hurry(self) -> bool:
        return self._closing or self._waited_for > 0 or self._queued >= BATCH_EVENTS

    def _next_batch(self) -> list[_Item]:
        if self._queue[0].extra is not None:
            return [self._queue.popleft()]
        batch: list[_Item] = []
        size = 0
        while self._queue and self._queue[0].extra is None and size < BACKLOG_EVENTS:
            batch.append(self._queue.popleft())
            size += len(batch[-1].entries)
        return batch

    async def _store(self, batch: list[_Item]) -> Numbers:
        entries = [entry for item in batch for entry in item.entries]
        extra = batch[0].extra
        if not entries and extra is None:
            return []

        def work(conn: Connection) -> Numbers:
            return append(conn, self._own, entries, extra)

        give_up = time.monotonic() + BUSY_SECONDS
        topics = (self._own.rollout,) if extra is None else (self._own.rollout, "")
        while True:
            try:
                return await self._database.write(
                    batch[0].name, work, durable=extra is not None, topics=topics
                )
            except StoreBusy:
                if time.monotonic() > give_up or extra is not None:
                    raise

    def _settle(self, batch: list[_Item], numbers: Numbers) -> None:
        start = 0
        for item in batch:
            end = start + len(item.entries)
            if item.done is not None and not item.done.done():
                item.done.set_result(to_events(self._own, item.entries, numbers[start:end]))
            start = end
        self._forget(batch)

    def _failed(self, batch: list[_Item], error: Exception) -> None:
        failure = error if isinstance(error, StoreError) else _broken(self._own, error)
        if batch[0].extra is None or isinstance(failure, (Fenced, StoreFull)):
            self._failure = failure
            batch = [*batch, *self._queue]
            self._queue.clear()
        for item in batch:
            if item.done is not None and not item.done.done():
                item.done.set_exception(failure)
        self._forget(batch)

    def _forget(self, batch: list[_Item]) -> None:
        self._queued -= sum(len(item.entries) for item in batch)
        self._waited_for -= sum(item.done is not None for item in batch)
        self._room.set()


def _broken(own: Ownership, error: Exception) -> StoreError:
    failure = StoreError(f"recording failed: {error!r}", where=f"rollout {own.rollout}")
    failure.__cause__ = error
    return failure
