"""Going on from an edited history: what a new session is told, and in which world.

The world is that of the nearest stored node at or before the edited one, so the
history may be ahead of it; what is told says which node's world it is. Pure.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, get_args

from core.contracts.errors import CheckpointError, UsageError
from core.contracts.values import JsonObject
from core.kernel.branch import Continuation, checkpoint_of
from core.kernel.checkpoint import Checkpoint
from core.kernel.trajectory import (
    AskItem,
    Item,
    PermissionItem,
    PromptItem,
    TextItem,
    ToolItem,
    trajectory,
)
from core.kernel.tree import Node, Tree

EditRole: TypeAlias = Literal["message", "tool_result", "prompt"]

_RESULT_CHARS = 20_000
"""Of each tool result that is told."""
_HEAD = (
    "You go on with a task that was begun in an earlier session. What has happened so far is "
    "told below, in order; your files and services are as that work left them"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of the history: the text of a prompt, of a step's message, or of the
    result of a step's last tool call."""

    node: str
    role: EditRole
    text: str

    def to_json(self) -> JsonObject:
        return {"node": self.node, "role": self.role, "text": self.text}


def read_edit(text: str, name: str) -> Edit:
    """An edit from JSON, or TOML where ``name`` ends so. Raises UsageError naming the key."""
    try:
        data: object = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"this edit cannot be read: {error}", where=name, remedy="Write JSON, or a .toml file"
        ) from error
    return edit_from(data, name)


def edit_from(data: object, where: str = "") -> Edit:
    """Raises UsageError for a value that is no edit."""
    roles = get_args(EditRole)
    values = data if isinstance(data, dict) else {}
    for key in ("node", "role", "text"):
        if not isinstance(values.get(key), str) or not values[key]:
            raise UsageError(
                f"an edit needs {key!r} as text",
                where=where,
                remedy='Write {"node": "n12", "role": "message", "text": "..."}',
            )
    if values["role"] not in roles:
        raise UsageError(
            f"an edit's role cannot be {values['role']!r}",
            where=where,
            remedy=f"Use one of {', '.join(roles)}",
        )
    return Edit(values["node"], values["role"], values["text"])


def edited(
    tree: Tree, edit: Edit, *, actor: str, via: str
) -> tuple[Node, Checkpoint, Continuation]:
    """The node to grow from, the stored state to start in, and what the session is told.

    Raises UsageError where the node has no such text, CheckpointError where no node at
    or before it is stored.
    """
    node = _edited_node(tree, edit)
    grows_from = node if edit.role != "prompt" else (node.parent or node)
    checkpoint = _nearest(tree, grows_from)
    items = list(trajectory(tree, grows_from.id).items)
    if edit.role == "prompt":
        text = _told(items, edit.text, checkpoint, grows_from) if items else edit.text
    else:
        text = _told(_replaced(items, edit), "", checkpoint, grows_from)
    way = Continuation(
        "edit",
        f"edited {edit.role.replace('_', ' ')} of {edit.node}",
        content=edit.to_json(),
        text=text,
        origin="human",
        actor=actor,
        via=via,
    )
    return grows_from, checkpoint, way


def _edited_node(tree: Tree, edit: Edit) -> Node:
    node = tree.nodes.get(edit.node)
    if node is None:
        raise UsageError(
            f"there is no node {edit.node!r} in this rollout", remedy="See them with `bench show`"
        )
    fits = {
        "prompt": node.kind == "prompt",
        "message": bool(node.message),
        "tool_result": bool(node.tool_calls),
    }
    if not fits[edit.role]:
        raise UsageError(
            f"node {node.id} has no {edit.role.replace('_', ' ')} to edit",
            where=f"it is a {node.kind}",
            remedy="Choose another node or role",
        )
    return node


def _nearest(tree: Tree, node: Node) -> Checkpoint:
    near = next((item for item in reversed(node.path) if item.checkpoint is not None), None)
    if near is None:
        raise CheckpointError(
            f"no state is stored at {node.id} or before it",
            where=f"rollout {tree.rollout}",
            remedy="Edit something after the first stored node",
        )
    return checkpoint_of(tree, near.id)


def _replaced(items: Sequence[Item], edit: Edit) -> list[Item]:
    """The history up to and with the edited text; of the step nothing after it."""
    wanted = TextItem if edit.role == "message" else ToolItem
    last = max(
        index
        for index, item in enumerate(items)
        if item.node == edit.node
        and isinstance(item, wanted)
        and not (isinstance(item, TextItem) and item.kind == "thought")
    )
    kept = list(items[: last + 1])
    changed = kept[last]
    if isinstance(changed, ToolItem):
        call = replace(changed.call, raw_output=edit.text, content=(), status="completed")
        kept[last] = ToolItem(changed.node, call)
    else:
        kept[last] = TextItem(changed.node, "message", edit.text)
        # A message may have been cut into pieces; the edit stands for all of them.
        kept = [
            item
            for index, item in enumerate(kept)
            if index == last
            or not (isinstance(item, TextItem) and item.node == edit.node)
            or item.kind == "thought"
        ]
    return kept


def _told(items: Sequence[Item], prompt: str, checkpoint: Checkpoint, node: Node) -> str:
    where = "" if checkpoint.node == node.id else f", up to {checkpoint.node} of this history"
    parts = [f"{_HEAD}{where}.", *(text for item in items if (text := _item(item)))]
    parts.append(f"[user]\n{prompt}" if prompt else "Go on from here.")
    return "\n\n".join(parts)


def _item(item: Item) -> str:
    match item:
        case PromptItem():
            return f"[user]\n{item.text}"
        case TextItem():
            return f"[you said]\n{item.text}" if item.kind == "message" else ""
        case ToolItem():
            call = item.call
            given = "" if call.raw_input is None else f"\ninput: {_short(call.raw_input)}"
            result = call.raw_output if call.raw_output is not None else list(call.content)
            return f"[tool] {call.title or call.kind}{given}\nresult: {_short(result)}"
        case AskItem():
            question = str(item.question.get("question", ""))
            answer = item.answer.label if item.answer else "not answered"
            return f"[you asked]\n{question}\n[user answered]\n{answer}"
        case PermissionItem():
            return ""


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= _RESULT_CHARS:
        return text
    return f"{text[:_RESULT_CHARS]}\n[{len(text) - _RESULT_CHARS} characters left out]"


def edit_of(request: JsonObject) -> Edit | None:
    """The edit inside a request that travelled, if there is one."""
    found = request.get("edit")
    return edit_from(cast(JsonObject, found)) if found else None
