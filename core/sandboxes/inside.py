"""What one can do inside a running local sandbox: run, carry files, open connections.

Everything goes through the holder, in the view and with the user of one
compartment; nothing here touches the files of a sandbox from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.contracts.errors import SandboxError, SandboxLost, UsageError
from core.contracts.sandbox import (
    Compartment,
    Endpoint,
    ExecResult,
    Process,
    SandboxSpec,
)
from core.sandboxes import transfer
from core.sandboxes.identity import UIDS
from core.sandboxes.link import Holder
from core.sandboxes.plan import environment, working_folder
from core.sandboxes.process import LocalProcess, Pipes, run
from core.sandboxes.relay import LocalRelay, Streams
from core.sandboxes.waiting import in_thread
from core.sandboxes.wire import Message

_TRANSFER_SECONDS = 600.0
_FROZEN_SECONDS = 10.0
_LONG_RUN = "the sandbox was retired by a snapshot and runs nothing any more"


class Inside:
    """The running half of a sandbox. ``holder`` is replaced when the sandbox is restored."""

    def __init__(self, id: str, spec: SandboxSpec, holder: Holder) -> None:
        self._id = id
        self._spec = spec
        self._holder = holder
        self._relay = LocalRelay(self._listen, self.connect)
        self._processes: list[LocalProcess] = []
        self._doors: list[LocalRelay] = []
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._retired = False
        self._torn = False

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    @property
    def relay(self) -> LocalRelay:
        return self._relay

    def _alive(self) -> None:
        if self._retired:
            raise SandboxError(
                _LONG_RUN, where=self.id, remedy="Fork the image that the snapshot gave you"
            )
        if self._torn:
            raise SandboxLost("the sandbox was torn down", where=self.id)

    async def _running(self) -> None:
        """Wait for the end of a capture. Raises SandboxError when somebody keeps it frozen."""
        try:
            async with asyncio.timeout(_FROZEN_SECONDS):
                await self._thawed.wait()
        except TimeoutError as error:
            raise SandboxError(
                "the sandbox is frozen", where=self.id, remedy="Thaw it before running anything"
            ) from error
        self._alive()

    def _program(
        self,
        argv: Sequence[str],
        user: Compartment,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> Message:
        self._alive()
        return {
            "op": "spawn",
            "argv": [str(part) for part in argv],
            "env": {**environment(self.spec, user), **(env or {})},
            "cwd": cwd or working_folder(self.spec, user),
            "user": user,
        }

    def _could_not(self, what: str, error: OSError) -> SandboxError:
        return SandboxError(
            f"{what}: {error.strerror}",
            where=self.id,
            remedy="Check the command, its folder, and that this compartment sees both",
        )

    async def exec(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        message = self._program(argv, user, cwd, env)
        await self._running()
        pipes = Pipes(UIDS[user], stdin=bool(stdin))
        try:
            return await run(
                self._holder.channel,
                message,
                pipes,
                stdin=stdin,
                timeout=timeout,
                limit=self.spec.limits.output_bytes,
            )
        except OSError as error:
            raise self._could_not("the command could not be started", error) from error
        finally:
            pipes.drop()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        message = self._program(argv, user, cwd, env)
        await self._running()
        return await self._spawn(message, user)

    async def attach(
        self,
        argv: Sequence[str],
        *,
        tty_fd: int,
        user: Compartment = "agent",
        env: Mapping[str, str] | None = None,
    ) -> LocalProcess:
        """Start a program on a terminal of the caller's; see ``Terminals``."""
        message = self._program(argv, user, None, env)
        message["tty"] = True
        await self._running()
        channel = self._holder.channel
        try:
            number, exited = await channel.spawn(message, (tty_fd, tty_fd, tty_fd))
        except OSError as error:
            raise self._could_not("the program could not be started", error) from error
        process = LocalProcess(channel, number, exited)
        self._processes.append(process)
        return process

    async def _spawn(self, message: Message, user: Compartment) -> LocalProcess:
        channel = self._holder.channel
        pipes = Pipes(UIDS[user], stdin=True)
        try:
            number, exited = await channel.spawn(message, pipes.theirs)
            pipes.drop(*pipes.theirs)
            process = LocalProcess(channel, number, exited)
            self._processes = [item for item in self._processes if item.returncode is None]
            self._processes.append(process)
            await process.attach(pipes)
        except OSError as error:
            raise self._could_not("the program could not be started", error) from error
        finally:
            pipes.drop()
        return process

    async def upload(self, local: Path, remote: str, *, user: Compartment = "agent") -> None:
        if not await asyncio.to_thread(local.exists):
            raise UsageError("nothing to upload", where=str(local))
        await self._carry(["put", remote], user, lambda fd: transfer.send_tree(local, fd))

    async def download(self, remote: str, local: Path, *, user: Compartment = "agent") -> None:
        await self._carry(["get", remote], user, lambda fd: transfer.receive_tree(fd, local))

    async def _carry(self, call: list[str], user: Compartment, work: Callable[[int], None]) -> None:
        """Run one of the holder's own carriers inside the view, and our half in a thread."""
        self._alive()
        await self._running()
        message: Message = {
            "op": "spawn",
            "argv": [],
            "env": {},
            "cwd": "/",
            "user": user,
            "call": call,
        }
        channel = self._holder.channel
        pipes = Pipes(UIDS[user], stdin=call[0] == "put")
        mine = pipes.stdin if call[0] == "put" else pipes.stdout
        number, exited, ours = -1, None, None
        try:
            number, exited = await channel.spawn(message, pipes.theirs)
            pipes.drop(*pipes.theirs)
            async with asyncio.timeout(_TRANSFER_SECONDS):

                async def give_up() -> None:
                    await channel.tell("signal", number, signal.SIGKILL)

                try:
                    await in_thread(work, pipes.take(mine), give_up)
                except SandboxError as error:
                    ours = error
                code = await asyncio.shield(exited)
            said = os.read(pipes.stderr, 4096).decode(errors="replace")
        except OSError as error:
            raise self._could_not(f"cannot {call[0]} {call[1]}", error) from error
        finally:
            if exited is not None and not exited.done():
                await channel.tell("signal", number, signal.SIGKILL)
            pipes.drop()
        # A download that broke off has its reason inside; a refused upload has it here.
        if ours is not None and (call[0] == "put" or not code):
            raise ours
        if code:
            raise SandboxError(
                f"cannot {'upload to' if call[0] == 'put' else 'download'} {call[1]}",
                where=said or self.id,
                remedy=f"Check that the path exists and that {user} may use it",
            )

    async def _socket(self, op: str, user: Compartment, port: int) -> socket.socket:
        self._alive()
        request: Message = {"op": op, "user": user, "port": port}
        _, fds = await self._holder.channel.request(request)
        sock = socket.socket(fileno=fds[0])
        sock.setblocking(False)
        return sock

    async def _listen(self, port: int) -> socket.socket:
        return await self._socket("listen", "agent", port)

    async def connect(
        self, port: int, *, user: Compartment = "service", timeout: float = 5.0
    ) -> Streams:
        sock = await self._socket("socket", user, port)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
                return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise

    async def expose_port(self, port: int, *, user: Compartment = "service") -> Endpoint:
        async def inward(_: int) -> Streams:
            return await self.connect(port, user=user)

        async def listen(_: int) -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.bind(("127.0.0.1", 0))
            sock.listen(128)
            sock.setblocking(False)
            bound.append(sock.getsockname()[1])
            return sock

        self._alive()
        bound: list[int] = []
        door = LocalRelay(listen, inward)
        await door.forward(port)
        self._doors.append(door)
        return Endpoint("127.0.0.1", bound[0])
