"""A chain of nodes, as much of the contract as a scorer reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from core.contracts.reward import RolloutNode, ToolCall


@dataclass
class Node:
    """Implements ``RolloutNode``."""

    id: str
    kind: str = "step"
    parent: Node | None = None
    line: int = 1
    state: str | None = None
    thought: str = ""
    message: str = ""
    tool_calls: Sequence[ToolCall] = ()
    children: list[RolloutNode] = field(default_factory=list)

    @property
    def path(self) -> Sequence[RolloutNode]:
        return [*self.parent.path, self] if self.parent else [self]

    @property
    def subtree(self) -> Iterator[RolloutNode]:
        yield self
        for child in self.children:
            yield from child.subtree


def chain(*kinds: str) -> Node:
    """The leaf of a path of the given kinds, named n1, n2, ..."""
    node: Node | None = None
    for number, kind in enumerate(kinds, start=1):
        child = Node(f"n{number}", kind, node)
        if node is not None:
            node.children.append(child)
        node = child
    assert node is not None
    return node
