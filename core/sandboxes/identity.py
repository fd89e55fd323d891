"""Who each compartment runs as: numbers that no ordinary account of a host uses.

The verifier is uid 0 without root's powers: it may read and change every file
its view holds, and nothing else.
"""

from __future__ import annotations

from core.sandboxes import linux

UIDS: dict[str, int] = {"agent": 61000, "service": 61001, "verifier": 0}

CAPABILITIES: dict[str, tuple[int, ...]] = {
    "agent": (),
    "service": (),
    "verifier": (linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER),
}
