"""The list row of a rollout follows its events, and loses nothing to a busy store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from core.contracts.errors import Fenced, StoreBusy, StoreError
from core.contracts.store import NewRollout, Ownership, RolloutRecord, RolloutState
from core.contracts.values import JsonObject, JsonValue
from core.kernel import events as ev
from core.services.projection import RowKeeper
from tests.fakes.kernel_rollout import MemoryRecorder

OWN = Ownership("r1", "engine-1", term=1, attempt=1)
QUESTION: JsonObject = {"question": "Which?"}
VERDICT = ev.Scored("n3", 0.5, {}, [], "output", "terminal", [0.0, 1.0], "v", hardened=True)
MAIN = ev.LineStarted(None, {"kind": "start"}, main=True)
CHILD = ev.LineStarted("n3", {"kind": "resample"})


class OneRow:
    """The Rollouts of one row, whose updates can be made to fail."""

    def __init__(self) -> None:
        self.row: dict[str, JsonValue] = {}
        self.updates = 0
        self.began = asyncio.Event()
        self.failing: StoreError | None = None

    async def update(self, own: Ownership, **fields: JsonValue) -> None:
        self.updates += 1
        self.began.set()
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.row.update(fields)

    async def create(self, engine: str, new: NewRollout) -> Ownership:
        raise NotImplementedError

    async def claim(self, engine: str, rollout: str, *, new_attempt: bool = False) -> Ownership:
        raise NotImplementedError

    async def release(self, own: Ownership) -> None:
        raise NotImplementedError

    async def get(self, ref: str) -> RolloutRecord:
        raise NotImplementedError

    async def select(
        self,
        *,
        job: str | None = None,
        states: Sequence[RolloutState] = (),
        after_revision: int = 0,
        limit: int = 200,
    ) -> list[RolloutRecord]:
        raise NotImplementedError

    async def orphans(self) -> list[RolloutRecord]:
        raise NotImplementedError


async def kept(*bodies: tuple[int, ev.Body]) -> dict[str, JsonValue]:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    for line, body in bodies:
        await keeper.commit(ev.encode(body, line=line))
    await keeper.flush()
    return rollouts.row


async def test_phase_steps_and_reward_follow_the_main_line() -> None:
    row = await kept(
        (0, ev.PhaseStarted("sandbox")),
        (0, MAIN),
        (0, ev.PhaseStarted("execute")),
        (0, ev.StepStarted("updates")),
        (0, ev.StepEnded()),
        (0, ev.StepStarted("updates")),
        (0, VERDICT),
    )
    assert row == {"phase": "execute", "steps": 2, "reward": 0.5}


async def test_a_branch_does_not_speak_for_the_rollout() -> None:
    row = await kept(
        (0, MAIN),
        (0, ev.PhaseStarted("verify")),
        (1, CHILD),
        (1, ev.PhaseStarted("execute")),
        (1, ev.Prompted("Look again.", "nudge", "ann", "cli")),
        (1, VERDICT),
    )
    assert row == {"phase": "verify"}


async def test_an_open_question_is_a_waiting_rollout() -> None:
    asked = (0, ev.Asked(0, QUESTION))
    answered = (0, ev.Answered("n3", "accept", {}, "ann", "cli"))
    assert await kept(asked) == {"state": "waiting"}
    assert await kept(asked, asked, answered) == {"state": "waiting"}
    assert await kept(asked, answered) == {"state": "running"}


@pytest.mark.parametrize(("via", "assisted"), [("cli", True), ("user-model", None)])
async def test_a_persons_nudge_assists_the_rollout(via: str, assisted: bool | None) -> None:
    row = await kept((0, MAIN), (0, ev.Prompted("More.", "nudge", "ann", via)))
    assert row.get("assisted") is assisted


async def test_events_written_by_another_way_are_noticed() -> None:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    keeper.notice(ev.encode(ev.Asked(0, QUESTION)))
    await keeper.flush()
    assert rollouts.row == {"state": "waiting"}


async def test_nothing_changed_is_nothing_written() -> None:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    await keeper.put(ev.encode(ev.Said("hello")))
    await keeper.flush()
    assert rollouts.updates == 0


async def test_what_a_busy_store_refused_is_written_later() -> None:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    rollouts.failing = StoreBusy("the database is locked")
    await keeper.commit(ev.encode(ev.StepStarted("updates")), ev.encode(ev.Asked(0, QUESTION)))
    await keeper.flush()
    rollouts.failing = None
    await keeper.commit(ev.encode(ev.StepStarted("updates")))
    await keeper.flush()
    assert rollouts.row == {"steps": 2, "state": "waiting"}


async def test_a_cancelled_keeper_leaves_the_rest_to_the_last_flush() -> None:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    keeping = asyncio.create_task(keeper.keep())
    await keeper.commit(ev.encode(ev.StepStarted("updates")))
    await rollouts.began.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await keeper.flush()
    assert rollouts.row == {"steps": 1}


async def test_a_row_that_has_another_owner_is_left_alone() -> None:
    rollouts = OneRow()
    keeper = RowKeeper(MemoryRecorder(OWN), rollouts)
    rollouts.failing = Fenced("another engine took this rollout over")
    await keeper.commit(ev.encode(ev.StepStarted("updates")))
    await keeper.flush()
    await keeper.flush()
    assert rollouts.updates == 1
