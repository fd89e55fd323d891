"""Who each compartment runs as: numbers that no ordinary account of a host uses.

The verifier is uid 0 without root's powers: it may read and change every file
its view holds, and nothing else. Where an ordinary user runs the engine, all
three are that user outside, each under its own number in a user namespace.
"""

from __future__ import annotations

import os

from core.sandboxes import linux

UIDS: dict[str, int] = {"agent": 61000, "service": 61001, "verifier": 0}

CAPABILITIES: dict[str, tuple[int, ...]] = {
    "agent": (),
    "service": (),
    "verifier": (linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER),
}


def is_root() -> bool:
    return os.geteuid() == 0


def owner(user: str) -> tuple[int, int]:
    """The uid and gid that a compartment's files have on the store's disk."""
    if is_root():
        return UIDS[user], UIDS[user]
    return os.geteuid(), os.getegid()
