"""An agent whose turns are Python functions, and a user whose answers are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Literal, TypeAlias

from core.contracts.agent import (
    AgentCapabilities,
    AgentExit,
    Answer,
    AskField,
    AskUser,
    AskUserHandler,
    MessageText,
    Option,
    PermissionAsked,
    PermissionDecision,
    PermissionHandler,
    Role,
    Session,
    SessionSnapshot,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
)
from core.contracts.errors import AgentCrashed, CheckpointError
from core.contracts.sandbox import Mount, Sandbox
from core.contracts.user import AskContext, Nudge, TurnEnd
from core.contracts.values import Fidelity, StopReason
from tests.fakes.kernel_points import Points

Turn: TypeAlias = "Callable[[FakeSession, str], Awaitable[StopReason]]"


def question(text: str = "Which size?", call: str | None = None) -> AskUser:
    options = (Option("s", "Small"), Option("l", "Large"))
    return AskUser(text, (AskField("size", "Size", "choice", options),), "elicitation", call)


class FakeSession:
    """Runs a turn's function as the agent would run: beside its reader, cancellable."""

    id = "session-1"

    def __init__(
        self, points: Points, turns: Sequence[Turn], alive: set[int], *, deaf: bool
    ) -> None:
        self._points = points
        self._turns = list(turns)
        self._alive = alive
        self._deaf = deaf
        """Does not react to a cancel, as a broken agent does."""
        self._queue: deque[SessionUpdate] = deque()
        self._received = self._handled = 0
        self._changed = asyncio.Condition()
        self._closed = False
        self._read = False
        self._cancelled = asyncio.Event()
        self._asks: set[asyncio.Task[Answer]] = set()
        self._background: list[asyncio.Task[Answer]] = []
        self._ask_handler: AskUserHandler | None = None
        self._permission_handler: PermissionHandler | None = None
        self.prompts: list[str] = []
        alive.add(id(self))

    # -- the contract ---------------------------------------------------------

    async def prompt(self, text: str) -> StopReason:
        self.prompts.append(text)
        await self._points.reach("prompt")
        number = min(len(self.prompts), len(self._turns)) - 1
        self._cancelled.clear()
        turn = asyncio.ensure_future(self._turns[number](self, text))
        stop = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait({turn, stop}, return_when=asyncio.FIRST_COMPLETED)
            return turn.result() if turn.done() else StopReason.CANCELLED
        finally:
            for task in (turn, stop):
                task.cancel()
            await asyncio.gather(turn, stop, return_exceptions=True)

    async def resume_turn(self) -> StopReason:
        raise CheckpointError("this agent has no turn to take up")

    async def cancel(self) -> None:
        await self._points.reach("cancel")
        if self._deaf:
            return
        self._cancelled.set()
        for ask in self._asks:
            ask.cancel()

    def on_ask_user(self, handler: AskUserHandler) -> None:
        self._ask_handler = handler

    def on_permission(self, handler: PermissionHandler) -> None:
        self._permission_handler = handler

    async def updates(self) -> AsyncIterator[SessionUpdate]:
        self._read = True
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._queue or self._closed)
                    if not self._queue:
                        return
                    update = self._queue.popleft()
                yield update
                async with self._changed:
                    self._handled += 1
                    self._changed.notify_all()
        finally:
            self._read = False

    async def settle(self) -> None:
        target = self._received
        async with self._changed:
            await self._changed.wait_for(lambda: self._handled >= target or not self._read)

    async def snapshot(self) -> SessionSnapshot:
        raise CheckpointError("this agent cannot be frozen")

    async def close(self) -> AgentExit:
        if not self._closed:
            await self._points.reach("session.close")
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        for ask in self._asks:
            ask.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._alive.discard(id(self))
        return AgentExit(0)

    # -- what a turn's function may do -----------------------------------------

    async def emit(self, *updates: SessionUpdate) -> None:
        async with self._changed:
            self._queue.extend(updates)
            self._received += len(updates)
            self._changed.notify_all()

    async def say(self, text: str) -> None:
        await self.emit(MessageText(text))

    async def think(self, text: str) -> None:
        await self.emit(ThoughtText(text))

    async def call(self, tool_call_id: str, title: str) -> None:
        await self.emit(
            ToolUpdate(tool_call_id, title=title, kind="execute", status="pending"),
            ToolUpdate(tool_call_id, status="completed", raw_output={"ok": True}),
        )

    async def ask(self, ask: AskUser) -> Answer:
        """Ask, as the transport does: the handler runs in a task of its own."""
        assert self._ask_handler is not None

        async def handled(handler: AskUserHandler) -> Answer:
            return await handler(ask)

        task = asyncio.create_task(handled(self._ask_handler))
        self._asks.add(task)
        try:
            await asyncio.wait({task})
            return Answer("cancel") if task.cancelled() else task.result()
        finally:
            self._asks.discard(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def later(self, ask: Coroutine[object, object, Answer]) -> None:
        """Ask without waiting for the answer."""
        self._background.append(asyncio.create_task(ask))

    async def permit(self, title: str) -> PermissionDecision:
        assert self._permission_handler is not None
        options = (Option("yes", "Allow", kind="allow_once"),)
        return await self._permission_handler(PermissionAsked(title, options, None))


class FakeAgent:
    name = "fake"

    def __init__(
        self,
        points: Points,
        turns: Sequence[Turn],
        *,
        deaf: bool = False,
        rule: Literal["proxy", "updates", "command"] = "updates",
    ) -> None:
        self._points = points
        self._turns = turns
        self._deaf = deaf
        self._rule: Literal["proxy", "updates", "command"] = rule
        self.alive: set[int] = set()
        self.sessions: list[FakeSession] = []

    def capabilities(self) -> AgentCapabilities:
        return AgentCapabilities(Fidelity.NONE, Fidelity.NONE, asks=True, step_rule=self._rule)

    def mounts(self) -> tuple[Mount, ...]:
        return ()

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        await self._points.reach("connect")
        session = FakeSession(self._points, self._turns, self.alive, deaf=self._deaf)
        self.sessions.append(session)
        return session

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        raise CheckpointError("this agent cannot be restored")


class FakeUser:
    """Answers by choosing the first option; nudges as told, then accepts.

    With ``request`` its answers settle a stored request of that id.
    """

    name = "fake"

    def __init__(self, points: Points, nudges: Sequence[Nudge] = (), request: str = "") -> None:
        self._points = points
        self._nudges = list(nudges)
        self._request = request
        self.turns: list[TurnEnd] = []
        self.asked: list[AskContext] = []

    async def answer(self, ask: AskUser, context: AskContext) -> Answer:
        self.asked.append(context)
        await self._points.reach("user.answer")
        content = {item.name: item.options[0].value for item in ask.fields if item.options}
        return Answer(
            "accept", dict(content), actor="fake", via="user-model", request=self._request
        )

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        self.turns.append(turn)
        await self._points.reach("user.after_turn")
        return self._nudges.pop(0) if self._nudges else None


async def helpful(session: FakeSession, prompt: str) -> StopReason:
    """A turn with a thought, a call and a word."""
    await session.think("Let me look.")
    await session.call("t1", "ls")
    await session.say("Done.")
    return StopReason.END_TURN


async def asking(session: FakeSession, prompt: str) -> StopReason:
    """A turn that needs the user."""
    await session.say("I need to know.")
    answer = await session.ask(question())
    await session.say(f"You said {answer.action}.")
    return StopReason.END_TURN


async def crashing(session: FakeSession, prompt: str) -> StopReason:
    """A turn that dies after it has said something."""
    await session.say("Half a tho")
    raise AgentCrashed("the agent ended with code 1", remedy="Read its stderr")


async def endless(session: FakeSession, prompt: str) -> StopReason:
    """A turn that never ends by itself."""
    await session.say("Working.")
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
