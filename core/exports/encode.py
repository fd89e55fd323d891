"""JSON as files hold it: ASCII only, so that no reader of lines or bytes is surprised.

Escaping everything else keeps lone surrogates and U+2028 (which some readers
take for a line end) harmless. A number that is not finite becomes null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from core.contracts.values import JsonObject, JsonValue


def json_file(value: JsonValue) -> bytes:
    """One indented document, with a final newline."""
    return (_dump(value, indent=2) + "\n").encode("ascii")


def json_lines(values: Iterable[JsonObject]) -> bytes:
    """One document a line; no lines for no values."""
    return "".join(_dump(value, indent=None) + "\n" for value in values).encode("ascii")


def _dump(value: JsonValue, *, indent: int | None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def moment(seconds: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC, with its zone."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
