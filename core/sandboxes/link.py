"""The engine's end of a holder: requests out, replies and exits in, by event.

A link is lost when its socket ends or its holder does; every waiter then gets
SandboxLost at once, so nobody hangs on a dead sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import TypeVar

from core.contracts.errors import SandboxError, SandboxLost, SandboxUnavailable
from core.sandboxes import boot, wire
from core.sandboxes.identity import is_root
from core.sandboxes.waiting import finish
from core.sandboxes.wire import ROOTLESS, Message

ANSWER_SECONDS = 10.0
T = TypeVar("T")


class Channel:
    """Numbered requests over one datagram socket."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._replies: dict[int, asyncio.Future[tuple[Message, list[int]]]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[Message] = self._loop.create_future()
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.lost: SandboxLost | None = None
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        while self.lost is None:
            try:
                got = wire.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                got = None
            if got is None:
                self.close("its holder ended")
                return
            self._take(*got)

    def _take(self, message: Message, fds: list[int]) -> None:
        op = message.get("op")
        if op == "exit":
            exited = self._exits.pop(message["program"], None)
            if exited is not None and not exited.done():
                exited.set_result(os.waitstatus_to_exitcode(message["status"]))
        elif op in ("ready", "failed"):
            if not self._ready.done():
                self._ready.set_result(message)
        else:
            reply = self._replies.pop(message["id"], None)
            if reply is not None and not reply.done():
                reply.set_result((message, fds))
                return
            # A program that started although nobody waits for it any more must not live on.
            if message["id"] in self._exits and "error" not in message:
                self._end_orphan(message["id"])
        for fd in fds:
            os.close(fd)

    def _end_orphan(self, number: int) -> None:
        task = self._loop.create_task(self.tell("signal", number, signal.SIGKILL))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, why: str) -> None:
        """End the channel; every waiter gets SandboxLost."""
        if self.lost is not None:
            return
        self.lost = SandboxLost(
            f"the sandbox is gone: {why}",
            where=self._name,
            remedy="Run the rollout again; look for the out-of-memory killer in the kernel's log",
        )
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for reply in self._replies.values():
            _fail(reply, self.lost)
        for exited in self._exits.values():
            _fail(exited, self.lost)
        _fail(self._ready, self.lost)
        self._replies.clear()
        self._exits.clear()

    async def ready(self) -> None:
        """Wait until the other end has set itself up. Raises SandboxError with its reason."""
        async with asyncio.timeout(ANSWER_SECONDS * 3):
            message = await asyncio.shield(self._ready)
        if "error" in message:
            raise SandboxUnavailable(
                f"this machine does not let a sandbox be set up: {message['error']}",
                where=self._name,
                remedy="Inside a container give it CAP_SYS_ADMIN, or use another sandbox; "
                "the store must lie on a file system that overlay can write to",
            )

    async def request(
        self, message: Message, fds: Sequence[int] = (), *, timeout: float = ANSWER_SECONDS
    ) -> tuple[Message, list[int]]:
        """One request and its reply. Raises SandboxLost, or OSError as the other end got it."""
        number, reply = await self._submit(message, fds)
        try:
            async with asyncio.timeout(timeout):
                answer, received = await reply
        except TimeoutError as error:
            raise SandboxLost(
                f"the sandbox did not answer within {timeout:g} s",
                where=self._name,
                remedy="Tear it down; look at the load of this machine",
            ) from error
        finally:
            self._replies.pop(number, None)
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer, received

    async def spawn(self, message: Message, fds: Sequence[int]) -> tuple[int, asyncio.Future[int]]:
        """Start a program; returns its number and the future of its exit code."""
        self._check()
        exited: asyncio.Future[int] = self._loop.create_future()
        number = self._next + 1
        self._exits[number] = exited
        try:
            await self.request(message, fds)
        except BaseException as error:
            if isinstance(error, OSError):
                self._exits.pop(number, None)
            raise
        return number, exited

    async def _submit(
        self, message: Message, fds: Sequence[int]
    ) -> tuple[int, asyncio.Future[tuple[Message, list[int]]]]:
        self._check()
        self._next += 1
        number = self._next
        reply: asyncio.Future[tuple[Message, list[int]]] = self._loop.create_future()
        self._replies[number] = reply
        message["id"] = number
        await self._send(message, fds)
        return number, reply

    async def tell(self, op: str, program: int, number: int) -> None:
        """A request that has no reply."""
        if self.lost is None:
            await self._send({"op": op, "id": 0, "program": program, "signal": int(number)}, ())

    async def _send(self, message: Message, fds: Sequence[int]) -> None:
        async with self._sending:
            while True:
                self._check()
                try:
                    wire.send(self._sock, message, fds)
                    return
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    self.close(f"it cannot be reached ({error.strerror})")

    async def _writable(self) -> None:
        free: asyncio.Future[None] = self._loop.create_future()
        fd = self._sock.fileno()
        self._loop.add_writer(fd, _settle, free)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await free
        finally:
            self._loop.remove_writer(fd)

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost


def _settle(free: asyncio.Future[None]) -> None:
    if not free.done():
        free.set_result(None)


def _fail(waiter: asyncio.Future[T], error: SandboxLost) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        # Marks it as seen: whoever waited may have given up already.
        waiter.exception()


class Holder:
    """One living holder: its channel, and proof of its end by a process descriptor."""

    def __init__(self, channel: Channel, pid: int, pidfd: int) -> None:
        self.channel = channel
        self.pid = pid
        self._pidfd = pidfd
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.channel.close("its holder ended")
        self.ended.set()

    def kill(self) -> None:
        """Kill the holder, and with it everything in the sandbox."""
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class Nursery:
    """The process that forks holders; it lives while somebody needs it."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    async def __aenter__(self) -> Nursery:
        async with self._lock:
            if self._channel is None or self._channel.lost is not None:
                await finish(self._start())
            self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._lock:
            self._users -= 1
            if self._users == 0:
                await finish(self._stop())

    async def _start(self) -> None:
        await self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = boot.open_place()
        argv = boot.command("holder", place, *([] if is_root() else [ROOTLESS]))
        try:
            self._process = await asyncio.to_thread(_popen, argv, theirs, place)
        except OSError as error:
            ours.close()
            raise SandboxError(
                f"cannot start the sandbox's holder: {error.strerror}",
                where=argv[0],
                remedy="Check that this Python can be run",
            ) from error
        finally:
            theirs.close()
            os.close(place)
        self._channel = Channel(ours, "nursery")

    async def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close("it was stopped")
            self._channel = None
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(_reap, process)

    async def birth(self, name: str, message: Message) -> Holder:
        """A new holder, set up as ``message`` says. Raises SandboxError when it cannot be."""
        if self._channel is None:
            raise SandboxLost("the nursery is not running", where=name)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(ours, name)
        try:
            answer, fds = await self._channel.request(message, [theirs.fileno()])
        except BaseException:
            channel.close("it was never born")
            raise
        finally:
            theirs.close()
        holder = Holder(channel, answer["pid"], fds[0])
        try:
            await channel.ready()
        except BaseException:
            await end(holder)
            raise
        return holder


async def end(holder: Holder) -> None:
    """Kill a holder and wait for the proof that nothing of its sandbox runs."""
    holder.kill()
    async with asyncio.timeout(ANSWER_SECONDS):
        await holder.ended.wait()


def _popen(argv: list[str], control: socket.socket, place: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        pass_fds=(place,),
        cwd="/",
        start_new_session=True,
    )


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
