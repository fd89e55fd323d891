"""Events per second of the recorder, beside raw sqlite3 writing the same rows.

python tests/bench/recorder.py [EVENTS]
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from core.contracts.store import EventDraft, NewRollout
from core.store.ids import new_id, new_name
from core.store.sql import SqlStore
from core.store.tables import metadata

BATCH = 200


def drafts(count: int) -> list[EventDraft]:
    return [EventDraft("said", {"text": "x" * 940, "n": number}) for number in range(count)]


async def recorded(folder: Path, events: list[EventDraft]) -> float:
    """Seconds to record all events, batched by the recorder itself."""
    store = SqlStore(folder)
    await store.open()
    name = new_name("bench")
    new = NewRollout(new_id(), "j", name, "bench", "d", "a", None, "local", "auto", "/x", {})
    own = await store.rollouts.create(await store.engines.register(), new)
    recorder = store.log.recorder(own)
    start = time.perf_counter()
    for event in events:
        await recorder.put(event)
    await recorder.close()
    seconds = time.perf_counter() - start
    assert (await store.rollouts.get(own.rollout)).head_seq == len(events)
    await store.close()
    return seconds


async def empty(folder: Path) -> None:
    """A store with its tables and nothing in them."""
    store = SqlStore(folder)
    await store.open()
    await store.close()


def raw(folder: Path, events: list[EventDraft]) -> float:
    """Seconds for executemany of the same rows into the same table, same batches."""
    asyncio.run(empty(folder))
    conn = sqlite3.connect(folder / "store.db", isolation_level=None)
    conn.execute("PRAGMA synchronous=NORMAL")
    marks = ",".join("?" * len(metadata.tables["event"].c))
    start = time.perf_counter()
    for first in range(0, len(events), BATCH):
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(
            f"INSERT INTO event VALUES ({marks})",
            [
                ("r", seq, 1, 1, 0, seq, event.kind, 1, 0.0, json.dumps(event.payload), 0)
                for seq, event in enumerate(events[first : first + BATCH], first + 1)
            ],
        )
        conn.execute("COMMIT")
    seconds = time.perf_counter() - start
    conn.close()
    return seconds


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    events = drafts(count)
    with tempfile.TemporaryDirectory() as folder:
        floor = raw(Path(folder) / "raw", events)
        cpu = time.process_time()
        ours = asyncio.run(recorded(Path(folder) / "store", events))
        cpu = time.process_time() - cpu
    print(f"raw sqlite3 executemany  {count / floor:10,.0f} events/s")
    print(f"recorder                 {count / ours:10,.0f} events/s   (target 10,000)")
    print(f"ratio                    {floor / ours:10.2f}")
    print(f"CPU per event            {cpu / count * 1e6:10.0f} us")


if __name__ == "__main__":
    main()
