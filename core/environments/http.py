"""The status of one GET over a sandbox connection: all that a readiness probe needs."""

from __future__ import annotations

import asyncio
import contextlib

from core.contracts.sandbox import Sandbox

HEAD_BYTES = 16 << 10


class NotHttp(Exception):
    """What answered does not speak HTTP; the text says what was seen."""


async def status(sandbox: Sandbox, port: int, path: str, *, timeout: float = 5.0) -> int:
    """Ask a service for ``path``; its body is not read.

    Raises ConnectionRefusedError, TimeoutError or NotHttp.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await sandbox.connect(port, user="service", timeout=timeout)
        try:
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n"
                "Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii", "replace")
            )
            await writer.drain()
            return await _status(reader)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise NotHttp("closed the connection without an answer") from error
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)


async def _status(reader: asyncio.StreamReader) -> int:
    head = b""
    while b"\n" not in head and len(head) < HEAD_BYTES and (piece := await reader.read(4096)):
        head += piece
    if not head:
        raise NotHttp("closed the connection without an answer")
    words = head.partition(b"\n")[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise NotHttp(f"does not speak HTTP: {head[:60]!r}")
    return int(words[1])
