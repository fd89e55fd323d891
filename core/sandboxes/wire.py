"""Messages between the engine and its holders: one datagram each, descriptors beside it.

Both ends run the same interpreter and trust each other, so the body is
``marshal``: no import, no escaping, bytes pass as they are. A body too large
for a datagram travels in a memory file whose descriptor comes first.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from core.sandboxes.views import ViewPlan

    class Message(TypedDict, total=False):
        """Every field any message has; ``op`` of a request says which count.

        ``id`` numbers a request and its reply; ``program`` names one program
        of the sandbox (the id of the request that started it).
        """

        op: str
        id: int
        spilled: bool
        folder: str
        layers: str
        lowers: list[str]
        cgroups: list[str]
        hostname: str
        options: str
        views: dict[str, ViewPlan]
        limits: list[tuple[int, int]]
        program: int
        argv: list[str]
        call: list[str]
        env: dict[str, str]
        cwd: str
        user: str
        rootless: bool
        tty: bool
        seconds: float
        port: int
        signal: int
        pid: int
        status: int
        error: str
        errno: int
else:
    Message = dict


ROOTLESS = "rootless"
"""Tells the nursery that an ordinary user started it."""
_LIMIT = 64 * 1024
_MAX_FDS = 8


def encode(message: Message) -> tuple[bytes, int | None]:
    """The datagram, and the memory file that holds the body when it is too large."""
    body = marshal.dumps(dict(message))
    if len(body) <= _LIMIT:
        return body, None
    spill = os.memfd_create("message", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(spill), "wb") as file:
        file.write(body)
    return marshal.dumps({"spilled": True}), spill


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message; descriptors stay open on this side."""
    body, spill = encode(message)
    try:
        everything = [*([] if spill is None else [spill]), *fds]
        rights = array.array("i", everything)
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if everything else []
        sock.sendmsg([body], extra)
    finally:
        if spill is not None:
            os.close(spill)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """One message and its descriptors (close-on-exec), or None at the end."""
    space = socket.CMSG_SPACE(_MAX_FDS * 4)
    body, extra, _, _ = sock.recvmsg(_LIMIT + 1024, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            rights = array.array("i")
            rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
            fds.extend(rights)
    if not body:
        return None
    message: Message = marshal.loads(body)
    if message.get("spilled"):
        with os.fdopen(fds.pop(0), "rb") as file:
            file.seek(0)
            message = marshal.loads(file.read())
    return message, fds
