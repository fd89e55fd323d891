"""Steps: the stream of session updates becomes steps of the tree.

Pure: updates in, event bodies out. The boundary rule is named on every step.
``updates``: a step is thought, message and tool updates up to the next
assistant text after a tool result. ``command``: every new tool call is a step.
``proxy`` boundaries are given from outside through ``boundary``.
"""

from __future__ import annotations

from typing import Literal

from core.contracts.agent import (
    MessageText,
    Noise,
    OtherUpdate,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
    UsageUpdate,
)
from core.kernel import events as ev

FINISHED = frozenset({"completed", "failed"})

TEXT_LIMIT = 16_384
"""Characters of text held before they are let go as one event."""


class Stepper:
    """Cuts one line's updates into steps. Text is held until ``flush`` or a boundary,
    so that a message streamed in a thousand pieces is a few events."""

    def __init__(
        self, rule: Literal["proxy", "updates", "command"], *, role: str = "agent"
    ) -> None:
        self._rule: Literal["proxy", "updates", "command"] = rule
        self._role = role
        self._open = False
        self._saw_result = False
        self._kind: Literal["message", "thought"] = "message"
        self._text: list[str] = []
        self._size = 0
        self._known: set[str] = set()

    def feed(self, update: SessionUpdate) -> list[ev.Body]:
        """The events that this update causes, in order."""
        match update:
            case MessageText(text=text):
                return self._feed_text("message", text)
            case ThoughtText(text=text):
                return self._feed_text("thought", text)
            case ToolUpdate():
                return self._feed_tool(update)
            case UsageUpdate():
                return [
                    *self.flush(),
                    ev.UsageChanged(
                        used=update.used,
                        size=update.size,
                        cost=update.cost,
                        currency=update.currency,
                        input_tokens=update.input_tokens,
                        output_tokens=update.output_tokens,
                    ),
                ]
            case OtherUpdate(name=name, payload=payload):
                return [*self.flush(), ev.SessionChanged(name, payload)]
            case Noise(channel=channel, sample=sample):
                return [ev.NoiseHeard(channel, sample[:500])]

    @property
    def holding(self) -> bool:
        """Whether there is text that ``flush`` would let go."""
        return bool(self._text)

    def flush(self) -> list[ev.Body]:
        """Let go of the text held so far, in events of at most ``TEXT_LIMIT`` characters."""
        text = "".join(self._text)
        self._text, self._size = [], 0
        kind = ev.Said if self._kind == "message" else ev.Thought
        pieces = range(0, len(text), TEXT_LIMIT)
        return [kind(text[start : start + TEXT_LIMIT]) for start in pieces]

    def boundary(self) -> list[ev.Body]:
        """End the current step, if there is one: a question, a turn's end, a model call."""
        ended: list[ev.Body] = self.flush()
        if self._open:
            ended.append(ev.StepEnded())
        self._open = self._saw_result = False
        return ended

    def _feed_text(self, kind: Literal["message", "thought"], text: str) -> list[ev.Body]:
        if not text:
            return []
        out: list[ev.Body] = []
        if self._saw_result and self._rule == "updates":
            out += self.boundary()
        out += self._ensure_open()
        if kind != self._kind:
            out += self.flush()
            self._kind = kind
        self._text.append(text)
        self._size += len(text)
        if self._size >= TEXT_LIMIT:
            out += self.flush()
        return out

    def _feed_tool(self, update: ToolUpdate) -> list[ev.Body]:
        new = update.tool_call_id not in self._known
        out = self.flush()
        if new:
            if self._rule == "command":
                out += self.boundary()
            self._known.add(update.tool_call_id)
            out += self._ensure_open()
        out.append(
            ev.ToolChanged(
                tool_call_id=update.tool_call_id,
                title=update.title,
                kind=update.kind,
                status=update.status,
                raw_input=update.raw_input,
                raw_output=update.raw_output,
                content=None if update.content is None else list(update.content),
                locations=None if update.locations is None else list(update.locations),
            )
        )
        if update.status in FINISHED and self._open:
            self._saw_result = True
        return out

    def _ensure_open(self) -> list[ev.Body]:
        if self._open:
            return []
        self._open, self._saw_result = True, False
        return [ev.StepStarted(self._rule, role=self._role)]
