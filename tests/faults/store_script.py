"""A job that uses every durable effect of the store, run as a child process:
``serve`` runs it once per line of stdin.

Each act that is done is acknowledged on stdout as one line ``ack [what, sql,
expected]``: from then on the query on the database must give that value, for
ever. Acts whose trace goes away again are looked at right here. The script can be
killed at any moment and run again: it looks at what is there and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from core.contracts.errors import Conflict, NotFound
from core.contracts.store import EventDraft, NewRequest, NewRollout, Ownership, RolloutState
from core.store.bundles import FolderBundles
from core.store.sql import SqlStore

ROLLOUT, JOB = "rollout00001", "job-1"
BATCHES, SIZE = 4, 5
BIG = "big " + "é" * 60_000


class Script:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqlStore(folder / "store")

    async def run(self) -> None:
        await self.store.open()
        self.done("schema", "SELECT count(*) FROM counter", 1)
        engine = await self.store.engines.register()
        self.look("register", f"SELECT count(*) FROM engine WHERE id='{engine}'", 1)
        own = await self._own(engine)
        await self._engine_acts(own)
        await self._numbered(own)
        await self._commands(own)
        await self._asks(own)
        await self._big(own)
        await self.store.rollouts.update(own, state=RolloutState.SCORED, reward=1.0)
        self.done("update", f"SELECT reward FROM rollout WHERE id='{ROLLOUT}'", 1.0)
        await self._seal(own)
        await self._leave(own)
        await self._copy()
        await self.store.close()

    async def _own(self, engine: str) -> Ownership:
        rollouts = self.store.rollouts
        with contextlib.suppress(Conflict):
            await self.store.jobs.create(JOB, str(self.folder / "jobs"), {})
        self.done("job", f"SELECT count(*) FROM job WHERE id='{JOB}'", 1)
        try:
            await rollouts.get(ROLLOUT)
        except NotFound:
            place = str(self.folder / "jobs" / JOB / "task__00000001")
            new = NewRollout(
                ROLLOUT, JOB, "task__00000001", "task", "d", "a", None, "local", "human", place, {}
            )
            await rollouts.release(await rollouts.create(engine, new))
            self.look("release", "SELECT owner IS NULL FROM rollout", 1)
        self.done("create", f"SELECT count(*) FROM rollout WHERE id='{ROLLOUT}'", 1)
        own = await rollouts.claim(engine, ROLLOUT)
        self.done("claim", f"SELECT term >= {own.term} FROM rollout WHERE id='{ROLLOUT}'", 1)
        return own

    async def _engine_acts(self, own: Ownership) -> None:
        before = self.query(f"SELECT heartbeat FROM engine WHERE id='{own.engine}'")
        await asyncio.sleep(0.002)
        await self.store.engines.beat(own.engine)
        self.look("beat", f"SELECT heartbeat > {before} FROM engine WHERE id='{own.engine}'", 1)
        await self.store.slots.acquire(own.engine, ROLLOUT, limit=1)
        self.look("slot", "SELECT held FROM slot", 1)
        await self.store.slots.release(own.engine, ROLLOUT)
        self.look("slot_release", "SELECT count(*) FROM slot", 0)

    async def _numbered(self, own: Ownership) -> None:
        """Batches of numbered events; ``commit`` and ``put`` take turns."""
        recorder = self.store.log.recorder(own)
        for batch in range(BATCHES):
            if self.events("number", batch * SIZE):
                continue
            drafts = [
                EventDraft("number", {"key": number})
                for number in range(batch * SIZE, batch * SIZE + SIZE)
            ]
            if batch % 2:
                await recorder.commit(*drafts)
            else:
                for draft in drafts:
                    await recorder.put(draft)
                await self.store.events.flush(own)
            for draft in drafts:
                self.done_event("number", draft.payload["key"])

    async def _commands(self, own: Ownership) -> None:
        commands = self.store.commands
        for number in range(3):
            sent = await commands.send(ROLLOUT, "nudge", {}, actor="ann", idem_key=f"c{number}")
            self.done("command", f"SELECT count(*) FROM command WHERE idem_key='c{number}'", 1)
            taken = await commands.take(own)
            if taken is None:
                continue
            self.look("take", f"SELECT term FROM command WHERE id='{taken.id}'", own.term)
            await commands.finish(
                own, taken.id, EventDraft("nudged", {"key": taken.idem_key}), result={}
            )
            self.done("finish", f"SELECT state FROM command WHERE id='{sent.id}'", "done")
            self.done_event("nudged", taken.idem_key)

    async def _asks(self, own: Ownership) -> None:
        requests = self.store.requests
        if not self.events("answered", "yes"):
            asked = await requests.open(own, _ask(1))
            self.done("open_request", f"SELECT count(*) FROM request WHERE id='{asked.id}'", 1)
            await requests.answer(asked.id, {"key": "yes"}, actor="ann", via="cli", idem_key="a1")
            self.done("answer", f"SELECT actor FROM request WHERE id='{asked.id}'", "ann")
            await requests.deliver(own, asked.id, EventDraft("answered", {"key": "yes"}))
            self.done("deliver", f"SELECT state FROM request WHERE id='{asked.id}'", "delivered")
            self.done_event("answered", "yes")
        late = await requests.open(own, _ask(2, deadline=0.01))
        if late.answer is None:
            await requests.save_draft(late.id, "half")
            self.done("draft", f"SELECT draft FROM request WHERE id='{late.id}'", "half")
        await requests.wait(late.id)
        self.done("expire", f"SELECT state FROM request WHERE id='{late.id}'", "expired")
        given_up = await requests.open(own, _ask(3))
        await requests.withdraw(own)
        self.done("withdraw", f"SELECT state FROM request WHERE id='{given_up.id}'", "withdrawn")

    async def _big(self, own: Ownership) -> None:
        if not self.events("big", 1):
            await self.store.log.recorder(own).commit(EventDraft("big", {"key": 1, "text": BIG}))
        self.done_event("big", 1)

    async def _seal(self, own: Ownership) -> None:
        """Twice, with an event in between, so that the second replaces a folder."""
        folder = str(self.folder / "jobs" / JOB / "task__00000001")
        for number in range(2):
            if not self.events("sealing", number):
                await self.store.log.recorder(own).commit(EventDraft("sealing", {"key": number}))
            self.done_event("sealing", number)
            result = await FolderBundles(self.store).seal(own, folder, {"a/result.json": b"{}"})
            self.look("seal", f"SELECT sealed FROM rollout WHERE id='{ROLLOUT}'", result.digest)
            self.done("seal", f"SELECT sealed IS NOT NULL FROM rollout WHERE id='{ROLLOUT}'", 1)

    async def _leave(self, own: Ownership) -> None:
        await self.store.jobs.end(JOB)
        self.done("job_end", f"SELECT ended_at IS NOT NULL FROM job WHERE id='{JOB}'", 1)
        await self.store.log.recorder(own).close()
        await self.store.rollouts.release(own)
        self.look("release", "SELECT owner IS NULL FROM rollout", 1)
        await self.store.engines.deregister(own.engine)
        self.done("deregister", f"SELECT count(*) FROM engine WHERE id='{own.engine}'", 0)

    async def _copy(self) -> None:
        copy = SqlStore(self.folder / "copy")
        await copy.open()
        await copy.reindex(self.folder / "jobs")
        count = (await copy.rollouts.get(ROLLOUT)).head_seq
        if count != self.query("SELECT head_seq FROM rollout"):
            raise SystemExit("reindex: the copy differs")
        await copy.close()

    def events(self, kind: str, key: object) -> int:
        return int(str(self.query(_event_sql(kind, key))))

    def done_event(self, kind: str, key: object) -> None:
        self.done(f"{kind} {key}", _event_sql(kind, key), 1)

    def done(self, what: str, sql: str, expected: object) -> None:
        print("ack", json.dumps([what, sql, expected]), flush=True)

    def look(self, what: str, sql: str, expected: object) -> None:
        found = self.query(sql)
        if found != expected:
            raise SystemExit(f"{what}: {sql} gave {found!r}, not {expected!r}")

    def query(self, sql: str) -> object:
        return query(self.folder / "store" / "store.db", sql)


def query(database: Path, sql: str) -> object:
    """One value, read by a connection that knows nothing of the store."""
    conn = sqlite3.connect(database)
    try:
        return conn.execute(sql).fetchone()[0]
    finally:
        conn.close()


def _event_sql(kind: str, key: object) -> str:
    where = f"kind='{kind}' AND json_extract(payload, '$.key')={json.dumps(key)}"
    return f"SELECT count(*) FROM event WHERE {where}".replace('"', "'")


def _ask(index: int, deadline: float | None = None) -> NewRequest:
    question = {"question": str(index)}
    return NewRequest(ROLLOUT, 0, "n1", index, "ask_user", {**question}, {"key": "no"}, deadline)


def serve() -> None:
    """Run the script once per line ``[folder, output file, environment]`` of stdin, each in
    a fork of this process, which has paid for the imports; answers with the exit status."""
    for line in sys.stdin:
        folder, output, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            asyncio.run(Script(Path(folder)).run())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
