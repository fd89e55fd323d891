"""Short names for new things: sortable by time, unique, easy to read out loud."""

from __future__ import annotations

import re
import secrets
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH_MS = 1_735_689_600_000
"""2025-01-01 UTC: eight characters of milliseconds last until 2059."""


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))


class _Moments:
    """Milliseconds that no id of this process has had, in rising order."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1_000_000 - _EPOCH_MS)
            return self._last


_moments = _Moments()


def new_id() -> str:
    """Twelve characters: eight of time (milliseconds), four random.

    Unique in this process by its time, among processes by 20 random bits.
    """
    return _base32(_moments.next(), 8) + _base32(secrets.randbits(20), 4)


def new_name(task: str) -> str:
    """``<task>__<8 hex>``, a folder name; characters a folder cannot have become ``-``."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", task).strip("-.") or "task"
    return f"{stem[:80]}__{secrets.token_hex(4)}"
