"""References to host variables in a task's values."""

from __future__ import annotations

import pytest

from core.contracts.errors import ConfigError
from core.tasks.variables import fill_in

HOST = {"KEY": "k1", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("plain", "plain"),
        ("${KEY}", "k1"),
        ("a-${KEY}-${KEY}", "a-k1-k1"),
        ("${GONE:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${GONE:-}", ""),
        ("$KEY ${1} ${}", "$KEY ${1} ${}"),
    ],
)
def test_a_reference_is_filled_in(value: str, filled: str) -> None:
    assert fill_in({"A": value}, HOST, where="verifier.env") == {"A": filled}


def test_a_variable_that_is_not_set_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"(?s)A needs the variable GONE.*verifier\.env"):
        fill_in({"A": "${GONE}"}, HOST, where="verifier.env")


def test_what_a_host_variable_holds_is_not_read_again() -> None:
    assert fill_in({"A": "${X}"}, {"X": "${KEY}", **HOST}, where="w") == {"A": "${KEY}"}
