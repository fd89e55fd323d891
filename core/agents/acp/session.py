"""One ACP conversation as a ``Session``.

Invariant: every turn ends, with a stop reason or a typed error, whatever the
agent does; questions and permissions left open by a cancel or a death are
settled first. Protocol: ACP v1 (initialize, session/new, session/prompt,
session/cancel, session/update, session/request_permission, elicitation/create);
``native.py`` says how a session goes on in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext

from core.agents.acp import forms, native
from core.agents.acp.asks import OpenAsks
from core.agents.acp.link import INVALID_PARAMS, AcpLink, RequestHandler, RpcError
from core.agents.acp.pulse import Pulse
from core.agents.acp.turn import Deadlines, Dialect, Turn
from core.agents.acp.updates import read_update, read_usage
from core.agents.acp.wire import WireSink
from core.agents.permissions import decide
from core.agents.stream import UpdateStream
from core.contracts.agent import (
    AgentExit,
    Answer,
    AskUser,
    AskUserHandler,
    Noise,
    OtherUpdate,
    PermissionAsked,
    PermissionDecision,
    PermissionHandler,
    SessionSnapshot,
    SessionUpdate,
)
from core.contracts.errors import (
    AgentError,
    AgentProtocolError,
    CheckpointError,
    UsageError,
)
from core.contracts.sandbox import Process
from core.contracts.values import Fidelity, JsonObject, JsonValue, StopReason

PROTOCOL_VERSION = 1
_FOREIGN_KEPT = 1000
_HURRY = 1.0
"""Seconds that a caller who cancelled us may be kept waiting."""
_AGENT_STOPS = frozenset(list(StopReason)[:5])
"""The stop reasons that ACP v1 knows."""


class AcpSession:
    """A live conversation with an ACP agent in a sandbox."""

    def __init__(
        self,
        process: Process,
        dialect: Dialect,
        *,
        deadlines: Deadlines | None = None,
        wire: WireSink | None = None,
    ) -> None:
        self._dialect = dialect
        self._deadlines = deadlines or Deadlines()
        self._link = AcpLink(process, self, name=dialect.name, wire=wire)
        self._stream = UpdateStream()
        self._asks = OpenAsks()
        self._id = ""
        self._cwd = ""
        self._capabilities: JsonObject = {}
        self._settings = native.Settings()
        self._taken_up_by = ""
        self._replayed = 0
        self._foreign: dict[str, list[tuple[JsonValue, int]]] = {}
        self._turn: Turn | None = None
        self._turns = 0
        self._ask_handler: AskUserHandler | None = None
        self._permission_handler: PermissionHandler | None = None

    # -- connecting ---------------------------------------------------------

    async def open(self, cwd: str) -> None:
        """Initialize and start a new session in ``cwd``; closes the process when it fails."""
        self._cwd = cwd
        await self._connect("session/new", {"cwd": cwd, "mcpServers": []})

    async def take_up(self, kept: native.Kept) -> None:
        """Initialize and go on with a session from the agent's home; closes the process
        when it fails.

        What the agent replays until the first prompt happened in the session's first
        life: it is counted, not reported. Raises CheckpointError when the agent refuses.
        """
        limits = self._deadlines
        try:
            await self._initialize()
            # A replay comes before the answer, so its session must be known by then.
            self._id, self._cwd, self._taken_up_by = kept.session, kept.cwd, kept.ways[0]
            way, answer = await native.take_up(self._link, kept, limits.take_up)
            self._taken_up_by = way
            self._settings.read_answer(answer)
            await native.put_in_force(self._link, kept, self._settings, limits.take_up)
            if way == native.LOAD or self._replayed:
                await self._stream.quiet(limits.silence, limits.replay)
        except BaseException:
            await self.close()
            raise

    async def _connect(self, method: str, params: JsonObject) -> None:
        """Initialize, and call the method whose answer names our session."""
        try:
            await self._initialize()
            answer = await self._link.request(method, params, self._deadlines.new_session)
            self._settings.read_answer(forms.as_object(answer))
            session = forms.as_text(forms.as_object(answer).get("sessionId"))
            if not session:
                raise self._protocol_error(f"answered {method} without a session id")
            self._claim(session)
        except BaseException:
            await self.close()
            raise

    async def _initialize(self) -> None:
        self._link.start()
        params: JsonObject = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
                "elicitation": {"form": {}},
            },
        }
        answer = await self._link.request("initialize", params, self._deadlines.initialize)
        result = forms.as_object(answer)
        if result.get("protocolVersion") != PROTOCOL_VERSION:
            raise self._protocol_error(
                f"answered initialize with protocol version {result.get('protocolVersion')!r}, "
                f"not {PROTOCOL_VERSION}"
            )
        self._capabilities = forms.as_object(result.get("agentCapabilities"))

    def _claim(self, session: str) -> None:
        # No await in here: updates that came before the answer stay before those after it.
        self._id = session
        for raw, size in self._foreign.pop(session, []):
            self._take_now(raw, size)
        for other, held in self._foreign.items():
            self._stream.put_now(Noise("protocol", f"{len(held)} updates of session {other!r}"))
        self._foreign.clear()

    # -- the Session contract -------------------------------------------------

    @property
    def id(self) -> str:
        return self._id

    async def prompt(self, text: str) -> StopReason:
        """Run one turn. Raises AgentCrashed, AgentProtocolError or AgentTimeout."""
        blocks: list[JsonValue] = [{"type": "text", "text": text}]
        return await self._run_turn("session/prompt", {"sessionId": self._id, "prompt": blocks})

    async def resume_turn(self) -> StopReason:
        """Always raises CheckpointError: this agent never has a turn to take up."""
        raise CheckpointError(
            f"agent {self._dialect.name} cannot take up an interrupted turn",
            remedy="Branch at the end of a turn instead of at an open question",
        )

    async def cancel(self) -> None:
        """Settle what is open as cancelled, tell the agent, wait for the turn to end."""
        turn = self._turn
        if turn is None:
            return
        await self._stop(turn, self._deadlines.cancel)
        await turn.ended.wait()

    def on_ask_user(self, handler: AskUserHandler) -> None:
        self._ask_handler = handler

    def on_permission(self, handler: PermissionHandler) -> None:
        self._permission_handler = handler

    def updates(self) -> AsyncIterator[SessionUpdate]:
        return self._stream.read()

    async def settle(self) -> None:
        await self._stream.settle()

    async def snapshot(self) -> SessionSnapshot:
        """The session at rest, by its name: its history is in the agent's home.

        Raises CheckpointError in a turn, at an open question, and where the agent
        takes no session up again.
        """
        name, ways = self._dialect.name, native.ways(self._capabilities)
        native.check_rest(
            name, ways, turn=bool(self._turn), ask=self._asks.waiting, over=bool(self._link.broken)
        )
        kept = native.Kept(self._id, self._cwd, ways, self._settings)
        return SessionSnapshot(name, Fidelity.NATIVE, kept.to_json(), False, self._turns)

    def held(self) -> AbstractContextManager[None]:
        """Inside, the running turn may be silent as long as it likes."""
        return self._turn.pulse.held() if self._turn is not None else nullcontext()

    async def close(self) -> AgentExit:
        """End the agent's process group and prove it gone. Safe to call twice."""
        if self._turn is not None:
            self._turn.cancelled.set()
        await self._asks.cancel_all(self._deadlines.cancel)
        try:
            return await self._link.close(self._deadlines.close)
        finally:
            self._stream.close()

    # -- one turn -------------------------------------------------------------

    async def _run_turn(self, method: str, params: JsonObject) -> StopReason:
        if self._turn is not None:
            raise UsageError("a turn of this session is still running", remedy="Wait or cancel it")
        turn = self._turn = Turn(self._new_pulse())
        self._turns += 1
        try:
            answer = await self._link.begin(method, params)
            try:
                result = await self._await_answer(turn, answer)
            finally:
                answer.cancel()
            if result is None:
                return StopReason.CANCELLED
            await self._stream.quiet(self._deadlines.silence, self._deadlines.late)
            return self._stop_reason(turn, result)
        except asyncio.CancelledError:
            await self._stop(turn, _HURRY)
            raise
        finally:
            turn.failed.cancel()
            turn.ended.set()
            self._turn = None

    def _new_pulse(self) -> Pulse:
        """Of the turn that begins now. A prompt ends the taking up of a session."""
        limits, way = self._deadlines, self._taken_up_by
        if not way:
            return Pulse(limits.first_update, limits.idle)
        self._taken_up_by = ""
        note: JsonObject = {"method": way, "replayed_updates": self._replayed}
        self._stream.put_now(OtherUpdate("session_restored", note))
        return Pulse(limits.restored_update, limits.idle, own_acts=True)

    async def _stop(self, turn: Turn, limit: float) -> None:
        turn.cancelled.set()
        await self._asks.cancel_all(limit)
        await self._link.notify("session/cancel", {"sessionId": self._id}, limit)

    async def _await_answer(self, turn: Turn, answer: asyncio.Future[JsonValue]) -> JsonValue:
        """The agent's answer; None where it ignored a cancel and had to be killed."""
        watchers = [
            asyncio.create_task(turn.pulse.lost()),
            asyncio.create_task(turn.cancelled_for(self._deadlines.cancel)),
        ]
        something = asyncio.Event()
        answer.add_done_callback(lambda _: something.set())
        for waited in (turn.failed, *watchers):
            waited.add_done_callback(lambda _: something.set())
        try:
            await something.wait()
            if turn.failed.done():
                turn.failed.result()
            if answer.done():
                return await self._outcome(turn, answer)
            if watchers[1].done():
                await self._link.close(self._deadlines.close)
                return None
            raise turn.pulse.error(self._dialect.name, self._link.tail)
        finally:
            for watcher in watchers:
                watcher.cancel()

    async def _outcome(self, turn: Turn, answer: asyncio.Future[JsonValue]) -> JsonValue:
        try:
            return answer.result()
        except AgentError as error:
            if turn.cancelled.is_set():
                return {"stopReason": StopReason.CANCELLED.value}
            if not isinstance(error, RpcError):
                raise
            raise self._protocol_error(
                f"refused the prompt: {error.what} ({error.code})"
            ) from error

    def _stop_reason(self, turn: Turn, result: JsonValue) -> StopReason:
        answer = forms.as_object(result)
        usage = read_usage(answer.get("usage"))
        if usage is not None:
            self._stream.put_now(usage)
        if turn.cancelled.is_set():
            # Agents answer a cancelled turn with end_turn; the flag is ours.
            return StopReason.CANCELLED
        word = answer.get("stopReason")
        if word in _AGENT_STOPS:
            return StopReason(str(word))
        if not isinstance(word, str):
            raise self._protocol_error("ended the turn without a stop reason")
        self._stream.put_now(Noise("protocol", f"unknown stop reason {word[:100]!r}"))
        return StopReason.END_TURN

    # -- what the agent sends (the Receiver of the link) -----------------------

    async def on_notification(self, method: str, params: JsonObject, size: int) -> None:
        if method == "session/update":
            await self._take(params, size)

    async def on_noise(self, noise: Noise) -> None:
        await self._stream.put(noise, len(noise.sample))

    def request_handler(self, method: str) -> RequestHandler | None:
        if method == "elicitation/create":
            return self._on_elicitation
        if method == "session/request_permission":
            return self._on_permission
        return None

    def on_failure(self, error: Exception) -> None:
        if self._turn is not None and not self._turn.failed.done():
            self._turn.failed.set_exception(error)

    async def _take(self, params: JsonObject, size: int) -> None:
        session, raw = params.get("sessionId"), params.get("update")
        if not self._id:
            held = self._foreign.setdefault(str(session), [])
            if sum(map(len, self._foreign.values())) < _FOREIGN_KEPT:
                held.append((raw, size))
            return
        if session != self._id:
            await self.on_noise(Noise("protocol", f"an update of session {session!r}"[:200]))
            return
        self._settings.read_update(raw)
        if self._taken_up_by and not native.is_standing(raw):
            self._replayed += 1
            self._stream.passed_by()
            return
        update = read_update(raw)
        if update is not None:
            if self._turn is not None:
                self._turn.pulse.heard(update)
            await self._stream.put(update, size)

    def _take_now(self, raw: JsonValue, size: int) -> None:
        self._settings.read_update(raw)
        update = read_update(raw)
        if update is not None:
            self._stream.put_now(update, size)

    def _asked(self) -> AbstractContextManager[None]:
        return self._turn.pulse.asked() if self._turn is not None else nullcontext()

    async def _on_elicitation(self, params: JsonObject) -> JsonValue:
        if params.get("mode", "form") != "form":
            raise RpcError(INVALID_PARAMS, "only form elicitation is supported")
        ask = forms.elicitation_ask(params)
        return forms.elicitation_reply(ask, await self._ask(ask))

    async def _on_permission(self, params: JsonObject) -> JsonValue:
        asked = forms.permission_asked(params)
        if self._dialect.asks_by == "permission":
            answer = await self._ask(forms.permission_ask(asked))
            picked = answer.content.get(forms.PERMISSION_FIELD)
            return forms.permission_reply(picked if answer.action == "accept" else None)
        with self._asked():
            decision = await self._asks.wait(self._decide(asked))
        return forms.permission_reply(decision.option if decision else None)

    async def _ask(self, ask: AskUser) -> Answer:
        if self._ask_handler is None:
            return Answer("decline")
        if self._turn is not None and self._turn.cancelled.is_set():
            return Answer("cancel")
        with self._asked():
            return await self._asks.wait(self._ask_handler(ask)) or Answer("cancel")

    async def _decide(self, asked: PermissionAsked) -> PermissionDecision:
        if self._taken_up_by or (self._turn is not None and self._turn.cancelled.is_set()):
            return PermissionDecision(None, policy="cancelled")
        if self._permission_handler is not None:
            return await self._permission_handler(asked)
        return decide("auto", asked) or PermissionDecision(None, policy="auto")

    def _protocol_error(self, what: str) -> AgentProtocolError:
        return AgentProtocolError(
            f"agent {self._dialect.name} {what}",
            where=f"its last output: {self._link.tail or 'nothing'}",
            remedy="Check the agent's version and its own log",
        )
