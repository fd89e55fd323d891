"""Which process this is, and whether another one still lives.

A process is named by pid, start time and boot id together, so a pid that the
system gave to somebody else is never mistaken for the old owner.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """Changes at every boot; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Start time in clock ticks since boot (proc(5), field 22); None: no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return _start_without_proc(pid)
    # The second field is the command in parentheses and may itself hold any character.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def _start_without_proc(pid: int) -> int | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def process_lives(*, host: str, pid: int, start: int, boot: str) -> bool | None:
    """True or False on this host and boot; None when it cannot be seen from here."""
    if host != host_name():
        return None
    if boot != boot_id():
        return False
    return process_start(pid) == start
