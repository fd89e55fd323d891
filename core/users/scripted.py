"""The scripted user: a task's own answers, facts and nudges.

It keeps no state: what it says follows from the question and from where in the
tree it was asked, so every fork of a question hears the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.contracts.agent import Answer, AskField, AskUser
from core.contracts.errors import UsageError
from core.contracts.user import AskContext, Nudge, TurnEnd, default_answer
from core.contracts.values import JsonValue, StopReason
from core.tasks.models import UserSpec
from core.users.form import parse_answer
from core.users.values import check_content, coerce

NAME = "scripted"
_VIA = "user-model"
_OWN_ENDS = (StopReason.END_TURN, StopReason.MAX_TOKENS, StopReason.MAX_TURN_REQUESTS)


class ScriptedUser:
    """Answers from ``override`` (n-th question, n-th answer), else from the task.

    The task's ``answers`` come first, by the words of ``when``; then the
    private facts that the question names; else the question's own default. A
    rule whose answer this question does not take is passed over. An override
    it does not take raises UsageError: a person typed that for this run.
    """

    def __init__(self, spec: UserSpec, override: Sequence[str] = ()) -> None:
        self._spec = spec
        self._override = tuple(override)

    @property
    def name(self) -> str:
        return NAME

    async def answer(self, ask: AskUser, context: AskContext) -> Answer:
        if context.ask_index < len(self._override):
            given = self._override[context.ask_index]
            return parse_answer(ask, given, actor=NAME, via=_VIA)
        return self._from_answers(ask) or self._from_facts(ask) or default_answer(ask, actor=NAME)

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        """The n-th nudge after the n-th turn that the agent itself ended."""
        position = turn.turn - 1
        if turn.stop_reason in _OWN_ENDS and 0 <= position < len(self._spec.nudges):
            return Nudge(self._spec.nudges[position], actor=NAME, via=_VIA)
        return None

    def _from_answers(self, ask: AskUser) -> Answer | None:
        text = _folded(" ".join((ask.question, *(item.title for item in ask.fields))))
        for rule in self._spec.answers:
            if _folded(rule.when) in text:
                try:
                    return parse_answer(ask, rule.answer, actor=NAME, via=_VIA)
                except UsageError:
                    continue
        return None

    def _from_facts(self, ask: AskUser) -> Answer | None:
        """Each field by the facts it names; with none named, the question as a whole."""
        content = {
            item.name: value for item in ask.fields if (value := self._field(item)) is not None
        }
        if not content:
            return self._from_question(ask)
        try:
            return Answer("accept", check_content(ask, content), NAME, _VIA)
        except UsageError:
            return None

    def _field(self, item: AskField) -> JsonValue:
        for fact in self._facts_in(f"{item.title} {item.name}"):
            try:
                return coerce(item, fact)
            except UsageError:
                continue
        return None

    def _from_question(self, ask: AskUser) -> Answer | None:
        facts = self._facts_in(ask.question)
        for said in (*facts, ", ".join(facts)) if ask.options else (", ".join(facts),):
            try:
                return parse_answer(ask, said, actor=NAME, via=_VIA) if said else None
            except UsageError:
                continue
        return None

    def _facts_in(self, text: str) -> list[str]:
        """Facts of which every key word stands in the text, the most specific first."""
        words = _words(text)
        named = [
            (len(key_words), value)
            for key, value in self._spec.private_facts.items()
            if (key_words := _words(key)) and key_words <= words
        ]
        return [value for _, value in sorted(named, key=lambda item: -item[0])]


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(text: str) -> frozenset[str]:
    """``order_id`` and "the order's ID" both hold the words order and id."""
    return frozenset(re.findall(r"[^\W_]+", text.casefold()))
