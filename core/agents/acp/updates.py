"""One ``session/update`` of ACP v1 as a ``SessionUpdate``.

Invariant: every update becomes something: what we do not know is an
``OtherUpdate`` with the agent's own words, and what has no shape at all is
``Noise``. ``_meta`` and unknown keys never reach a typed field.
"""

from __future__ import annotations

from core.agents.acp.forms import as_object, as_text
from core.contracts.agent import (
    MessageText,
    Noise,
    OtherUpdate,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
    UsageUpdate,
)
from core.contracts.values import JsonObject, JsonValue


def read_update(raw: JsonValue) -> SessionUpdate | None:
    """The update, or None for an empty piece of text (some agents send those)."""
    update = as_object(raw)
    kind = as_text(update.get("sessionUpdate"))
    if kind in ("agent_message_chunk", "agent_thought_chunk"):
        return _text(kind, update)
    if kind in ("tool_call", "tool_call_update"):
        return _tool(update)
    if kind == "usage_update":
        return _usage(update)
    if not kind:
        return Noise("protocol", f"an update without a kind: {raw}"[:200])
    return OtherUpdate(kind, update)


def read_usage(raw: JsonValue) -> UsageUpdate | None:
    """Token counts of a prompt's answer, if it has any."""
    usage = as_object(raw)
    tokens_in, tokens_out = _count(usage.get("inputTokens")), _count(usage.get("outputTokens"))
    if tokens_in is None and tokens_out is None:
        return None
    return UsageUpdate(input_tokens=tokens_in, output_tokens=tokens_out)


def _text(kind: str, update: JsonObject) -> SessionUpdate | None:
    content = as_object(update.get("content"))
    text = content.get("text")
    if content.get("type") != "text" or not isinstance(text, str):
        return OtherUpdate(kind, update)
    if not text:
        return None
    message = as_text(update.get("messageId")) or None
    return (
        MessageText(text, message) if kind == "agent_message_chunk" else ThoughtText(text, message)
    )


def _tool(update: JsonObject) -> SessionUpdate:
    call = as_text(update.get("toolCallId"))
    if not call:
        return Noise("protocol", f"a tool call without an id: {update}"[:200])
    return ToolUpdate(
        tool_call_id=call,
        title=as_text(update.get("title")) or None,
        kind=as_text(update.get("kind")) or None,
        status=as_text(update.get("status")) or None,
        raw_input=update.get("rawInput"),
        raw_output=update.get("rawOutput"),
        content=_objects(update.get("content")),
        locations=_objects(update.get("locations")),
    )


def _usage(update: JsonObject) -> UsageUpdate:
    cost = as_object(update.get("cost"))
    return UsageUpdate(
        used=_count(update.get("used")),
        size=_count(update.get("size")),
        cost=_amount(cost.get("amount")),
        currency=as_text(cost.get("currency")) or None,
    )


def _count(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _amount(value: JsonValue) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _objects(value: JsonValue) -> tuple[JsonObject, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(item for item in value if isinstance(item, dict))
