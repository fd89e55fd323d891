"""The list row of a rollout, kept in step with its log.

A projection: it can be rebuilt from the events, so it may lag behind them by
0.2 s and is never asked for the truth. One fenced update at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from core.contracts.errors import Fenced, StoreError
from core.contracts.store import Event, EventDraft, Ownership, Recorder, Rollouts, RolloutState
from core.contracts.values import JsonValue

_INTERVAL = 0.2


class RowKeeper:
    """A Recorder that also keeps the rollout's row: phase, steps, questions, state."""

    def __init__(self, recorder: Recorder, rollouts: Rollouts) -> None:
        self._recorder = recorder
        self._rollouts = rollouts
        self._steps = 0
        self._phase = ""
        self._paused = False
        self._main: int | None = None
        """The line whose leaf is the rollout's reward, where it began in this term."""
        self._waiting = 0
        self._dirty: dict[str, JsonValue] = {}
        self._changed = asyncio.Event()

    @property
    def ownership(self) -> Ownership:
        return self._recorder.ownership

    async def put(self, draft: EventDraft) -> None:
        await self._recorder.put(draft)
        self._notice((draft,))

    async def commit(self, *drafts: EventDraft) -> tuple[Event, ...]:
        events = await self._recorder.commit(*drafts)
        self._notice(drafts)
        return events

    async def close(self) -> None:
        await self._recorder.close()

    def counted(self, steps: int) -> None:
        """So many steps were made before this term; more are counted on top."""
        self._steps = steps

    def notice(self, *drafts: EventDraft) -> None:
        """Take note of events that were written by another way (a settled request)."""
        self._notice(drafts)

    async def keep(self) -> None:
        """Write the row whenever it changed, until cancelled."""
        while True:
            await self._changed.wait()
            await self.flush()
            await asyncio.sleep(_INTERVAL)

    async def flush(self) -> None:
        self._changed.clear()
        fields, self._dirty = self._dirty, {}
        if not fields:
            return
        try:
            await self._rollouts.update(self.ownership, **fields)
        except Fenced:
            return
        except StoreError:
            self._put_back(fields)
            self._changed.set()
        except asyncio.CancelledError:
            self._put_back(fields)
            raise

    def _put_back(self, fields: dict[str, JsonValue]) -> None:
        """What was not written is due with the next write."""
        self._dirty = {**fields, **self._dirty}

    def _notice(self, drafts: Iterable[EventDraft]) -> None:
        for draft in drafts:
            self._note(draft)
        if self._dirty:
            self._changed.set()

    def _note(self, draft: EventDraft) -> None:
        match draft.kind:
            case "phase_started" if self._main in (None, draft.line):
                self._phase = str(draft.payload["phase"])
                self._dirty["phase"] = "paused" if self._paused else self._phase
            case "paused" | "unpaused":
                self._paused = draft.kind == "paused"
                self._dirty["phase"] = "paused" if self._paused else self._phase
            case "step_started":
                self._steps += 1
                self._dirty["steps"] = self._steps
            case "asked":
                self._wait(+1)
            case "answered":
                self._wait(-1)
            case "prompted" if draft.payload.get("origin") == "nudge":
                if draft.payload.get("via") != "user-model" and draft.line == self._main:
                    self._dirty["assisted"] = True
            case "line_started" if draft.payload.get("main"):
                self._main = draft.line
                if draft.payload.get("assisted"):
                    self._dirty["assisted"] = True
            case "main_line_set" if draft.payload.get("why") == "restore":
                self._dirty["assisted"] = True
            case "scored" if draft.line == self._main:
                self._dirty["reward"] = draft.payload["reward"]

    def _wait(self, change: int) -> None:
        self._waiting = max(0, self._waiting + change)
        state = RolloutState.WAITING if self._waiting else RolloutState.RUNNING
        self._dirty["state"] = state.value
