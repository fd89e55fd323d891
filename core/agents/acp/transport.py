"""Lines to JSON objects and back, over an agent's stdin and stdout.

Agents print banners, progress bars and half messages on stdout. Invariant: only
JSON objects that can be stored as UTF-8 leave ``receive``; everything else is
counted and shown as ``Noise``, and never ends the conversation. The one thing
that does is a line longer than ``max_line``: past it nothing can be trusted.

The shape (send, receive, close) is the Transport of the Python ACP SDK.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Literal, cast

from core.agents.acp.wire import WireSink
from core.contracts.agent import Noise
from core.contracts.errors import AgentProtocolError
from core.contracts.sandbox import Process
from core.contracts.values import JsonObject, JsonValue

MAX_LINE = 64 << 20
_CHUNK = 256 << 10
_SAMPLE = 200
_SHOWN = 50
_GLUE_TRIES = 16


class AcpTransport:
    """One agent's pipes as a stream of messages, with what is no message set aside."""

    def __init__(
        self, process: Process, *, wire: WireSink | None = None, max_line: int = MAX_LINE
    ) -> None:
        self._process = process
        self._wire = wire
        self._max_line = max_line
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._ended = False
        self._sending = asyncio.Lock()
        self._shown = 0
        self.noise: deque[Noise] = deque()
        """Noise not yet taken by the caller; a sample of the first, then of every doubling."""
        self.noise_count = 0
        self.last_noise = ""
        self.size = 0
        """Bytes of the line that the last received message came in."""

    async def send(self, message: JsonObject) -> None:
        """Write one message. Raises OSError when the agent's stdin is closed."""
        line = json.dumps(message, separators=(",", ":")).encode()
        if self._wire is not None:
            self._wire("out", line)
        async with self._sending:
            stdin = self._process.stdin
            stdin.write(line + b"\n")
            await stdin.drain()

    async def receive(self) -> JsonObject | None:
        """The next message, None at the end of stdout.

        Returns an empty object after a line that was only noise, so that the
        caller can take ``noise`` in order. Raises AgentProtocolError past ``max_line``.
        """
        line = await self._next_line()
        if line is None:
            return None
        self.size = len(line)
        if not line.strip():
            return {}
        if self._wire is not None:
            self._wire("in", line)
        return self._parse(line)

    async def close(self) -> None:
        """Tell the agent that nothing more comes."""
        self._process.stdin.close()

    def add_noise(self, channel: Literal["stdout", "protocol"], text: str) -> None:
        """Count something that was no message; few of them are shown, each cut short."""
        self.noise_count += 1
        sample = text.strip()[:_SAMPLE]
        self.last_noise = sample or self.last_noise
        if self.noise_count <= _SHOWN:
            self.noise.append(Noise(channel, sample))
        elif self.noise_count >= 2 * max(self._shown, _SHOWN):
            self._shown = self.noise_count
            self.noise.append(Noise(channel, f"{sample} [{self.noise_count} such lines so far]"))

    async def _next_line(self) -> bytes | None:
        while not self._lines:
            if self._ended:
                return None
            chunk = await self._process.stdout.read(_CHUNK)
            if not chunk:
                self._ended = True
                if self._partial:
                    self._lines.append(self._take_partial(b""))
                continue
            head, *rest = chunk.split(b"\n")
            self._refuse_long(self._partial_bytes + len(head))
            if not rest:
                self._partial.append(head)
                self._partial_bytes += len(head)
                continue
            self._lines.append(self._take_partial(head))
            self._lines.extend(rest[:-1])
            self._partial, self._partial_bytes = [rest[-1]], len(rest[-1])
        return self._lines.popleft()

    def _take_partial(self, end: bytes) -> bytes:
        line = b"".join([*self._partial, end])
        self._partial, self._partial_bytes = [], 0
        return line

    def _refuse_long(self, size: int) -> None:
        if size > self._max_line:
            raise AgentProtocolError(
                f"the agent printed a line longer than {self._max_line >> 20} MiB",
                where="its stdout",
                remedy="Make the agent send large tool output as a file or in parts",
            )

    def _parse(self, line: bytes) -> JsonObject:
        text = line.decode("utf-8", errors="replace")
        try:
            value = _loads(text)
        except (ValueError, RecursionError):
            return self._unglue(text)
        if not isinstance(value, dict):
            self.add_noise("protocol", text)
            return {}
        return value

    def _unglue(self, text: str) -> JsonObject:
        """The message inside a line that other output ran into, or an empty object."""
        start = -1
        for _ in range(_GLUE_TRIES):
            start = text.find('{"', start + 1)
            if start < 0:
                break
            try:
                value, end = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and value.get("jsonrpc") == "2.0":
                self.add_noise("stdout", text[:start] + text[end:])
                return cast(JsonObject, _clean(value))
        self.add_noise("stdout", text)
        return {}


def _reject_constant(_: str) -> None:
    # NaN and Infinity are no JSON: a store or a browser that meets one breaks.
    return None


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _loads(text: str) -> JsonValue:
    # A lone surrogate can only come from a \ud escape: the bytes were decoded strictly.
    value = cast(JsonValue, _DECODER.decode(text))
    return _clean(value) if "\\ud" in text or "\\uD" in text else value


def _clean(value: JsonValue) -> JsonValue:
    """The same value with lone surrogates replaced, so that it can be stored as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _clean(key)): _clean(item) for key, item in value.items()}
    return value
