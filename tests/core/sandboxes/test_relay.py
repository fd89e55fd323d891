"""The relay alone, between plain sockets: fence, count, back-pressure, ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from core.contracts.errors import UsageError
from core.sandboxes.relay import LocalRelay, Streams

Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PORT = 9000


class World:
    """A service that the test scripts, and the door an agent would use."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.service = 0
        self.relay = LocalRelay(self._listen, self._connect)
        self._server: asyncio.Server | None = None

    async def _listen(self, port: int) -> socket.socket:
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.ports[port] = sock.getsockname()[1]
        return sock

    async def _connect(self, port: int) -> Streams:
        assert port == 8000
        return await asyncio.open_connection("127.0.0.1", self.service)

    async def serve(self, handler: Handler) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            finally:
                writer.close()

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.service = self._server.sockets[0].getsockname()[1]

    async def agent(self, port: int = PORT) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.ports[port])

    async def close(self) -> None:
        await self.relay.close()
        if self._server is not None:
            self._server.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


async def echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()


async def test_bytes_pass_both_ways_on_one_kept_connection(world: World) -> None:
    await world.serve(echo_lines)
    await world.relay.forward(PORT, target=8000)
    reader, writer = await world.agent()
    for word in (b"one\n", b"two\n"):
        writer.write(word)
        assert await reader.readline() == word
    assert world.relay.in_flight == 0
    writer.close()


async def test_ten_megabytes_pass_in_both_directions(world: World) -> None:
    body = bytes(range(256)) * 40_960

    async def swallow_then_send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(data[::-1])
        await writer.drain()

    await world.serve(swallow_then_send)
    await world.relay.forward(PORT, target=8000)
    reader, writer = await world.agent()
    writer.write(body)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), 30) == body[::-1]
    writer.close()


async def test_an_exchange_is_in_flight_until_its_first_answer(world: World) -> None:
    heard, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        heard.set()
        await go.wait()
        writer.write(b"answer\n")
        await writer.drain()
        await reader.read()

    await world.serve(slow)
    await world.relay.forward(PORT, target=8000)
    reader, writer = await world.agent()
    writer.write(b"ask\n")
    await asyncio.wait_for(heard.wait(), 10)
    assert world.relay.in_flight == 1
    assert not await world.relay.drain(0.05)
    drained = asyncio.create_task(world.relay.drain(10))
    go.set()
    assert await drained
    assert await reader.readline() == b"answer\n"
    assert world.relay.in_flight == 0
    writer.close()


async def test_the_fence_holds_new_requests_and_lets_running_ones_end(world: World) -> None:
    got: list[bytes] = []
    heard, go = asyncio.Event(), asyncio.Event()

    async def service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            got.append(line)
            heard.set()
            await go.wait()
            writer.write(line)

    await world.serve(service)
    await world.relay.forward(PORT, target=8000)
    running = await world.agent()
    running[1].write(b"running\n")
    await asyncio.wait_for(heard.wait(), 10)
    world.relay.fence()
    idle = await world.agent()
    idle[1].write(b"held\n")
    running[1].write(b"rest of it\n")
    go.set()
    assert await running[0].readline() == b"running\n"
    assert await running[0].readline() == b"rest of it\n"
    assert await world.relay.drain(5)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(idle[0].readline(), 0.2)
    assert b"held\n" not in got
    assert world.relay.in_flight == 0
    world.relay.lift()
    assert await asyncio.wait_for(idle[0].readline(), 10) == b"held\n"
    for _, writer in (running, idle):
        writer.close()


async def test_a_service_that_hangs_up_ends_the_exchange(world: World) -> None:
    async def rude(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readline()

    await world.serve(rude)
    await world.relay.forward(PORT, target=8000)
    reader, writer = await world.agent()
    writer.write(b"ask\n")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert await world.relay.drain(5)
    writer.close()


async def test_an_agent_that_leaves_does_not_end_what_the_service_still_does(world: World) -> None:
    heard, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readline()
        heard.set()
        await go.wait()

    await world.serve(slow)
    await world.relay.forward(PORT, target=8000)
    _, writer = await world.agent()
    writer.write(b"ask\n")
    await asyncio.wait_for(heard.wait(), 10)
    writer.close()
    await writer.wait_closed()
    assert not await world.relay.drain(0.2)
    go.set()
    assert await world.relay.drain(5)


async def test_nobody_listening_resets_the_client_at_once(world: World) -> None:
    await world.serve(echo_lines)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        world.service = unused.getsockname()[1]
    await world.relay.forward(PORT, target=8000)
    reader, writer = await world.agent()
    try:
        writer.write(b"ask\n")
        assert await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        pass
    writer.close()


async def test_a_handler_in_the_engine_answers_a_port(world: World) -> None:
    await world.relay.serve(PORT, echo_lines)
    reader, writer = await world.agent()
    writer.write(b"ask\n")
    assert await asyncio.wait_for(reader.readline(), 10) == b"ask\n"
    assert world.relay.in_flight == 0
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_one_port_takes_one_route(world: World) -> None:
    await world.relay.serve(PORT, echo_lines)
    with pytest.raises(UsageError, match="9000"):
        await world.relay.forward(PORT)


async def test_routes_open_again_after_the_network_was_replaced(world: World) -> None:
    await world.relay.serve(PORT, echo_lines)
    _, old = await world.agent()
    before = world.ports[PORT]
    await world.relay.reopen()
    assert world.ports[PORT] != before
    reader, writer = await world.agent()
    writer.write(b"again\n")
    assert await asyncio.wait_for(reader.readline(), 10) == b"again\n"
    writer.close()
    old.close()
