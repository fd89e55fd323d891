"""The event log: read, follow, and the recorders that write it.

Invariant: what a reader is given was committed before; a follower reads the
database from its own cursor, so it sees every event once, in order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from sqlalchemy import Connection, RowMapping, select

from core.contracts.errors import NotFound
from core.contracts.store import Event, EventDraft, Ownership, RolloutState
from core.contracts.values import JsonObject
from core.store import payload
from core.store.append import append, to_events
from core.store.blobs import FileBlobs
from core.store.database import Database
from core.store.doorbell import Doorbell
from core.store.recorder import EventEncoder, Extra, SqlRecorder
from core.store.tables import EVENT, ROLLOUT


class SqlLog:
    """Implements ``EventLog``."""

    def __init__(
        self,
        database: Database,
        doorbell: Doorbell,
        blobs: FileBlobs,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._doorbell = doorbell
        self._blobs = blobs
        self._encoder = EventEncoder(blobs, clock)
        self._recorders: dict[Ownership, SqlRecorder] = {}

    def recorder(self, ownership: Ownership) -> SqlRecorder:
        """The recorder of an owned rollout; asked again before it is closed, the same one."""
        found = self._recorders.get(ownership)
        if found is None:
            found = self._recorders[ownership] = SqlRecorder(
                ownership, self._database, self._encoder, self._forget
            )
        return found

    def open_recorders(self) -> list[SqlRecorder]:
        return list(self._recorders.values())

    async def flush(self, own: Ownership) -> None:
        """Commit what a recorder of this process still has queued."""
        recorder = self._recorders.get(own)
        if recorder is not None:
            await recorder.flush()

    async def act(
        self, own: Ownership, drafts: Sequence[EventDraft], name: str, extra: Extra
    ) -> tuple[Event, ...]:
        """Events and other rows in one durable, fenced transaction, after what is queued."""
        recorder = self._recorders.get(own)
        if recorder is not None:
            return await recorder.act(drafts, name, extra)
        entries = await self._encoder.encode(drafts)
        numbers = await self._database.write(
            name,
            lambda conn: append(conn, own, entries, extra),
            durable=True,
            topics=(own.rollout, ""),
        )
        return to_events(own, entries, numbers)

    async def read(
        self, rollout: str, *, after: int = 0, limit: int = 1000, whole: bool = False
    ) -> list[Event]:
        rows = await self._database.read(
            partial(read_rows, rollout=rollout, after=after, limit=limit)
        )
        events = [to_event(row) for row in rows]
        if not whole:
            return events
        return [
            replace(event, payload=await self._blobs.expand(row["payload"]))
            if row["blobs"]
            else event
            for row, event in zip(rows, events, strict=True)
        ]

    async def follow(self, rollout: str, *, after: int = 0) -> AsyncIterator[list[Event]]:
        while True:
            mark = self._doorbell.mark(rollout)
            ended, batch = await self._database.read(partial(_tail, rollout=rollout, after=after))
            if batch:
                after = batch[-1].seq
                yield batch
            elif ended:
                return
            else:
                await self._doorbell.wait(rollout, mark)

    def _forget(self, own: Ownership) -> None:
        self._recorders.pop(own, None)


def read_rows(conn: Connection, rollout: str, after: int, limit: int) -> Sequence[RowMapping]:
    """Event rows as stored, in order."""
    return (
        conn.execute(
            select(EVENT)
            .where(EVENT.c.rollout == rollout, EVENT.c.seq > after)
            .order_by(EVENT.c.seq)
            .limit(limit)
        )
        .mappings()
        .all()
    )


def to_event(row: RowMapping) -> Event:
    """The event of a row, with a preview in place of each blob."""
    body = payload.load(row["payload"])
    if row["blobs"]:
        body = cast(JsonObject, payload.preview(body))
    return Event(
        rollout=row["rollout"],
        seq=row["seq"],
        term=row["term"],
        attempt=row["attempt"],
        line=row["line"],
        line_seq=row["line_seq"],
        kind=row["kind"],
        version=row["version"],
        at=row["at"],
        payload=body,
    )


def _tail(conn: Connection, rollout: str, after: int) -> tuple[bool, list[Event]]:
    state = conn.execute(
        select(ROLLOUT.c.state).where(ROLLOUT.c.id == rollout)
    ).scalar_one_or_none()
    if state is None:
        raise NotFound(f"there is no rollout {rollout}", remedy="List the rollouts with `bench ls`")
    return RolloutState(state).final, [
        to_event(row) for row in read_rows(conn, rollout, after, 1000)
    ]
