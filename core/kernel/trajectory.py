"""Trajectory: one root-to-leaf path, computed from the tree, never stored.

A pure function of (tree, leaf): the same pair gives the same trajectory
whatever else grew in the tree meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from core.contracts.reward import ToolCall
from core.contracts.values import JsonObject
from core.kernel.tree import GivenAnswer, Node, Permission, Tree


@dataclass(frozen=True, slots=True)
class PromptItem:
    node: str
    text: str
    origin: str
    turn: int


@dataclass(frozen=True, slots=True)
class TextItem:
    node: str
    kind: Literal["thought", "message"]
    text: str


@dataclass(frozen=True, slots=True)
class ToolItem:
    node: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class AskItem:
    node: str
    ask_index: int
    question: JsonObject
    answer: GivenAnswer | None


@dataclass(frozen=True, slots=True)
class PermissionItem:
    node: str
    permission: Permission


Item: TypeAlias = PromptItem | TextItem | ToolItem | AskItem | PermissionItem


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one agent saw, did and was told, from the root to ``leaf``."""

    rollout: str
    leaf: str
    line: int
    assisted: bool
    items: tuple[Item, ...]
    reward: float | None
    """The newest verdict on the leaf; None when it was never scored."""

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(item.text for item in self.items if isinstance(item, PromptItem))


def trajectory(tree: Tree, leaf_id: str, *, line: int | None = None) -> Trajectory:
    """The path to ``leaf_id``. Raises KeyError for a node that is not in the tree.

    ``line`` is the line it is read for, where that one ended before its first node:
    its leaf is then its parent's, and its answer its own.
    """
    leaf = tree.nodes[leaf_id]
    number = leaf.line if line is None else line
    path = leaf.path
    items: list[Item] = []
    for position, node in enumerate(path):
        following = path[position + 1] if position + 1 < len(path) else None
        after = following.line if following is not None else number
        items.extend(_items(tree, node, after, number))
    read_for = tree.lines.get(number)
    return Trajectory(
        rollout=tree.rollout,
        leaf=leaf_id,
        line=number,
        assisted=read_for.assisted_by(leaf.seq) if read_for else False,
        items=tuple(items),
        reward=leaf.verdict.result.reward if leaf.verdict and number == leaf.line else None,
    )


def _items(tree: Tree, node: Node, following: int, line: int) -> Iterator[Item]:
    if node.kind == "prompt":
        yield PromptItem(node.id, node.text, node.origin, node.turn)
    elif node.kind == "ask":
        yield AskItem(node.id, node.ask_index, node.question, _answer(tree, node, following))
    for block in node.blocks:
        if block.kind == "tool":
            yield ToolItem(node.id, tree.tool_call(line, block.ref))
        elif block.kind == "permission":
            yield PermissionItem(node.id, tree.permissions[int(block.ref)])
        else:
            yield TextItem(node.id, block.kind, block.text)


def _answer(tree: Tree, ask: Node, following: int) -> GivenAnswer | None:
    """The answer on this path, which goes on on line ``following``: a branch's child was
    given its line's own answer."""
    if following == ask.line:
        return ask.answer
    continuation = tree.lines[following].continuation
    if continuation.get("kind") != "answer":
        return ask.answer
    return GivenAnswer(
        action=str(continuation.get("action", "accept")),
        content=cast(JsonObject, continuation.get("content") or {}),
        actor=str(continuation.get("actor", "")),
        via=str(continuation.get("via", "branch")),
        seconds=0.0,
    )
