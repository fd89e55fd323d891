"""Values of a question's fields: what each takes, and one read in its field's kind. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from core.contracts.agent import AskField, AskUser, Option
from core.contracts.errors import UsageError
from core.contracts.values import JsonValue

_YES = frozenset({"yes", "y", "true", "on", "1"})
_NO = frozenset({"no", "n", "false", "off", "0"})


def check_content(ask: AskUser, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The content with defaults filled in and each value of its field's kind.

    Raises UsageError for a field the form lacks, a value the field does not
    take, and a required field without one.
    """
    known = {item.name: item for item in ask.fields}
    for name in given:
        if name not in known:
            raise UsageError(
                f"this question has no field {name!r}",
                remedy=f"Its fields: {', '.join(known) or 'none'}",
            )
    content: dict[str, JsonValue] = {}
    for item in ask.fields:
        value = given.get(item.name)
        value = coerce(item, value) if value is not None else _default(item)
        if value is not None:
            content[item.name] = value
    missing = [item for item in ask.fields if item.required and item.name not in content]
    if missing:
        raise UsageError(
            "this answer leaves out " + ", ".join(item.name for item in missing),
            remedy=allowed(ask),
        )
    return content


def _default(item: AskField) -> JsonValue:
    """The field's default; one that an agent sent in another kind counts as none."""
    try:
        return None if item.default is None else coerce(item, item.default)
    except UsageError:
        return None


def allowed(ask: AskUser) -> str:
    """What this question takes, in one sentence for a person."""
    if not ask.fields:
        return "Answer accept, decline or cancel"
    several = len(ask.fields) > 1
    parts = [f"{item.name}={_takes(item)}" if several else _takes(item) for item in ask.fields]
    return "Answer " + (" ".join(parts) if several else parts[0]) + ", or decline, or cancel"


def _takes(item: AskField) -> str:
    if item.options:
        words = "|".join(option.value for option in item.options)
        return f"[{words}]" if item.kind == "multi" else words
    return {"boolean": "yes|no", "number": "NUMBER", "integer": "WHOLE-NUMBER"}.get(
        item.kind, "TEXT"
    )


def find_option(item: AskField, text: str) -> Option | None:
    """By value, else by label, else by either in any case."""
    for option in item.options:
        if text == option.value:
            return option
    for option in item.options:
        if text == option.label:
            return option
    folded = [
        o for o in item.options if text.casefold() in (o.value.casefold(), o.label.casefold())
    ]
    return folded[0] if len(folded) == 1 else None


def nth_option(item: AskField, text: str) -> Option | None:
    """The n-th option, counted from 1."""
    if not re.fullmatch(r"[0-9]{1,3}", text):
        return None
    number = int(text)
    return item.options[number - 1] if 1 <= number <= len(item.options) else None


def coerce(item: AskField, value: JsonValue) -> JsonValue:
    """The value in its field's kind. Raises UsageError."""
    match item.kind:
        case "multi":
            return [_pick(item, part) for part in _parts(value)]
        case "choice":
            return _pick(item, value) if item.options else _as_text(item, value)
        case "boolean":
            return _as_flag(item, value)
        case "number" | "integer":
            return _as_number(item, value)
        case _:
            return _pick(item, value) if item.options else _as_text(item, value)


def _parts(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        bare = value.strip().removeprefix("[").removesuffix("]")
        return [part.strip() for part in bare.split(",") if part.strip()]
    return [value]


def _pick(item: AskField, value: JsonValue) -> JsonValue:
    option = None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).strip()
        option = find_option(item, text) or nth_option(item, text)
    if option is None:
        raise _refused(item, value)
    return option.value


def _as_text(item: AskField, value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value
    raise _refused(item, value)


def _as_flag(item: AskField, value: JsonValue) -> JsonValue:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    raise _refused(item, value)


def _as_number(item: AskField, value: JsonValue) -> JsonValue:
    whole = item.kind == "integer"
    if isinstance(value, str):
        try:
            value = int(value) if re.fullmatch(r"[+-]?\d{1,30}", value.strip()) else float(value)
        except ValueError:
            raise _refused(item, value) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(item, value)
    if isinstance(value, float) and (not math.isfinite(value) or (whole and value % 1)):
        raise _refused(item, value)
    return int(value) if whole else value


def _refused(item: AskField, value: JsonValue) -> UsageError:
    return UsageError(
        f"{str(value)[:80]!r} is not a value for {item.name!r}", remedy=f"It takes {_takes(item)}"
    )
