"""A JSON-RPC 2.0 conversation with one agent process.

Invariant: nothing waits on a dead agent. Every open request fails, and every
request of the agent that is being served is cancelled, as soon as the process
is gone. Answers are matched by id, so a late one hurts nobody.

The Python ACP SDK's own connection is not used here: it starts one task per
notification (updates lose their order), answers before earlier updates are
handled, drops the fields of an elicitation, hides request ids, and costs 1.4 s
of processor time to import. Its models are the yardstick in the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from core.agents.acp.stderr import StderrTail
from core.agents.acp.transport import AcpTransport
from core.agents.acp.wire import WireSink
from core.contracts.agent import AgentExit, Noise
from core.contracts.errors import (
    AgentCrashed,
    AgentError,
    AgentProtocolError,
    AgentTimeout,
    SandboxLost,
)
from core.contracts.sandbox import Process
from core.contracts.values import JsonObject, JsonValue

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800
"""JSON-RPC 2.0 section 5.1; the last one is ACP's own."""

_TAIL_WAIT = 1.0
_SEND_LIMIT = 30.0


class RpcError(AgentProtocolError):
    """An error object of JSON-RPC: the agent's to us, or ours to the agent."""

    def __init__(self, code: int, message: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(message, where=where, remedy=remedy)
        self.code = code


class Receiver(Protocol):
    """Who takes what the agent sends."""

    async def on_notification(self, method: str, params: JsonObject, size: int) -> None:
        """Awaited before the next line is read: this is the back-pressure."""
        ...

    async def on_noise(self, noise: Noise) -> None: ...

    def request_handler(self, method: str) -> RequestHandler | None:
        """Who serves this request; None is answered "method not found" at once."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Serving a request failed on our side; the running turn must end with ``error``."""
        ...


RequestHandler = Callable[[JsonObject], Awaitable[JsonValue]]
"""Takes the parameters, gives the result."""


class AcpLink:
    """Owns the process: reads it, drains its stderr, and knows when it died."""

    def __init__(
        self, process: Process, receiver: Receiver, *, name: str, wire: WireSink | None = None
    ) -> None:
        self._process = process
        self._receiver = receiver
        self._name = name
        self._wire = wire
        self._transport = AcpTransport(process, wire=wire)
        self._stderr = StderrTail()
        self._pending: dict[int, asyncio.Future[JsonValue]] = {}
        self._next_id = 1
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._runner: asyncio.Task[None] | None = None
        self._broken: AgentError | None = None
        self._over = asyncio.Event()
        self._exit: AgentExit | None = None

    @property
    def name(self) -> str:
        """The agent's name, for messages."""
        return self._name

    @property
    def broken(self) -> AgentError | None:
        """Why the conversation is over, if it is."""
        return self._broken

    @property
    def tail(self) -> str:
        """What to show of the agent's own words when something went wrong."""
        return self._stderr.last_lines() or self._transport.last_noise

    def start(self) -> None:
        """Begin to read. Needs a running event loop."""
        self._runner = asyncio.create_task(self._run(), name=f"acp:{self._name}")

    async def request(self, method: str, params: JsonObject, timeout: float | None) -> JsonValue:
        """Call the agent.

        Raises RpcError for its error answer, AgentTimeout past ``timeout``
        seconds, AgentCrashed when it dies.
        """
        answer = await self.begin(method, params)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            raise AgentTimeout(
                f"agent {self._name} did not answer {method} within {timeout:g} s",
                where=f"its last output: {self.tail or 'nothing'}",
                remedy="Run the agent's command by hand to see what it waits for",
            ) from error

    async def begin(self, method: str, params: JsonObject) -> asyncio.Future[JsonValue]:
        """Send a request and hand back the future of its answer. Cancel it to forget the id."""
        if self._broken is not None:
            raise self._broken
        number = self._next_id
        self._next_id += 1
        answer: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        answer.add_done_callback(lambda _: self._pending.pop(number, None))
        message: JsonObject = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            await self._send(message)
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def notify(self, method: str, params: JsonObject, limit: float = _SEND_LIMIT) -> None:
        """Tell the agent something; nothing happens when it is gone already."""
        if self._broken is None:
            with contextlib.suppress(AgentError):
                await self._send({"jsonrpc": "2.0", "method": method, "params": params}, limit)

    async def close(self, grace: float) -> AgentExit:
        """End the agent (EOF, TERM, KILL) and wait for the proof. Safe to call twice."""
        try:
            code: int | None = await self._process.kill(grace=grace)
        except SandboxLost:
            code = None
        if self._runner is not None:
            await asyncio.wait({self._runner}, timeout=_TAIL_WAIT)
            self._runner.cancel()
            await asyncio.wait({self._runner})
        self._fail(AgentCrashed(f"agent {self._name} was closed"))
        if self._exit is None:
            self._exit = AgentExit(code, self._stderr.text())
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._runner is not None and not self._runner.cancelled():
            self._runner.result()
        return self._exit

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read(group))
                drain = group.create_task(self._stderr.drain(self._process.stderr))
                group.create_task(self._watch(reader, drain))
        finally:
            self._fail(AgentCrashed(f"the conversation with agent {self._name} was closed"))

    async def _watch(self, reader: asyncio.Task[None], drain: asyncio.Task[None]) -> None:
        try:
            code: int | None = await self._process.wait()
        except SandboxLost:
            code = None
        # The pipes may still hold its last words; a grandchild may keep them open for ever.
        await asyncio.wait({reader, drain}, timeout=_TAIL_WAIT)
        self._exit = AgentExit(code, self._stderr.text())
        self._fail(
            AgentCrashed(
                f"agent {self._name} ended with exit code {code}",
                where=f"its last output: {self.tail or 'nothing'}",
                remedy="See the agent's stderr in the rollout's record",
            )
        )
        for task in list(self._serving.values()):
            task.cancel()

    async def _read(self, group: asyncio.TaskGroup) -> None:
        try:
            while (message := await self._transport.receive()) is not None:
                while self._transport.noise:
                    await self._receiver.on_noise(self._transport.noise.popleft())
                if message:
                    await self._dispatch(message, group)
        except AgentProtocolError as error:
            self._fail(error)
            # Unread output would block the agent, and its end must still be noticed.
            with contextlib.suppress(ProcessLookupError, OSError):
                await self._transport.close()
            while await self._process.stdout.read(1 << 20):
                pass

    async def _dispatch(self, message: JsonObject, group: asyncio.TaskGroup) -> None:
        method, number = message.get("method"), message.get("id")
        if method is None and isinstance(number, int):
            self._settle(number, message)
            return
        raw = message.get("params")
        params: JsonObject = raw if isinstance(raw, dict) else {}
        if not isinstance(method, str):
            self._transport.add_noise("protocol", f"neither a request nor an answer: {message}")
        elif method == "$/cancel_request":
            self._withdraw(params.get("requestId"), group)
        elif "id" not in message:
            await self._receiver.on_notification(method, params, self._transport.size)
        elif (handler := self._receiver.request_handler(method)) is None:
            error: JsonObject = {
                "code": METHOD_NOT_FOUND,
                "message": f"Method not found: {method}",
            }
            # Not awaited here: an agent that writes before it reads must not block our reading.
            group.create_task(self._reply({"id": number, "error": error}))
        elif self._broken is None:
            self._serving[repr(number)] = group.create_task(self._serve(number, params, handler))

    def _settle(self, number: int, message: JsonObject) -> None:
        answer = self._pending.get(number)
        if answer is None or answer.done():
            return
        error = message.get("error")
        if error is None:
            answer.set_result(message.get("result"))
            return
        detail = error if isinstance(error, dict) else {}
        code = detail.get("code")
        data = detail.get("data")
        text = str(detail.get("message") or "no message") + (f": {data}" if data else "")
        answer.set_exception(
            RpcError(code if isinstance(code, int) else INTERNAL_ERROR, text[:2000])
        )

    async def _serve(self, number: JsonValue, params: JsonObject, handler: RequestHandler) -> None:
        try:
            reply: JsonObject = {"result": await handler(params)}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": error.what}}
        except Exception as error:  # outermost loop of one request: the turn ends with it
            self._receiver.on_failure(error)
            reply = {"error": {"code": INTERNAL_ERROR, "message": "the client could not answer"}}
        finally:
            self._serving.pop(repr(number), None)
        await self._reply({"id": number, **reply})

    def _withdraw(self, number: JsonValue, group: asyncio.TaskGroup) -> None:
        """The agent no longer wants an answer. A request already being answered is let be."""
        task = self._serving.pop(repr(number), None)
        if task is not None:
            # It may not have begun yet, so its answer is given here.
            task.cancel()
            error: JsonObject = {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
            group.create_task(self._reply({"id": number, "error": error}))

    async def _reply(self, message: JsonObject) -> None:
        with contextlib.suppress(AgentError):
            await self._send({"jsonrpc": "2.0", **message})

    async def _send(self, message: JsonObject, limit: float = _SEND_LIMIT) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._transport.send(message)
        except (OSError, RuntimeError) as error:
            # TimeoutError is an OSError: an agent that stopped reading is as gone as a closed pipe.
            await self._raise_broken(error)

    async def _raise_broken(self, error: Exception) -> None:
        # A closed pipe is usually the first sign of a death that has a better reason.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAIL_WAIT):
                await self._over.wait()
        what = f"agent {self._name} no longer reads its stdin"
        where = f"its last output: {self.tail or 'nothing'}"
        raise self._fail(AgentProtocolError(what, where=where)) from error

    def _fail(self, error: AgentError) -> AgentError:
        """End the conversation; the first reason stays the reason."""
        if self._broken is None:
            self._broken = error
            self._over.set()
        for answer in list(self._pending.values()):
            if not answer.done():
                answer.set_exception(self._broken)
        return self._broken
