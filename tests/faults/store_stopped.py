"""An owner that records, waits, and records on; run as a child process.

    python store_stopped.py FOLDER

Prints the rollout once ten events are durable, waits for a line on stdin, then
records until it is fenced off and prints ``fenced N``: how many it knows to be durable.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from core.contracts.errors import Fenced
from core.contracts.store import EventDraft
from core.store.sql import SqlStore
from tests.core.store.helpers import owned


async def main(folder: Path) -> None:
    store = SqlStore(folder)
    await store.open()
    own = await owned(store, folder)
    recorder = store.log.recorder(own)
    written = 0
    try:
        while True:
            if written == 10:
                # No transaction is open here: one that is stopped inside holds the database.
                print(own.rollout, flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            await recorder.commit(EventDraft("number", {"key": written}))
            written += 1
    except Fenced:
        print("fenced", written, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
