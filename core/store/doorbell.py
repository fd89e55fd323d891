"""Doorbells: one Unix datagram socket per engine, so that waiting costs nothing.

A ring carries a topic: "" for acts and lists, a rollout's id for its events.
Invariant: a ring is only a hint. Whoever waits reads the database first and
again after each wait, and never waits longer than the slow poll, so a lost ring
costs at most that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

POLL = 1.0
"""Seconds of the slow poll underneath."""
_MAX_TOPIC = 64
_FLOOD = 8
"""So many rings at once may mean that the kernel dropped others (its queue holds ten)."""


class Doorbell:
    """The bell of one open store, ``<name>.sock``. ``poll`` is the longest wait in seconds."""

    def __init__(self, folder: Path, name: str, poll: float = POLL) -> None:
        self.name = name
        self.poll = poll
        self._folder = folder
        self._folder_handle = -1
        self._bell: socket.socket | None = None
        self._out: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._generation: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    def open(self) -> None:
        """Hang up the bell. Where that is impossible the slow poll remains."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder_handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._out = _datagram_socket()
        bell = _datagram_socket()
        try:
            bell.bind(self._address(f"{self.name}.sock"))
            (self._folder / f"{self.name}.sock").chmod(0o600)
        except OSError:
            bell.close()
            return
        self._bell = bell
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(bell.fileno(), self._read)

    def close(self) -> None:
        if self._bell is not None and self._loop is not None:
            self._loop.remove_reader(self._bell.fileno())
            self._bell.close()
            self._bell = None
            (self._folder / f"{self.name}.sock").unlink(missing_ok=True)
        if self._out is not None:
            self._out.close()
            os.close(self._folder_handle)
            self._out = None
        self.heard_all()

    def ring(self, topic: str) -> None:
        """Wake whoever waits for the topic, here and in every other process; never blocks."""
        self.heard(topic)
        if self._out is None:
            return
        for name in os.listdir(self._folder):
            if not name.endswith(".sock") or name == f"{self.name}.sock":
                continue
            try:
                self._out.sendto(topic.encode(), self._address(name))
            except ConnectionRefusedError:
                # Nobody holds that socket any more: its process was killed.
                with contextlib.suppress(OSError):
                    os.unlink(self._folder / name)
            except OSError:
                # Full queue or just gone: the other side polls.
                continue

    def heard(self, topic: str) -> None:
        self._generation[topic] = self._generation.get(topic, 0) + 1
        event = self._waiting.pop(topic, None)
        if event is not None:
            event.set()

    def heard_all(self) -> None:
        for topic in list(self._waiting):
            self.heard(topic)

    def mark(self, topic: str) -> int:
        """Take this before reading the database; ``wait`` then misses nothing in between."""
        return self._generation.get(topic, 0)

    async def wait(self, topic: str, mark: int, timeout: float | None = None) -> None:
        """Until the topic was rung since ``mark``, or ``timeout`` seconds (at most ``poll``)."""
        if self.mark(topic) != mark:
            return
        event = self._waiting.setdefault(topic, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                self.poll if timeout is None else max(0.0, min(timeout, self.poll))
            ):
                await event.wait()

    def _read(self) -> None:
        topics: list[str] = []
        assert self._bell is not None
        with contextlib.suppress(OSError):
            while len(topics) < 1000:
                topics.append(self._bell.recv(_MAX_TOPIC).decode("ascii", "replace"))
        for topic in set(topics):
            self.heard(topic)
        if len(topics) >= _FLOOD:
            self.heard_all()

    def _address(self, name: str) -> str:
        # Through the open folder: an address holds 107 bytes, a path may be longer.
        if os.path.isdir("/proc/self/fd"):
            return f"/proc/self/fd/{self._folder_handle}/{name}"
        return str(self._folder / name)


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
