"""YAML to located values, from the event stream.

Only data: no tags beyond the plain ones, no merge keys, no key given twice.
Reading stops at the first limit, so a small file cannot become a large value
(aliases count as often as they are used) or a deep one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import yaml

from core.tasks.located import MAX_DEPTH, MAX_NODES, Located, Scalar, Unreadable

PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)


def read_yaml(text: str, *, first_line: int = 1) -> Located:
    """One YAML document. ``first_line`` is the line of the file ``text`` starts on.

    An empty document is an empty mapping. Raises Unreadable.
    """
    builder = _Builder(first_line)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(
            mark.line + first_line if mark else None,
            f"is not valid YAML: {error.problem or error.context or 'syntax error'}",
            "Fix the syntax; indent with spaces, and quote text that holds ': ' or '#'",
        ) from error
    except yaml.YAMLError as error:
        raise Unreadable(
            _line_of_bad_character(text, error, first_line),
            "is not valid YAML: it holds a character YAML forbids",
            "Remove control characters",
        ) from error
    if builder.root is None:
        return Located({}, first_line)
    return builder.root


def _line_of_bad_character(text: str, error: yaml.YAMLError, first_line: int) -> int | None:
    position = getattr(error, "position", None)
    if not isinstance(position, int):
        return None
    return text.count("\n", 0, position) + first_line


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    node: Located
    anchor: str | None
    key: str | None = None
    key_line: int = 0


@dataclass(slots=True)
class _Builder:
    first_line: int
    root: Located | None = None
    frames: list[_Frame] = field(default_factory=list)
    anchors: dict[str, tuple[Located, int]] = field(default_factory=dict)
    """Finished anchored values with the number of values in each."""
    open_sizes: list[int] = field(default_factory=list)
    nodes: int = 0
    resolver: yaml.SafeLoader = field(default_factory=lambda: yaml.SafeLoader(""))

    def take(self, event: yaml.Event) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + self.first_line
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event, line)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise Unreadable(line, "holds a second YAML document", "Keep one document")

    def _count(self, more: int, line: int) -> None:
        self.nodes += more
        if self.nodes > MAX_NODES:
            raise Unreadable(
                line,
                f"holds more than {MAX_NODES:,} values (aliases count each time)",
                "Move data into files beside it",
            )

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, line: int) -> None:
        self._check_tag(event.tag, line)
        self._count(1, line)
        if len(self.frames) >= MAX_DEPTH:
            raise Unreadable(line, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it")
        if self._awaits_key():
            raise Unreadable(line, "uses a list or mapping as a key", "Use a plain word as key")
        node = Located({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        self.frames.append(_Frame(node, event.anchor))
        self.open_sizes.append(self.nodes - 1)

    def _close(self) -> None:
        frame = self.frames.pop()
        size = self.nodes - self.open_sizes.pop()
        if frame.anchor:
            self.anchors[frame.anchor] = (frame.node, size)
        self._put(frame.node)

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        found = self.anchors.get(str(event.anchor))
        if found is None:
            raise Unreadable(
                line,
                f"uses the alias *{event.anchor} before its anchor is complete",
                "Write the value out",
            )
        self._count(found[1], line)
        if self._awaits_key():
            raise Unreadable(line, "uses an alias as a key", "Use a plain word as key")
        self._put(replace(found[0], line=line))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._check_tag(event.tag, line)
        self._count(1, line)
        if self._awaits_key():
            self._take_key(event, line)
            return
        node = Located(self._resolve(event, line), line, event.value)
        if event.anchor:
            self.anchors[event.anchor] = (node, 1)
        self._put(node)

    def _take_key(self, event: yaml.ScalarEvent, line: int) -> None:
        frame = self.frames[-1]
        if event.value == "<<" and event.style is None:
            raise Unreadable(line, "uses a merge key (<<)", "Write the keys out")
        assert isinstance(frame.node.value, dict)
        if event.value in frame.node.value:
            raise Unreadable(line, f"gives the key {event.value!r} twice", "Keep one of them")
        frame.key, frame.key_line = event.value, line

    def _awaits_key(self) -> bool:
        if not self.frames:
            return False
        frame = self.frames[-1]
        return isinstance(frame.node.value, dict) and frame.key is None

    def _put(self, node: Located) -> None:
        if not self.frames:
            self.root = node
            return
        frame = self.frames[-1]
        if isinstance(frame.node.value, list):
            frame.node.value.append(node)
        elif isinstance(frame.node.value, dict) and frame.key is not None:
            frame.node.value[frame.key] = replace(node, line=frame.key_line)
            frame.key = None

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag is not None and tag != "!" and tag not in PLAIN_TAGS:
            raise Unreadable(
                line, f"uses the YAML tag {tag!r}", "Remove the tag; only data is read"
            )

    def _resolve(self, event: yaml.ScalarEvent, line: int) -> Scalar:
        tag = event.tag
        if tag is None or tag == "!":
            resolve = cast("Callable[..., str]", self.resolver.resolve)
            tag = resolve(yaml.ScalarNode, event.value, event.implicit)
        node = yaml.ScalarNode(tag, event.value)
        try:
            if tag.endswith(":null"):
                return None
            if tag.endswith(":bool"):
                return bool(self.resolver.construct_yaml_bool(node))
            if tag.endswith(":int"):
                return int(self.resolver.construct_yaml_int(node))
            if tag.endswith(":float"):
                return _finite(float(self.resolver.construct_yaml_float(node)), line)
        except (ValueError, KeyError, OverflowError) as error:
            raise Unreadable(
                line, "holds a value that is no number YAML can give", "Quote it if it is text"
            ) from error
        return event.value


def _finite(number: float, line: int) -> float:
    if not math.isfinite(number):
        raise Unreadable(line, "holds a number that is not finite", "Give a finite number")
    return number
