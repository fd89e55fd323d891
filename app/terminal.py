"""This process's terminal, carried to a program on a pseudo-terminal of its own.

The program never holds the person's terminal: what it does to its end stays there,
and the person's settings are put back on every way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import sys
import termios
import tty
from types import TracebackType

from core.contracts.sandbox import Attached

_CHUNK = 64 * 1024
_END_OF_INPUT = b"\x04"
_LAST_WORDS_SECONDS = 2.0


class Terminal:
    """Use: ``with Terminal() as terminal: ...``, ``inner`` is the program's end."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno()
        self._stdout = sys.stdout.fileno()
        self._outer, self.inner = pty.openpty()
        self._saved: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Terminal:
        os.set_blocking(self._outer, False)
        self._copy_size()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        for fd in (self._outer, self.inner):
            if fd >= 0:
                os.close(fd)

    async def carry(self, program: Attached) -> int:
        """Type and print for the program until it has ended; its exit code."""
        # Only the program holds its end from now on, so that its end is seen.
        os.close(self.inner)
        self.inner = -1
        self._raw()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGWINCH, self._copy_size)
        typing = asyncio.create_task(self._type())
        printing = asyncio.create_task(self._print())
        try:
            code = await program.wait()
            await asyncio.wait({printing}, timeout=_LAST_WORDS_SECONDS)
            return code
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in (typing, printing):
                task.cancel()
            await asyncio.gather(typing, printing, return_exceptions=True)
            self._restore()

    async def _type(self) -> None:
        while data := await _ready(self._stdin):
            await self._send(data)
        await self._send(_END_OF_INPUT)

    async def _send(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._outer, data) :]
            except BlockingIOError:
                await _writable(self._outer)

    async def _print(self) -> None:
        while data := await _ready(self._outer):
            while data:
                data = data[await asyncio.to_thread(os.write, self._stdout, data) :]

    def _raw(self) -> None:
        if os.isatty(self._stdin):
            self._saved = termios.tcgetattr(self._stdin)
            tty.setraw(self._stdin)

    def _restore(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, saved)

    def _copy_size(self) -> None:
        if os.isatty(self._stdin):
            size = fcntl.ioctl(self._stdin, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._outer, termios.TIOCSWINSZ, size)


async def _ready(fd: int) -> bytes:
    """What can be read next; nothing at the end."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except PermissionError:
        # A plain file is always ready, which the loop cannot be told.
        return await asyncio.to_thread(os.read, fd, _CHUNK)
    try:
        await readable.wait()
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return await _ready(fd)
    except OSError:
        # A pseudo-terminal whose other end is closed.
        return b""
    finally:
        loop.remove_reader(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(fd, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(fd)
