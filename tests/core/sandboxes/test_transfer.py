"""What comes out of a sandbox is hostile: the reader takes it apart safely."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.contracts.errors import SandboxError
from core.sandboxes.carry import pack, safe_parts
from core.sandboxes.process import Bounded
from core.sandboxes.transfer import receive_tree


def receive(stream: bytes, local: Path) -> None:
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as out:
            try:
                out.write(stream)
            except BrokenPipeError:
                return

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        receive_tree(read, local)
    finally:
        feeder.join()


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "a/./b", ".", "a\0b"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    stream = pack("d") + pack("f", path, 0o644, 1) + b"x" + pack("e")
    with pytest.raises(SandboxError, match="unsafe path"):
        receive(stream, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\x01",
        b"\xff\xff\xff\xff",
        pack("d"),
        pack("f", "", 0o644, 10) + b"short",
        b"\x04\x00\x00\x00junk",
    ],
)
def test_a_broken_stream_is_an_error(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(SandboxError):
        receive(stream, tmp_path / "out")


def test_modes_lose_their_special_bits_and_stay_readable_by_us(tmp_path: Path) -> None:
    stream = pack("d", "", 0o7000) + pack("f", "s", 0o6755, 1) + b"x" + pack("e")
    receive(stream, tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "out" / "s").stat().st_mode & 0o7777 == 0o755


@given(st.text(alphabet="ab./\0", max_size=12))
def test_accepted_paths_never_leave_the_folder(path: str) -> None:
    try:
        parts = safe_parts(path)
    except ValueError:
        return
    assert os.path.normpath("/root/" + "/".join(parts)).startswith("/root")
    assert "/".join(parts) == path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=300), max_size=30),
    st.integers(min_value=2, max_value=200).map(lambda half: half * 2),
)
def test_bounded_output_is_exact_up_to_its_limit(chunks: list[bytes], limit: int) -> None:
    kept = Bounded(limit)
    for chunk in chunks:
        kept.data_received(chunk)
    whole = b"".join(chunks)
    assert kept.total == len(whole)
    if len(whole) <= limit:
        assert kept.value() == whole
    else:
        half = limit // 2
        assert kept.value().startswith(whole[:half])
        assert kept.value().endswith(whole[-half:])
        assert b"%d bytes left out" % (len(whole) - limit) in kept.value()
