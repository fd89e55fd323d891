"""What a terminal is sent of an error or a value obeys nobody."""

from __future__ import annotations

import json

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
