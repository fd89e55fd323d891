"""A trajectory as upstream's ``acp_trajectory.jsonl``: one record per thing said or done.

Record types and keys are upstream's; ``node`` and the records ``ask_user`` and
``permission`` are ours, so that what the user was asked and answered is kept.
A tool call is one merged record at its first place. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from core.contracts.reward import ToolCall
from core.contracts.values import JsonObject, JsonValue
from core.exports.encode import json_lines
from core.kernel.trajectory import (
    AskItem,
    Item,
    PermissionItem,
    PromptItem,
    TextItem,
    ToolItem,
    Trajectory,
    trajectory,
)
from core.kernel.tree import Node


def trajectory_lines(node: Node) -> bytes:
    """The path from the root to ``node``, as the verifier is given it."""
    return json_lines(trajectory_records(trajectory(node.tree, node.id)))


def trajectory_records(path: Trajectory) -> list[JsonObject]:
    """Every item of the path; neighbouring pieces of one message are one record."""
    records: list[JsonObject] = []
    for item in path.items:
        if isinstance(item, TextItem) and records and _continues(records[-1], item):
            records[-1]["text"] = f"{records[-1]['text']}{item.text}"
        else:
            records.extend(_records(item))
    return records


def _continues(record: JsonObject, item: TextItem) -> bool:
    return record["type"] == f"agent_{item.kind}" and record["node"] == item.node


def _records(item: Item) -> Iterator[JsonObject]:
    match item:
        case PromptItem():
            yield {"type": "user_message", "text": item.text, "node": item.node}
        case TextItem():
            yield {"type": f"agent_{item.kind}", "text": item.text, "node": item.node}
        case ToolItem():
            yield {**_tool(item.call), "node": item.node}
        case AskItem():
            yield _ask(item)
        case PermissionItem():
            yield _permission(item)


def _tool(call: ToolCall) -> JsonObject:
    record: JsonObject = {
        "type": "tool_call",
        "tool_call_id": call.tool_call_id,
        "kind": call.kind,
        "title": call.title,
        "status": call.status,
        "content": list(call.content),
    }
    # ToolCall holds what the agent sent, which reached us as JSON.
    for name, value in (("raw_input", call.raw_input), ("raw_output", call.raw_output)):
        if value is not None:
            record[name] = cast(JsonValue, value)
    return record


def _ask(item: AskItem) -> JsonObject:
    answer: JsonObject | None = None
    if item.answer is not None:
        answer = {
            "action": item.answer.action,
            "content": item.answer.content,
            "actor": item.answer.actor,
            "via": item.answer.via,
            "seconds": item.answer.seconds,
        }
    return {
        "type": "ask_user",
        "node": item.node,
        "ask_index": item.ask_index,
        **item.question,
        "answer": answer,
    }


def _permission(item: PermissionItem) -> JsonObject:
    settled = item.permission
    return {
        "type": "permission",
        "node": item.node,
        "title": settled.title,
        "options": list(settled.options),
        "chosen": settled.chosen,
        "policy": settled.policy,
        "actor": settled.actor,
        "tool_call_id": settled.tool_call_id,
    }
