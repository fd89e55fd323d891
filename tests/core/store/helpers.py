"""Stores, rollouts and drafts for the tests of this folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from core.contracts.store import EventDraft, NewRequest, NewRollout, Ownership
from core.store.ids import new_id, new_name
from core.store.sql import SqlStore


class Clock:
    """Unix seconds that move only when told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, clock: Callable[[], float] = time.time, poll: float = 600.0
) -> AsyncIterator[SqlStore]:
    """A store whose waits are never saved by the slow poll, unless ``poll`` says so."""
    store = SqlStore(folder, clock=clock, poll=poll)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def new_rollout(folder: Path, *, task: str = "refund", job: str = "job") -> NewRollout:
    name = new_name(task)
    return NewRollout(
        id=new_id(),
        job=job,
        name=name,
        task=task,
        task_digest="d" * 64,
        agent="bench-agent",
        model=None,
        sandbox="local",
        user="human",
        folder=str(folder / job / name),
        config={"seed": 7},
    )


async def owned(store: SqlStore, folder: Path) -> Ownership:
    """A fresh rollout owned by a fresh engine of this process."""
    return await store.rollouts.create(await store.engines.register(), new_rollout(folder))


def said(text: str, line: int = 0) -> EventDraft:
    return EventDraft("said", {"text": text}, line=line)


def ask(
    own: Ownership,
    *,
    line: int = 0,
    ask_index: int = 1,
    question: str = "Which order?",
    deadline: float | None = None,
) -> NewRequest:
    return NewRequest(
        rollout=own.rollout,
        line=line,
        node="n3",
        ask_index=ask_index,
        kind="ask_user",
        question={"question": question},
        default={"action": "decline"},
        deadline_seconds=deadline,
    )
