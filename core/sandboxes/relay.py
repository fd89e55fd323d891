"""The one door between the agent's loopback and the world.

The agent's sockets end here, in the engine: the holder makes a listening socket
inside the agent's network and hands it over. Every byte therefore passes this
file, which is what makes the fence and the count of open exchanges true.

An *exchange* is in flight on a connection when the last bytes on it came from
the agent and were let through; it is answered by the first bytes back, or by
the other side's end. Bytes held by a fence are not in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from core.contracts.errors import SandboxError, UsageError
from core.contracts.sandbox import RelayHandler

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Listen: TypeAlias = Callable[[int], Awaitable[socket.socket]]
Connect: TypeAlias = Callable[[int], Awaitable[Streams]]
CHUNK = 1 << 16


@dataclass(slots=True)
class Route:
    """One port on the agent's loopback and where it leads."""

    target: int | None
    handler: RelayHandler | None
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class LocalRelay:
    """Routes of one sandbox. ``listen`` and ``connect`` are the sandbox's own doors."""

    def __init__(self, listen: Listen, connect: Connect) -> None:
        self._listen = listen
        self._connect = connect
        self._routes: dict[int, Route] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def fence(self) -> None:
        self._open.clear()

    def lift(self) -> None:
        self._open.set()

    async def drain(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    async def forward(self, port: int, *, target: int | None = None) -> None:
        await self._add(port, Route(port if target is None else target, None))

    async def serve(self, port: int, handler: RelayHandler) -> None:
        await self._add(port, Route(None, handler))

    async def _add(self, port: int, route: Route) -> None:
        if port in self._routes:
            raise UsageError(
                f"port {port} of the agent's loopback is taken",
                remedy="Give each route its own port",
            )
        self._routes[port] = route
        try:
            await self._start(port, route)
        except BaseException:
            self._routes.pop(port, None)
            raise

    async def _start(self, port: int, route: Route) -> None:
        try:
            sock = await self._listen(port)
        except OSError as error:
            raise SandboxError(
                f"cannot listen on port {port} of the agent's loopback: {error.strerror}",
                remedy="Choose a port that nothing in the agent's compartment uses",
            ) from error

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                route.tasks.add(task)
                task.add_done_callback(route.tasks.discard)
            await self._carry(route, reader, writer)

        route.server = await asyncio.start_server(accept, sock=sock, limit=CHUNK)

    async def reopen(self) -> None:
        """Listen again on every route: the network behind them is a new one."""
        await self.close()
        for port, route in self._routes.items():
            await self._start(port, route)

    async def close(self) -> None:
        """End every connection and stop listening; routes are remembered."""
        tasks: list[asyncio.Task[None]] = []
        for route in self._routes.values():
            if route.server is not None:
                route.server.close()
                route.server = None
            tasks.extend(route.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    async def _carry(
        self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        exchange = _Exchange(self._count)
        try:
            if route.handler is not None:
                await self._with_handler(route.handler, exchange, reader, writer)
            elif route.target is not None:
                try:
                    far = await self._connect(route.target)
                except (OSError, TimeoutError, SandboxError):
                    # What a plain loopback would do: the client sees its connection reset.
                    writer.transport.abort()
                    return
                await self._splice(exchange, (reader, writer), far)
        except (ConnectionError, asyncio.CancelledError):
            # The end of a connection, ours or theirs, is nobody's failure.
            pass
        finally:
            exchange.over()
            await _close(writer)

    async def _with_handler(
        self,
        handler: RelayHandler,
        exchange: _Exchange,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        ours, theirs = socket.socketpair()
        # Both ends are closed whichever of the steps below is cancelled.
        with contextlib.ExitStack() as ends:
            ends.callback(ours.close)
            ends.callback(theirs.close)
            far = await asyncio.open_connection(sock=ours, limit=CHUNK)
            ends.callback(far[1].transport.abort)
            near = await asyncio.open_connection(sock=theirs, limit=CHUNK)
            ends.callback(near[1].transport.abort)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._splice(exchange, (reader, writer), far))
                group.create_task(_handle(handler, near))

    async def _splice(self, exchange: _Exchange, agent: Streams, far: Streams) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outward(exchange, agent[0], far[1]))
                group.create_task(self._inward(exchange, far[0], agent[1]))
        except* ConnectionError:
            pass
        finally:
            await _close(far[1])

    async def _outward(
        self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Agent to service. New requests wait at the fence; a running one goes on."""
        while data := await reader.read(CHUNK):
            if not exchange.running:
                await self._open.wait()
            exchange.begun()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _inward(
        self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
            exchange.answered()
        exchange.over()
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _count(self, change: int) -> None:
        self._in_flight += change
        if self._in_flight:
            self._quiet.clear()
        else:
            self._quiet.set()


class _Exchange:
    """Whether the last word on one connection was the agent's."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self.running = False
        self._ended = False

    def begun(self) -> None:
        if not self.running and not self._ended:
            self.running = True
            self._count(1)

    def answered(self) -> None:
        if self.running:
            self.running = False
            self._count(-1)

    def over(self) -> None:
        self.answered()
        self._ended = True


async def _handle(handler: RelayHandler, near: Streams) -> None:
    try:
        await handler(*near)
    finally:
        await _close(near[1])


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
