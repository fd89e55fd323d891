"""The strict reward reader: bytes a verifier wrote, to a reward or a typed refusal.

Invariant: an unscored rollout is never a 0. Whatever is not plainly one finite
decimal number inside the declared range is RewardMissing or RewardInvalid, with
the bytes quoted. Formats as upstream's ``/logs/verifier/reward.txt`` and
``reward.json``; when both are there they must say the same number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, cast, get_args

from core.contracts.errors import RewardInvalid, RewardMissing
from core.contracts.reward import Granularity, RewardEvent, Space
from core.contracts.values import JsonObject, JsonValue

TEXT = "reward.txt"
JSON = "reward.json"
LONGEST = 1 << 20
LONGEST_NUMBER = 64
REMEDY = "A verifier writes one decimal number inside reward_range, such as 0 or 0.75"

_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Reading:
    """A reward as read: the number, and exactly what was written."""

    reward: float
    raw: str
    items: Mapping[str, float] = field(default_factory=dict)
    events: tuple[RewardEvent, ...] = ()


class _Number(float):
    """A JSON number that remembers how it was written."""

    raw: str

    def __new__(cls, raw: str) -> _Number:
        value = super().__new__(cls, raw)
        value.raw = raw
        return value


def read_reward(
    text: bytes | None, document: bytes | None, *, span: tuple[float, float] = (0.0, 1.0)
) -> Reading:
    """Read what was written to reward.txt and reward.json (None: no such file).

    Raises RewardMissing when there is nothing in either, RewardInvalid when
    what is there is no reward inside ``span`` or the two disagree.
    """
    plain = None if text is None or not text.strip() else _number(text, TEXT, span)
    full = None if document is None or not document.strip() else _document(document, span)
    if plain is None and full is None:
        raise RewardMissing("the verifier wrote no reward", where=f"{TEXT}, {JSON}", remedy=REMEDY)
    if plain is not None and full is not None and plain.reward != full.reward:
        raise RewardInvalid(
            f"the two reward files disagree: {plain.raw} against {full.raw}",
            where=f"{TEXT}, {JSON}",
            remedy="Write one of them, or the same number to both",
        )
    return cast(Reading, full or plain)


def _number(text: bytes, where: str, span: tuple[float, float]) -> Reading:
    raw = text.strip(b" \t\r\n")
    if len(raw) > LONGEST_NUMBER or _DECIMAL.fullmatch(raw) is None:
        _refuse(f"{_quoted(raw)} is no decimal number", where)
    return Reading(_inside(float(raw), raw.decode("ascii"), where, span), raw.decode("ascii"))


def _inside(value: float, raw: str, where: str, span: tuple[float, float]) -> float:
    if not math.isfinite(value):
        _refuse(f"{raw} is not finite", where)
    if not span[0] <= value <= span[1]:
        _refuse(f"{raw} is outside the declared range {span[0]:g} to {span[1]:g}", where)
    return value + 0.0  # a negative zero is a zero


def _document(raw: bytes, span: tuple[float, float]) -> Reading:
    if len(raw) > LONGEST:
        _refuse(f"it is longer than {LONGEST} bytes", JSON)
    try:
        found: JsonValue = json.loads(
            raw.decode("utf-8"),
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_no_constant,
            object_pairs_hook=_no_twins,
        )
    except (ValueError, RecursionError) as error:
        raise RewardInvalid(
            f"it is no JSON a reward can be read from: {error}", where=JSON, remedy=REMEDY
        ) from error
    if not isinstance(found, dict) or "reward" not in found:
        _refuse('it is no object with a "reward"', JSON)
    main = found["reward"]
    if not isinstance(main, _Number):
        _refuse(f'"reward" is {_quoted(json.dumps(main).encode())}, no number', JSON)
    items = _items(found.get("items", {}), "items")
    events = _events(found.get("rubric", []))
    items |= {event.source: event.value for event in events if event.source not in items}
    return Reading(_inside(float(main), main.raw, JSON, span), main.raw, items, events)


def _items(found: JsonValue, key: str) -> dict[str, float]:
    if not isinstance(found, dict):
        _refuse(f'"{key}" is no object of numbers', JSON)
    return {name: _finite(value, f"{key}.{name}") for name, value in found.items()}


def _events(found: JsonValue) -> tuple[RewardEvent, ...]:
    if not isinstance(found, list):
        _refuse('"rubric" is no list', JSON)
    return tuple(_event(item, f"rubric[{index}]") for index, item in enumerate(found))


def _event(item: JsonValue, key: str) -> RewardEvent:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        _refuse(f'"{key}" has no "name"', JSON)
    space = _one_of(item, "space", get_args(Space), "output", key)
    granularity = _one_of(item, "granularity", get_args(Granularity), "terminal", key)
    return RewardEvent(
        source=str(item["name"]),
        value=_finite(item.get("score"), f"{key}.score"),
        space=cast(Space, space),
        granularity=cast(Granularity, granularity),
        reason=str(item.get("reason", "")),
    )


def _one_of(item: JsonObject, name: str, allowed: tuple[str, ...], default: str, key: str) -> str:
    value = item.get(name, default)
    if value not in allowed:
        _refuse(f'"{key}.{name}" is none of {", ".join(allowed)}', JSON)
    return str(value)


def _finite(value: JsonValue, key: str) -> float:
    if not isinstance(value, _Number) or not math.isfinite(value):
        _refuse(f'"{key}" is no finite number', JSON)
    return float(value)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _no_twins(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _quoted(raw: bytes) -> str:
    shown = raw[:80].decode("utf-8", "backslashreplace")
    return json.dumps(shown) + ("..." if len(raw) > 80 else "")


def _refuse(problem: str, where: str) -> NoReturn:
    raise RewardInvalid(problem, where=where, remedy=REMEDY)
