"""ACP's two ways to ask, as ``AskUser`` and ``PermissionAsked``, and the answers back.

Agents shape their forms differently: the question stands in the message, in the
title or in the description of the first field with options. Invariant: options
come from that field's enumerated constants, the answer goes back with the
constant's own JSON type, and only keys of the form go back.
Protocol: ``elicitation/create`` (mode form) and ``session/request_permission``
of ACP v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from core.contracts.agent import Answer, AskField, AskUser, Option, PermissionAsked
from core.contracts.values import JsonObject, JsonValue

PERMISSION_FIELD = "option"
"""Name of the one field of a question that came as a permission request."""

FieldKind: TypeAlias = Literal["choice", "multi", "text", "number", "integer", "boolean"]

_SIMPLE: dict[str, FieldKind] = {"number": "number", "integer": "integer", "boolean": "boolean"}


def as_object(value: JsonValue) -> JsonObject:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_text(value: JsonValue) -> str:
    """The value when it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def elicitation_ask(params: JsonObject) -> AskUser:
    """The question of an ``elicitation/create`` request in form mode."""
    schema = as_object(params.get("requestedSchema"))
    properties = as_object(schema.get("properties"))
    needed = schema.get("required")
    required = set(map(str, needed)) if isinstance(needed, list) else set()
    fields = tuple(
        _field(name, as_object(raw), name in required) for name, raw in properties.items()
    )
    tool_call = params.get("toolCallId")
    return AskUser(
        question=_question(as_text(params.get("message")), fields, properties),
        fields=fields,
        source="elicitation",
        tool_call_id=tool_call if isinstance(tool_call, str) else None,
        native=params,
    )


def elicitation_reply(ask: AskUser, answer: Answer) -> JsonObject:
    """The result of ``elicitation/create``: accept with content, decline, or cancel."""
    if answer.action != "accept":
        return {"action": answer.action}
    properties = as_object(as_object(ask.native.get("requestedSchema")).get("properties"))
    content: JsonObject = {}
    for item in ask.fields:
        if item.name in answer.content:
            schema = as_object(properties.get(item.name))
            content[item.name] = _back(item, schema, answer.content[item.name])
    return {"action": "accept", "content": content}


def permission_asked(params: JsonObject) -> PermissionAsked:
    """A ``session/request_permission`` request; kinds we do not know are kept as they are."""
    call = as_object(params.get("toolCall"))
    tool_call = call.get("toolCallId")
    return PermissionAsked(
        title=as_text(call.get("title")) or as_text(params.get("title")) or "Permission",
        options=_permission_options(params.get("options")),
        tool_call_id=tool_call if isinstance(tool_call, str) else None,
        native=params,
    )


def permission_ask(asked: PermissionAsked) -> AskUser:
    """A permission request of an agent that asks its questions this way."""
    choice = AskField(PERMISSION_FIELD, asked.title, "choice", asked.options, required=True)
    return AskUser(
        question=asked.title,
        fields=(choice,),
        source="permission",
        tool_call_id=asked.tool_call_id,
        native=asked.native,
    )


def permission_reply(chosen: JsonValue) -> JsonObject:
    """The result of ``session/request_permission``; None is "cancelled"."""
    if not isinstance(chosen, str):
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": chosen}}


def _permission_options(raw: JsonValue) -> tuple[Option, ...]:
    found: list[Option] = []
    for item in raw if isinstance(raw, list) else []:
        option = as_object(item)
        value = option.get("optionId")
        if isinstance(value, str):
            label = as_text(option.get("name")) or value
            found.append(Option(value, label, kind=as_text(option.get("kind"))))
    return tuple(found)


def _field(name: str, schema: JsonObject, required: bool) -> AskField:
    options = tuple(
        Option(_plain(const), as_text(item.get("title")) or _plain(const), _description(item))
        for const, item in _constants(schema)
    )
    kind: FieldKind = _SIMPLE.get(as_text(schema.get("type")), "text")
    if options:
        kind = "multi" if schema.get("type") == "array" else "choice"
    title = as_text(schema.get("title")) or name
    return AskField(name, title, kind, options, required, schema.get("default"))


def _description(item: Mapping[str, JsonValue]) -> str:
    return as_text(item.get("description"))


def _constants(schema: JsonObject) -> list[tuple[JsonValue, JsonObject]]:
    """Every enumerated constant with the entry that describes it, in the agent's order."""
    holder = as_object(schema.get("items")) if schema.get("type") == "array" else schema
    for key in ("oneOf", "anyOf"):
        entries = holder.get(key)
        if isinstance(entries, list):
            objects = [as_object(entry) for entry in entries]
            return [(entry["const"], entry) for entry in objects if "const" in entry]
    values, names = holder.get("enum"), holder.get("enumNames")
    if not isinstance(values, list):
        return []
    titles = names if isinstance(names, list) and len(names) == len(values) else values
    return [
        (value, {"title": title if isinstance(title, str) else _plain(value)})
        for value, title in zip(values, titles, strict=True)
    ]


def _plain(const: JsonValue) -> str:
    if isinstance(const, bool):
        return "true" if const else "false"
    return str(const)


def _question(message: str, fields: tuple[AskField, ...], properties: JsonObject) -> str:
    main = next((item for item in fields if item.options), fields[0] if fields else None)
    parts = [message]
    if main is not None:
        schema = as_object(properties.get(main.name))
        parts += [as_text(schema.get("title")), as_text(schema.get("description"))]
    seen: list[str] = []
    for part in (part.strip() for part in parts):
        if part and not any(part in earlier for earlier in seen):
            seen.append(part)
    return "\n".join(seen)


def _back(item: AskField, schema: JsonObject, value: JsonValue) -> JsonValue:
    """An answer in the JSON type that the form asked for; what does not fit goes as it is."""
    if item.options:
        constants = {_plain(const): const for const, _ in _constants(schema)}
        if item.kind == "multi":
            chosen = value if isinstance(value, list) else [value]
            return [constants.get(_plain(one), one) for one in chosen]
        return constants.get(_plain(value), value)
    if isinstance(value, str):
        return _typed(item.kind, value)
    return value


def _typed(kind: FieldKind, text: str) -> JsonValue:
    if kind == "boolean" and text.lower() in ("true", "false", "yes", "no"):
        return text.lower() in ("true", "yes")
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return float(text)
    except ValueError:
        return text
    return text
