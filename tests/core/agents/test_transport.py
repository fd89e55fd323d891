from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.agents.acp.transport import AcpTransport
from core.agents.acp.wire import WireFile, wire_files
from core.contracts.errors import AgentProtocolError
from core.contracts.sandbox import Process
from core.contracts.values import JsonObject


class Pipes:
    """A process of which only stdout is there."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader()


async def messages_of(
    chunks: list[bytes], max_line: int = 1 << 20
) -> tuple[list[JsonObject], AcpTransport]:
    """What a transport makes of these chunks of stdout."""
    pipes = Pipes()
    for chunk in chunks:
        pipes.stdout.feed_data(chunk)
    pipes.stdout.feed_eof()
    transport = AcpTransport(cast(Process, pipes), max_line=max_line)
    found: list[JsonObject] = []
    while (message := await transport.receive()) is not None:
        if message:
            found.append(message)
    return found, transport


def frame(number: int) -> JsonObject:
    return {"jsonrpc": "2.0", "id": number, "result": None}


JUNK = st.one_of(
    st.binary(max_size=30).filter(lambda raw: b"\n" not in raw),
    st.sampled_from([b"{", b'{"a":', b"null", b"[1]", b'"x"', b"3", b"\xff{}", b"  ", b"\x1b[2J"]),
)
LINES = st.lists(st.one_of(st.integers(0, 99), JUNK), max_size=20)


@settings(max_examples=300, deadline=None)
@given(LINES, st.lists(st.integers(1, 40), min_size=1, max_size=30))
@example([1, b"\xff", 2], [1])
def test_valid_messages_survive_any_junk_around_them_and_any_cut(
    lines: list[int | bytes], cuts: list[int]
) -> None:
    raw = b"".join(
        (json.dumps(frame(item)).encode() if isinstance(item, int) else item) + b"\n"
        for item in lines
    )
    chunks: list[bytes] = []
    position, turn = 0, 0
    while position < len(raw):
        size = cuts[turn % len(cuts)]
        chunks.append(raw[position : position + size])
        position, turn = position + size, turn + 1
    found, _ = asyncio.run(messages_of(chunks))
    ids = [message["id"] for message in found if message.keys() == frame(0).keys()]
    assert ids == [item for item in lines if isinstance(item, int)]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40).filter(lambda text: "{" not in text), st.text(max_size=40))
def test_a_message_that_output_ran_into_is_found(before: str, after: str) -> None:
    clean = [text.replace("\n", " ").replace("\r", " ") for text in (before, after)]
    line = clean[0] + json.dumps(frame(7)) + clean[1]
    found, transport = asyncio.run(messages_of([line.encode("utf-8", "replace") + b"\n"]))
    assert found == [frame(7)]
    if "".join(clean).strip():
        assert transport.noise_count == 1


async def test_a_last_line_without_newline_counts() -> None:
    found, _ = await messages_of([json.dumps(frame(1)).encode()])
    assert found == [frame(1)]


async def test_a_line_past_the_limit_ends_it_even_without_a_newline() -> None:
    with pytest.raises(AgentProtocolError, match="longer than"):
        await messages_of([b"x" * 600, b"x" * 600], max_line=1000)


async def test_much_noise_is_counted_in_full_and_shown_in_part() -> None:
    _, transport = await messages_of([b"noise\n" * 10_000])
    assert transport.noise_count == 10_000
    assert 50 <= len(transport.noise) < 70
    assert transport.noise[-1].sample.endswith("such lines so far]")


async def test_nan_is_null_because_no_browser_or_store_reads_it() -> None:
    found, _ = await messages_of([b'{"jsonrpc":"2.0","id":1,"result":[NaN,Infinity,-Infinity]}\n'])
    assert found[0]["result"] == [None, None, None]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="a\ud800\udbff\udc00\udfff\U0001f600é", max_size=8))
@example("\ud800")
def test_every_text_that_comes_out_can_be_stored_as_utf8(text: str) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {text: [text]}}).encode()
    found, _ = asyncio.run(messages_of([line + b"\n"]))
    json.dumps(found, ensure_ascii=False).encode("utf-8")


def test_the_wire_file_keeps_lines_as_they_were(tmp_path: Path) -> None:
    sink = WireFile(tmp_path / "acp.log")
    sink("out", b'{"a":1}')
    sink("in", b"\xff raw")
    sink.close()
    assert (tmp_path / "acp.log").read_bytes() == b'> {"a":1}\n< \xff raw\n'


def test_each_sandbox_gets_a_wire_file_inside_the_folder(tmp_path: Path) -> None:
    opener = wire_files(tmp_path / "live")
    for name in ("box-1", "../box"):
        sink = opener(name)
        sink("in", b"{}")
        sink.close()
    found = sorted(path.name for path in (tmp_path / "live").iterdir())
    assert found == ["acp-.._box.log", "acp-box-1.log"]
