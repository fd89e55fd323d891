"""The auto user: a declared policy, no knowledge of the task. It never nudges."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from core.contracts.agent import Answer, AskField, AskUser
from core.contracts.errors import UsageError
from core.contracts.user import AskContext, Nudge, TurnEnd, default_answer
from core.contracts.values import JsonValue
from core.users.values import check_content

NAME = "auto"
_VIA = "user-model"

AutoPolicy: TypeAlias = Literal["first", "default", "decline", "accept"]
POLICIES: tuple[AutoPolicy, ...] = get_args(AutoPolicy)


def auto_policy(word: str) -> AutoPolicy:
    """The policy of that name. Raises UsageError."""
    for policy in POLICIES:
        if policy == word:
            return policy
    raise UsageError(f"there is no auto policy {word!r}", remedy="Use " + ", ".join(POLICIES))


class AutoUser:
    """Answers every question by one rule.

    ``first``: the first option of each field that has options, the defaults
    elsewhere. ``default``: the question's own defaults. ``accept``: the
    defaults, yes to what can be granted, an allowing option where options say
    so. ``decline``: no. Where a rule leaves a required field without a value
    the answer is to decline.
    """

    def __init__(self, policy: AutoPolicy = "first") -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        return NAME

    async def answer(self, ask: AskUser, context: AskContext) -> Answer:
        if self._policy == "decline":
            return Answer("decline", actor=NAME, via=_VIA)
        if self._policy == "default":
            return default_answer(ask, actor=NAME)
        choose = _first if self._policy == "first" else _granted
        content = {item.name: value for item in ask.fields if (value := choose(item)) is not None}
        try:
            return Answer("accept", check_content(ask, content), NAME, _VIA)
        except UsageError:
            return Answer("decline", actor=NAME, via=_VIA)

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        return None


def _first(item: AskField) -> JsonValue:
    if not item.options:
        return None
    value = item.options[0].value
    return [value] if item.kind == "multi" else value


def _granted(item: AskField) -> JsonValue:
    if item.default is not None:
        return None
    if item.kind == "boolean":
        return True
    for option in item.options:
        if option.kind.startswith("allow"):
            return [option.value] if item.kind == "multi" else option.value
    return _first(item) if item.required else None
