"""A question and its answer as JSON, and a person's words as an answer.

The JSON form is what a request and an ``asked`` event hold; every screen draws
from it. ``parse_answer`` is the one reading of what a person typed, whichever
screen it came from. Pure.
"""

from __future__ import annotations

import json
import re
from typing import cast

from core.contracts.agent import Answer, AskField, AskSource, AskUser, Option
from core.contracts.errors import UsageError
from core.contracts.user import TurnEnd
from core.contracts.values import JsonObject, JsonValue
from core.users.values import allowed, check_content, coerce, find_option, nth_option

NUDGE = "nudge"
MAX_ANSWER = 100_000
"""Characters of one answer."""


def ask_to_json(ask: AskUser) -> JsonObject:
    """``{"question", "source", "fields": [...]}``, and ``tool_call_id`` when there is one.

    The request as the agent sent it stays out: the raw traffic holds it.
    """
    data: JsonObject = {
        "question": ask.question,
        "source": ask.source,
        "fields": [_field_to_json(item) for item in ask.fields],
    }
    if ask.tool_call_id is not None:
        data["tool_call_id"] = ask.tool_call_id
    return data


def _field_to_json(item: AskField) -> JsonObject:
    data: JsonObject = {"name": item.name, "title": item.title, "kind": item.kind}
    if item.options:
        data["options"] = [_option_to_json(option) for option in item.options]
    if item.required:
        data["required"] = True
    if item.default is not None:
        data["default"] = item.default
    return data


def _option_to_json(option: Option) -> JsonObject:
    data: JsonObject = {"value": option.value, "label": option.label}
    if option.description:
        data["description"] = option.description
    if option.kind:
        data["kind"] = option.kind
    return data


def ask_from_json(data: JsonObject) -> AskUser:
    """The question again. Reads whatever ``ask_to_json`` of any version wrote."""
    source = _text(data, "source")
    call = data.get("tool_call_id")
    return AskUser(
        question=_text(data, "question"),
        fields=tuple(_field_from_json(item) for item in _objects(data, "fields")),
        source=cast(AskSource, source) if source in _SOURCES else "command",
        tool_call_id=call if isinstance(call, str) else None,
    )


_SOURCES = ("elicitation", "permission", "tool", "command")


def _field_from_json(data: JsonObject) -> AskField:
    options = tuple(
        Option(
            _text(item, "value"),
            _text(item, "label") or _text(item, "value"),
            _text(item, "description"),
            _text(item, "kind"),
        )
        for item in _objects(data, "options")
    )
    name = _text(data, "name")
    title = _text(data, "title") or name
    required, default = data.get("required") is True, data.get("default")
    match _text(data, "kind"):
        case "choice":
            return AskField(name, title, "choice", options, required, default)
        case "multi":
            return AskField(name, title, "multi", options, required, default)
        case "number":
            return AskField(name, title, "number", options, required, default)
        case "integer":
            return AskField(name, title, "integer", options, required, default)
        case "boolean":
            return AskField(name, title, "boolean", options, required, default)
        case _:
            return AskField(name, title, "text", options, required, default)


def turn_end_ask(turn: TurnEnd) -> AskUser:
    """The question that a turn's end puts to its user: a nudge, or nothing to accept."""
    return AskUser(
        question=f"Turn {turn.turn} ended ({turn.stop_reason}). Nudge the agent, or accept?",
        fields=(AskField(NUDGE, "Nudge", "text"),),
        source="command",
    )


def turn_end_to_json(turn: TurnEnd) -> JsonObject:
    """``ask_to_json`` of it, with ``turn``, ``stop_reason`` and the agent's last ``message``."""
    return {
        **ask_to_json(turn_end_ask(turn)),
        "turn": turn.turn,
        "stop_reason": str(turn.stop_reason),
        "message": turn.message,
    }


def answer_to_json(answer: Answer) -> JsonObject:
    """``{"action", "content"}``; who said it is kept beside, not inside."""
    return {"action": answer.action, "content": dict(answer.content)}


def answer_from_json(
    data: JsonObject, *, actor: str = "", via: str = "", request: str = ""
) -> Answer:
    """The answer again; anything that is not one of the three actions is a cancel."""
    content = data.get("content")
    kept = content if isinstance(content, dict) else {}
    match data.get("action"):
        case "accept":
            return Answer("accept", kept, actor, via, request)
        case "decline":
            return Answer("decline", {}, actor, via, request)
        case _:
            return Answer("cancel", {}, actor, via, request)


