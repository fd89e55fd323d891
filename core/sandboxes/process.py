"""Programs seen from the engine: a long-running one with pipes, and one run to its end.

Output that nobody asked to keep is never held: a finished command keeps the
head and the tail of each stream and counts the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable

from core.contracts.errors import SandboxLost
from core.contracts.sandbox import ExecResult
from core.sandboxes.identity import is_root
from core.sandboxes.link import Channel
from core.sandboxes.wire import Message

READ_LIMIT = 1 << 22
"""Buffer of a spawned program's streams, hence the longest line ``readline`` takes."""
_PROOF_SECONDS = 10.0
_DRAIN_SECONDS = 1.0


class Pipes:
    """The three pipes of one program, both ends, until each finds its owner."""

    def __init__(self, uid: int, *, stdin: bool) -> None:
        self._open: set[int] = set()
        if stdin:
            self.stdin_out, self.stdin = self._pipe()
        else:
            self.stdin_out = self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            self.stdin = -1
        self.stdout, self.stdout_out = self._pipe()
        self.stderr, self.stderr_out = self._pipe()
        # So that a program may open /dev/stdin, /dev/stdout and /dev/stderr by name. An ordinary
        # user's programs are that user already.
        for fd in self.theirs[0 if stdin else 1 :]:
            if is_root():
                os.fchown(fd, uid, uid)

    def _keep(self, fd: int) -> int:
        self._open.add(fd)
        return fd

    def _pipe(self) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self._keep(read), self._keep(write)

    @property
    def theirs(self) -> tuple[int, int, int]:
        return self.stdin_out, self.stdout_out, self.stderr_out

    def take(self, fd: int) -> int:
        """The caller closes ``fd`` from now on."""
        self._open.discard(fd)
        return fd

    def drop(self, *fds: int) -> None:
        for fd in fds or tuple(self._open):
            self._open.discard(fd)
            os.close(fd)


class LocalProcess:
    """A running program. Its streams end by themselves once all it started is dead."""

    def __init__(self, channel: Channel, number: int, exited: asyncio.Future[int]) -> None:
        self._channel = channel
        self._number = number
        self._exited = exited
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.StreamWriter | None = None
        self._stdout = asyncio.StreamReader(limit=READ_LIMIT)
        self._stderr = asyncio.StreamReader(limit=READ_LIMIT)
        exited.add_done_callback(self._ended)

    async def attach(self, pipes: Pipes) -> None:
        loop = asyncio.get_running_loop()
        for fd, reader in ((pipes.stdout, self._stdout), (pipes.stderr, self._stderr)):
            pipe = os.fdopen(pipes.take(fd), "rb", 0)
            reading, _ = await loop.connect_read_pipe(_protocol(reader), pipe)
            self._transports.append(reading)
        writer = os.fdopen(pipes.take(pipes.stdin), "wb", 0)
        unused = asyncio.StreamReader()
        transport, protocol = await loop.connect_write_pipe(_protocol(unused), writer)
        self._stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self._transports.append(transport)

    @property
    def stdin(self) -> asyncio.StreamWriter:
        if self._stdin is None:
            raise RuntimeError("the program's pipes are not attached yet")
        return self._stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        return self._stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        return self._stderr

    @property
    def returncode(self) -> int | None:
        if not self._exited.done():
            return None
        return -signal.SIGKILL if self._exited.exception() else self._exited.result()

    def _ended(self, exited: asyncio.Future[int]) -> None:
        if not exited.cancelled():
            exited.exception()
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> int:
        """Until it and all it started are gone. Raises SandboxLost when the sandbox went first."""
        return await asyncio.shield(self._exited)

    async def _within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._exited], timeout=seconds)
        return bool(done)

    async def kill(self, *, grace: float = 2.0) -> int:
        """EOF, half the grace; TERM, the other half; KILL. Raises SandboxLost without proof."""
        if self._stdin is not None:
            self._stdin.close()
        if grace > 0 and not await self._within(grace / 2):
            await self._channel.tell("signal", self._number, signal.SIGTERM)
            await self._within(grace / 2)
        if not self._exited.done():
            await end(self._channel, self._number, self._exited)
        return self.returncode or 0

    def abandon(self) -> None:
        """Close what nobody reads any more; only once the program is gone."""
        for transport in self._transports:
            transport.close()


def _protocol(reader: asyncio.StreamReader) -> Callable[[], asyncio.StreamReaderProtocol]:
    return lambda: asyncio.StreamReaderProtocol(reader)


async def end(channel: Channel, number: int, exited: asyncio.Future[int]) -> None:
    """Kill a program's whole pid namespace and wait until the kernel says that it is empty."""
    await channel.tell("signal", number, signal.SIGKILL)
    done, _ = await asyncio.wait([exited], timeout=_PROOF_SECONDS)
    if not done:
        raise SandboxLost(
            f"a program could not be proven dead within {_PROOF_SECONDS:g} s",
            where=f"program {number}",
            remedy="Tear the sandbox down; a program may hang in the kernel, or the sandbox is "
            "frozen",
        )


class Bounded(asyncio.Protocol):
    """Keeps half of ``limit`` bytes from the head of a stream and half from its tail."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed at twice its size, so that each byte is moved at most once on average.
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set()

    def value(self) -> bytes:
        tail = self._tail[-self._half :]
        left_out = self.total - len(self._head) - len(tail)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return bytes(self._head) + gap + bytes(tail)


class _Feed(asyncio.Protocol):
    """A writer that does not mind when nobody reads."""


async def run(
    channel: Channel, message: Message, pipes: Pipes, *, stdin: bytes, timeout: float, limit: int
) -> ExecResult:
    """Run a program to its end, or kill it at ``timeout`` or on cancellation."""
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    kept = (Bounded(limit), Bounded(limit))
    transports: list[asyncio.BaseTransport] = []
    try:
        number, exited = await channel.spawn(message, pipes.theirs)
        pipes.drop(*pipes.theirs)
        try:
            for fd, protocol in zip((pipes.stdout, pipes.stderr), kept, strict=True):
                reading, _ = await loop.connect_read_pipe(
                    _always(protocol), os.fdopen(pipes.take(fd), "rb", 0)
                )
                transports.append(reading)
            if stdin:
                feeding, _ = await loop.connect_write_pipe(
                    _Feed, os.fdopen(pipes.take(pipes.stdin), "wb", 0)
                )
                transports.append(feeding)
                feeding.write(stdin)
                feeding.write_eof()
            done, _ = await asyncio.wait([exited], timeout=timeout)
        finally:
            if not exited.done():
                await asyncio.shield(end(channel, number, exited))
        code = exited.result()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                for protocol in kept:
                    await protocol.ended.wait()
    finally:
        pipes.drop()
        for transport in transports:
            transport.close()
    return ExecResult(
        exit_code=code,
        stdout=kept[0].value(),
        stderr=kept[1].value(),
        seconds=time.monotonic() - began,
        timed_out=not done,
        stdout_bytes=kept[0].total,
        stderr_bytes=kept[1].total,
    )


def _always(protocol: Bounded) -> Callable[[], Bounded]:
    return lambda: protocol
