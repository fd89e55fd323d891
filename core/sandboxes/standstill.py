"""Stop all programs of a sandbox one by one, where no control group can freeze them.

Runs in the holder, which sees every process of its pid namespace. Weaker than a
freezer: a process can see that it was stopped, and its parent is told.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from core.sandboxes import linux

_ROUNDS_PAUSE = 0.0005


class Standstill:
    """``spare`` names processes that go on: the holder itself and the inits."""

    def __init__(self) -> None:
        self._proc = -1

    def _open(self) -> int:
        if self._proc < 0:
            os.makedirs("view", 0o700, exist_ok=True)
            linux.mount("proc", "view", "proc", linux.MS_NOSUID | linux.MS_NODEV)
            self._proc = os.open("view", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # The descriptor keeps it; no path leads there any more.
            linux.umount("view", linux.MNT_DETACH)
        return self._proc

    def stop(self, spare: set[int], seconds: float) -> None:
        """Until two looks in a row find everything stopped. Raises OSError, all going on again."""
        until = time.monotonic() + seconds
        quiet = 0
        while quiet < 2:
            moving = self._moving(spare)
            for pid in moving:
                _signal(pid, signal.SIGSTOP)
            quiet = 0 if moving else quiet + 1
            if moving:
                if time.monotonic() > until:
                    self.go_on(spare)
                    raise OSError(errno.ETIMEDOUT, "a program does not stop")
                # No event tells that a process of another parent has stopped.
                time.sleep(_ROUNDS_PAUSE)

    def go_on(self, spare: set[int]) -> None:
        for pid in self._all() - spare:
            _signal(pid, signal.SIGCONT)

    def _all(self) -> set[int]:
        return {int(name) for name in os.listdir(self._open()) if name.isdigit()}

    def _moving(self, spare: set[int]) -> list[int]:
        found = []
        for pid in self._all() - spare:
            try:
                fd = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
                try:
                    state = os.read(fd, 4096).rpartition(b")")[2].split()[0]
                finally:
                    os.close(fd)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in b"TtZX":
                found.append(pid)
        return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