def nudge_text(answer: Answer) -> str | None:
    """What a ``turn_end`` answer says to the agent, None when the turn is accepted."""
    text = answer.content.get(NUDGE) if answer.action == "accept" else None
    return text if isinstance(text, str) and text.strip() else None


def parse_answer(ask: AskUser, typed: str, *, actor: str = "", via: str = "") -> Answer:
    """The answer that was meant, or a UsageError that names what is allowed.

    In this order: an option's value or label; ``accept``, ``decline`` or
    ``cancel``; a JSON object; ``field=value`` pairs; a number that picks an
    option; free text for the question's text field.
    """
    if len(typed) > MAX_ANSWER:
        raise UsageError(
            f"this answer is {len(typed):,} characters long",
            remedy=f"Keep it below {MAX_ANSWER:,}",
        )
    text = typed.strip()
    choice = ask.choice
    option = find_option(choice, text) if choice is not None else None
    picked = nth_option(choice, text) if choice is not None else None
    if option is not None and picked is not None and option != picked:
        assert choice is not None
        raise UsageError(
            f"{text!r} is one option's name and another one's number",
            remedy=f"Write {choice.name}={text} for the name, or the option's label",
        )
    if option is None and text.lower() in ("decline", "cancel"):
        return Answer("decline" if text.lower() == "decline" else "cancel", {}, actor, via)
    if option is None and text.lower() == "accept" and not _must_say_more(ask):
        return Answer("accept", check_content(ask, {}), actor, via)
    if option is None:
        structured = _json_answer(ask, text) or _pairs(ask, text)
        if structured is not None:
            return Answer(structured.action, structured.content, actor, via)
    content = _one_value(ask, text, option or picked)
    return Answer("accept", check_content(ask, content), actor, via)


def _one_value(ask: AskUser, text: str, option: Option | None) -> dict[str, JsonValue]:
    """The content for an answer that names no field."""
    choice = ask.choice
    if option is not None and choice is not None:
        return {choice.name: [option.value] if choice.kind == "multi" else option.value}
    if choice is not None and choice.kind == "multi" and "," in text:
        return {choice.name: coerce(choice, text)}
    if not text:
        return {}
    for item in ask.fields:
        if item.kind == "text" and not item.options:
            return {item.name: text}
    if choice is None and len(ask.fields) == 1:
        return {ask.fields[0].name: coerce(ask.fields[0], text)}
    raise UsageError(f"{text[:80]!r} is not an answer to this question", remedy=allowed(ask))


def _must_say_more(ask: AskUser) -> bool:
    return any(item.required and item.default is None for item in ask.fields)


def _json_answer(ask: AskUser, text: str) -> Answer | None:
    """A JSON object: ``{"action", "content"}``, or the content by itself."""
    if not text.startswith("{"):
        return None
    try:
        data = cast(JsonValue, json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    action, inner = data.get("action"), data.get("content", {})
    if action in ("accept", "decline", "cancel") and set(data) <= {"action", "content"}:
        if action != "accept":
            return Answer("decline" if action == "decline" else "cancel")
        if isinstance(inner, dict):
            return Answer("accept", check_content(ask, inner))
    if not set(data) & {item.name for item in ask.fields} and _takes_text(ask):
        return None
    return Answer("accept", check_content(ask, data))


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _takes_text(ask: AskUser) -> bool:
    return any(item.kind == "text" and not item.options for item in ask.fields)


def _pairs(ask: AskUser, text: str) -> Answer | None:
    """``field=value field=value``: a value reaches to the next field of this form."""
    names = "|".join(re.escape(item.name) for item in ask.fields if item.name)
    if not names:
        return None
    marks = list(re.finditer(rf"(?:^|(?<=[\s,;]))({names})=", text))
    if not marks or marks[0].start() != 0:
        return None
    content: dict[str, JsonValue] = {}
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(text)
        name, value = mark.group(1), text[mark.end() : end].strip(" \t\r\n,;")
        if name in content:
            raise UsageError(f"the field {name!r} is given twice", remedy="Give each field once")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        content[name] = value
    return Answer("accept", check_content(ask, content))


def _text(data: JsonObject, name: str) -> str:
    value: JsonValue = data.get(name)
    return value if isinstance(value, str) else ""


def _objects(data: JsonObject, name: str) -> list[JsonObject]:
    value = data.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
