"""Commands: acts on a rollout, sent durably to whoever owns it.

Invariant: a command is finished at most once, in the transaction that holds its
effects. One that a dead owner had taken but not finished is taken by the next term.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, insert, or_, select, update

from core.contracts.errors import Conflict, NotFound, OwnerSilent
from core.contracts.store import (
    CommandRecord,
    CommandState,
    EngineRecord,
    Event,
    EventDraft,
    Ownership,
)
from core.contracts.values import JsonObject
from core.store import payload
from core.store.append import check_owner
from core.store.database import Database
from core.store.doorbell import Doorbell
from core.store.engines import live_owner
from core.store.ids import new_id
from core.store.requests import Act
from core.store.rollouts import no_rollout
from core.store.tables import COMMAND, ROLLOUT

PENDING, TAKEN = CommandState.PENDING.value, CommandState.TAKEN.value


class SqlCommands:
    """Implements ``Commands``."""

    def __init__(
        self, database: Database, doorbell: Doorbell, clock: Callable[[], float], act: Act
    ) -> None:
        self._database = database
        self._doorbell = doorbell
        self._clock = clock
        self._act = act

    async def send(
        self,
        rollout: str,
        verb: str,
        args: JsonObject,
        *,
        actor: str,
        role: str = "author",
        idem_key: str,
    ) -> CommandRecord:
        values = {
            "id": new_id(),
            "rollout": rollout,
            "verb": verb,
            "args": payload.dump(args),
            "actor": payload.clean(actor),
            "role": role,
            "idem_key": idem_key,
            "state": PENDING,
            "sent_at": self._clock(),
        }
        return await self._database.write(
            "command", lambda conn: _send(conn, values), durable=True, topics=("",)
        )

    async def find(self, idem_key: str) -> CommandRecord | None:
        query = select(COMMAND).where(COMMAND.c.idem_key == idem_key)

        def work(conn: Connection) -> CommandRecord | None:
            row = conn.execute(query).mappings().one_or_none()
            return None if row is None else to_command(row)

        return await self._database.read(work)

    async def get(self, command: str) -> CommandRecord:
        return await self._database.read(lambda conn: _get(conn, command))

    async def wait(self, command: str, *, silent_after: float = 5.0) -> CommandRecord:
        silent_at = time.monotonic() + silent_after
        while True:
            mark = self._doorbell.mark("")
            now = self._clock()
            record, owner = await self._database.read(partial(_look, command=command, now=now))
            if record.state in (CommandState.DONE, CommandState.FAILED):
                return record
            if owner is None:
                raise _unowned(record)
            left = self._doorbell.poll
            if record.state is CommandState.PENDING:
                left = silent_at - time.monotonic()
                if left <= 0:
                    raise _silent(record, owner, silent_after)
            await self._doorbell.wait("", mark, left)

    async def take(self, own: Ownership, *, again: bool = False) -> CommandRecord | None:
        which = _open_to(own, again)
        # Looking first keeps an idle owner from writing once a second.
        if not await self._database.read(partial(_is_waiting, own=own, which=which)):
            return None
        work = partial(_take, own=own, which=which)
        return await self._database.write("take", work, durable=True)

    async def finish(
        self,
        own: Ownership,
        command: str,
        *drafts: EventDraft,
        result: JsonObject | None = None,
        error: JsonObject | None = None,
    ) -> tuple[Event, ...]:
        values: dict[str, object] = {
            "state": (CommandState.DONE if error is None else CommandState.FAILED).value,
            "result": None if result is None else payload.dump(result),
            "error": None if error is None else payload.dump(error),
            "ended_at": self._clock(),
        }
        return await self._act(
            own, drafts, "finish", partial(_finish, own=own, command=command, values=values)
        )

    async def pending(self, own: Ownership) -> AsyncIterator[CommandRecord]:
        # What an earlier iteration took, cut short before it could pass it on, comes first.
        again = True
        while True:
            mark = self._doorbell.mark("")
            record = await self.take(own, again=again)
            again = False
            if record is not None:
                yield record
                continue
            await self._doorbell.wait("", mark)


def _send(conn: Connection, values: Mapping[str, object]) -> CommandRecord:
    found = (
        conn.execute(select(COMMAND).where(COMMAND.c.idem_key == values["idem_key"]))
        .mappings()
        .one_or_none()
    )
    if found is not None:
        if (found["rollout"], found["verb"]) != (values["rollout"], values["verb"]):
            raise Conflict(
                f"key {values['idem_key']!r} was used for {found['verb']} on {found['rollout']}",
                remedy="Make a new key for each act",
            )
        return to_command(found)
    known = conn.execute(select(ROLLOUT.c.id).where(ROLLOUT.c.id == values["rollout"])).first()
    if known is None:
        raise no_rollout(str(values["rollout"]))
    made = conn.execute(insert(COMMAND).values(values).returning(COMMAND)).mappings().one()
    return to_command(made)


def _open_to(own: Ownership, again: bool) -> ColumnElement[bool]:
    """Commands this owner may take: new ones, and those an earlier term left unfinished."""
    left_behind = and_(COMMAND.c.state == TAKEN, COMMAND.c.term < own.term + int(again))
    return and_(COMMAND.c.rollout == own.rollout, or_(COMMAND.c.state == PENDING, left_behind))


def _is_waiting(conn: Connection, own: Ownership, which: ColumnElement[bool]) -> bool:
    held = conn.execute(
        select(ROLLOUT.c.id).where(
            ROLLOUT.c.id == own.rollout, ROLLOUT.c.owner == own.engine, ROLLOUT.c.term == own.term
        )
    ).first()
    # Not the owner any more: the write that follows says so, from behind the fence.
    return held is None or conn.execute(select(COMMAND.c.n).where(which)).first() is not None


def _take(conn: Connection, own: Ownership, which: ColumnElement[bool]) -> CommandRecord | None:
    check_owner(conn, own)
    oldest = select(COMMAND.c.n).where(which).order_by(COMMAND.c.n).limit(1).scalar_subquery()
    row = (
        conn.execute(
            update(COMMAND)
            .where(COMMAND.c.n == oldest, which)
            .values(state=TAKEN, term=own.term)
            .returning(COMMAND)
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else to_command(row)


def _finish(conn: Connection, own: Ownership, command: str, values: dict[str, object]) -> None:
    changed = conn.execute(
        update(COMMAND)
        .where(
            COMMAND.c.id == command,
            COMMAND.c.rollout == own.rollout,
            COMMAND.c.state == TAKEN,
            COMMAND.c.term == own.term,
        )
        .values(values)
    )
    if changed.rowcount == 0:
        record = _get(conn, command)
        raise Conflict(
            f"command {command} ({record.verb}) is {record.state}, term {record.term}",
            where=f"rollout {record.rollout}",
            remedy="Finish a command once, by the owner that took it",
        )


def _get(conn: Connection, command: str) -> CommandRecord:
    row = conn.execute(select(COMMAND).where(COMMAND.c.id == command)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no command {command!r}")
    return to_command(row)


def _look(conn: Connection, command: str, now: float) -> tuple[CommandRecord, EngineRecord | None]:
    record = _get(conn, command)
    row = conn.execute(
        select(ROLLOUT.c.owner, ROLLOUT.c.lease_until).where(ROLLOUT.c.id == record.rollout)
    ).one()
    return record, live_owner(conn, row.owner, row.lease_until, now)


def _silent(record: CommandRecord, owner: EngineRecord, seconds: float) -> OwnerSilent:
    return OwnerSilent(
        f"process {owner.pid} on {owner.host} owns rollout {record.rollout} and did not take "
        f"{record.verb} within {seconds:g} s",
        where=f"engine {owner.id}",
        remedy=f"Look at process {owner.pid}; the act is stored and it does it when it wakes",
    )


def _unowned(record: CommandRecord) -> OwnerSilent:
    return OwnerSilent(
        f"no live process owns rollout {record.rollout}, so nobody does {record.verb}",
        where=f"command {record.id}",
        remedy="Claim the rollout and do it here",
    )


def to_command(row: RowMapping) -> CommandRecord:
    return CommandRecord(
        id=row["id"],
        rollout=row["rollout"],
        verb=row["verb"],
        args=payload.load(row["args"]),
        actor=row["actor"],
        role=row["role"],
        idem_key=row["idem_key"],
        state=CommandState(row["state"]),
        term=row["term"],
        result=None if row["result"] is None else payload.load(row["result"]),
        error=None if row["error"] is None else payload.load(row["error"]),
    )
