"""User model: the policy inside the ACP client role. A person is one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.contracts.agent import Answer, AskField, AskUser
from core.contracts.values import JsonValue, StopReason


@dataclass(frozen=True, slots=True)
class AskContext:
    """Where in the tree a question was raised."""

    rollout: str
    line: int
    node: str
    ask_index: int
    """0-based, counted along the path from the root."""
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn that ended by itself; the user may nudge or accept."""

    rollout: str
    line: int
    node: str
    turn: int
    stop_reason: StopReason
    message: str


@dataclass(frozen=True, slots=True)
class Nudge:
    text: str
    actor: str
    via: str = "user-model"
    request: str = ""
    """Id of the stored request that it settled, when one waited for it."""
    id: str = ""
    """Names it in the log, when its acceptance is a record of its own."""


class UserModel(Protocol):
    @property
    def name(self) -> str:
        """scripted, auto, human, simulated."""
        ...

    async def answer(self, ask: AskUser, context: AskContext) -> Answer: ...

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        """A follow-up prompt, or None to accept the turn as final."""
        ...


def default_answer(ask: AskUser, *, actor: str, via: str = "default") -> Answer:
    """The answer nobody gave: each field's default, else decline."""
    content = {item.name: item.default for item in ask.fields if item.default is not None}
    missing = [item for item in ask.fields if item.required and item.name not in content]
    if missing or not content:
        return Answer("decline", actor=actor, via=via)
    return Answer("accept", content, actor=actor, via=via)


def choose(ask: AskUser, value: str, *, actor: str, via: str) -> Answer:
    """An answer that picks ``value`` by option value or label, or gives it as free text.

    Raises ValueError, naming what is allowed, when the question takes neither.
    """
    choice = ask.choice
    if choice is not None:
        for option in choice.options:
            if value in (option.value, option.label):
                content = _defaults(ask.fields)
                content[choice.name] = [option.value] if choice.kind == "multi" else option.value
                return Answer("accept", content, actor=actor, via=via)
    for item in ask.fields:
        if item.kind == "text" and not item.options:
            content = _defaults(ask.fields)
            content[item.name] = value
            return Answer("accept", content, actor=actor, via=via)
    allowed = ", ".join(option.value for option in ask.options) or "accept or decline only"
    raise ValueError(f"{value!r} is not an answer to this question; allowed: {allowed}")


def _defaults(fields: Sequence[AskField]) -> dict[str, JsonValue]:
    return {item.name: item.default for item in fields if item.default is not None}
