"""What a terminal is sent of an error or a value obeys nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from app.outcome import execute, print_json
from core.contracts.errors import UsageError

HOSTILE = "a\x1b[2J\x9b31mb\u202ec"


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_that_quotes_an_agent_draws_nothing(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    async def fail() -> int:
        raise UsageError(f"not one of {HOSTILE}", remedy="Choose\nagain")

    with pytest.raises(SystemExit) as left:
        execute(fail(), as_json=as_json)
    said = "".join(capsys.readouterr())
    assert left.value.code == 2
    assert not any(char in said for char in "\x1b\x9b\u202e")


def test_a_json_value_is_ascii_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    value: dict[str, object] = {"text": HOSTILE + "\udcff é 漢"}
    print_json(value)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert said.isascii()
    assert json.loads(said) == value


_INTERRUPTED = """
import asyncio, os, sys
from app.outcome import execute

async def body():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("torn down")

execute(body())
"""


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_way_to_be_interrupted_tears_down_first_even_if_nobody_listens(
    name: signal.Signals,
) -> None:
    listener, deaf = os.pipe()
    os.close(listener)
    try:
        command = [sys.executable, "-c", _INTERRUPTED, str(int(name))]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=deaf, timeout=60)
    finally:
        os.close(deaf)
    assert ended.stdout == b"torn down\n"
