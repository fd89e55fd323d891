"""JSON at the border: what an agent said becomes text that every database takes.

Invariant: ``dump`` never raises on a payload of our type, whatever strings,
numbers or nesting an agent put into it, and what it wrote is valid JSON and UTF-8.

A payload above ``LIMIT`` is split: each big string goes into a blob and a marker
``{"$blob": sha256, "size", "head", "tail"}`` takes its place. Keys of the payload
that begin with ``$`` are then written with one more ``$``, so that nobody can
forge a marker.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import cast

from core.contracts.values import JsonObject, JsonValue

LIMIT = 64 * 1024
"""Bytes of JSON that a row may hold."""
PREVIEW = 2048
"""Characters kept at each end of a value that became a blob."""
DEPTH = 200
_THRESHOLDS = (16 * 1024, 4 * 1024, 1024)


_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dump(value: JsonValue) -> str:
    """Compact JSON of a value, cleaned first when it needs it."""
    return tidy(value)[1]


def tidy(value: JsonValue) -> tuple[JsonValue, str]:
    """What can be written (the value itself unless it had to be cleaned) and its JSON."""
    try:
        text = _text(value)
        text.encode()
    except (ValueError, RecursionError):
        pass
    else:
        if "\\u0000" not in text:
            return value, text
    cleaned = clean(value)
    return cleaned, _text(cleaned)


def load(text: str) -> JsonObject:
    return cast(JsonObject, json.loads(text))


def digest(value: JsonValue) -> str:
    """SHA-256 of the canonical JSON: equal values have equal digests."""
    text = json.dumps(clean(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def clean(value: JsonValue, depth: int = 0) -> JsonValue:
    """The value without what JSON, UTF-8 or a database refuses: lone surrogates and
    NUL become U+FFFD, numbers JSON cannot say become strings, and what lies deeper
    than ``DEPTH`` becomes a note."""
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 8192:
        return hex(value)
    if isinstance(value, (list, dict)) and depth >= DEPTH:
        return f"[nested deeper than {DEPTH} levels]"
    if isinstance(value, list):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_clean_text(key): clean(item, depth + 1) for key, item in value.items()}
    return value


def _clean_text(text: str) -> str:
    text = text.replace("\0", "\ufffd")
    # "surrogatepass" keeps pairs apart, so a valid pair of halves is joined by decoding.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def split(text: str, write: Callable[[bytes], str]) -> tuple[str, int]:
    """Move big values of a payload into blobs; the row's text and how many were moved."""
    payload = load(text)
    for threshold in _THRESHOLDS:
        mover = _Mover(threshold, write)
        row = _text(mover.move(payload))
        if len(row.encode()) <= LIMIT:
            return row, mover.moved
    mover = _Mover(_THRESHOLDS[-1], write)
    return _text({_escape(key): mover.move_whole(item) for key, item in payload.items()}), (
        mover.moved
    )


class _Mover:
    def __init__(self, threshold: int, write: Callable[[bytes], str]) -> None:
        self._threshold = threshold
        self._write = write
        self.moved = 0

    def move(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str) and len(value) > self._threshold:
            return self._marker(value, "text")
        if isinstance(value, list):
            return [self.move(item) for item in value]
        if isinstance(value, dict):
            return {_escape(key): self.move(item) for key, item in value.items()}
        return value

    def move_whole(self, value: JsonValue) -> JsonValue:
        """For a structure that is big without any big string in it."""
        if isinstance(value, (list, dict)):
            text = _text(value)
            if len(text) > self._threshold:
                return self._marker(text, "list" if isinstance(value, list) else "object")
        return self.move(value)

    def _marker(self, text: str, shape: str) -> JsonValue:
        data = text.encode()
        self.moved += 1
        marker: JsonObject = {
            "$blob": self._write(data),
            "size": len(data),
            "head": text[:PREVIEW],
            "tail": text[-PREVIEW:],
        }
        if shape != "text":
            marker["shape"] = shape
        return marker


def _escape(key: str) -> str:
    return "$" + key if key.startswith("$") else key


def digests(value: JsonValue) -> set[str]:
    """Blobs that the payload of a split row names."""
    found: set[str] = set()
    if isinstance(value, list):
        for item in value:
            found |= digests(item)
    elif isinstance(value, dict):
        if "$blob" in value:
            return {str(value["$blob"])}
        for item in value.values():
            found |= digests(item)
    return found


def preview(value: JsonValue) -> JsonValue:
    """A split payload with a short text, an empty list or a note for each marker."""
    return _restore(value, _preview_marker)


def expand(value: JsonValue, read: Callable[[str], bytes]) -> JsonValue:
    """A split payload made whole again; ``read`` gives the bytes of a blob."""

    def whole(marker: JsonObject) -> JsonValue:
        data = read(str(marker["$blob"])).decode()
        return cast(JsonValue, json.loads(data)) if "shape" in marker else data

    return _restore(value, whole)


def _preview_marker(marker: JsonObject) -> JsonValue:
    note = f"[{marker['size']} bytes, whole text in blob {str(marker['$blob'])[:12]}]"
    shape = marker.get("shape")
    if shape == "list":
        return []
    if shape == "object":
        return {"elided": note}
    return f"{marker['head']}\n... {note} ...\n{marker['tail']}"


def _restore(value: JsonValue, use: Callable[[JsonObject], JsonValue]) -> JsonValue:
    if isinstance(value, list):
        return [_restore(item, use) for item in value]
    if isinstance(value, dict):
        if "$blob" in value:
            return use(value)
        return {_unescape(key): _restore(item, use) for key, item in value.items()}
    return value


def _unescape(key: str) -> str:
    return key[1:] if key.startswith("$$") else key
