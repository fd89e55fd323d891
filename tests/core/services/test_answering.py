"""Answers reach the question they are meant for, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.contracts.errors import UsageError
from core.contracts.store import NewRequest, NewRollout, Ownership
from core.contracts.user import TurnEnd
from core.contracts.values import StopReason
from core.services import acts
from core.users.form import ask_to_json, turn_end_to_json
from tests.core.services.helpers import Bench, bench
from tests.fakes.kernel_agent import question

WHO = {"actor": "ann", "via": "test"}


async def owned(it: Bench) -> Ownership:
    item = it.plan().rollouts[0]
    new = NewRollout(
        id=item.id,
        job="job",
        name=item.name,
        task=item.task.name,
        task_digest=item.task.digest,
        agent="fake",
        model=None,
        sandbox="local",
        user="human",
        folder=str(item.folder),
        config=item.config.to_json(),
    )
    return await it.tools.store.rollouts.create(it.host.id, new)


async def ask(it: Bench, own: Ownership, node: str = "n5") -> str:
    asked = NewRequest(
        own.rollout, 0, node, 0, "ask_user", ask_to_json(question()), {"action": "decline"}
    )
    return (await it.tools.store.requests.open(own, asked)).id


async def end_turn(it: Bench, own: Ownership, line: int = 0) -> str:
    turn = turn_end_to_json(TurnEnd(own.rollout, line, "n7", 1, StopReason.END_TURN, "Done."))
    ended = NewRequest(own.rollout, line, "n7", 1, "turn_end", turn, {"action": "accept"})
    return (await it.tools.store.requests.open(own, ended)).id


async def test_last_is_the_newest_rollout_and_never_another_ones_question(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        older, newer = await owned(it), await owned(it)
        mine = await ask(it, newer)
        await ask(it, older)
        assert (await acts.answer(it.tools, "last", "small", **WHO)).id == mine
        with pytest.raises(UsageError, match="is not waiting"):
            await acts.answer(it.tools, "last", "small", **WHO)


async def test_of_several_questions_none_is_guessed(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        own = await owned(it)
        asked, ended = await ask(it, own), await end_turn(it, own, line=1)
        with pytest.raises(UsageError, match="waits for 2 answers") as refused:
            await acts.answer(it.tools, own.rollout, "small", **WHO)
        assert asked in str(refused.value)
        assert ended in str(refused.value)
        assert (await acts.answer(it.tools, ended, "accept", **WHO)).id == ended
        assert (await acts.answer(it.tools, own.rollout, "small", **WHO)).id == asked


async def test_words_for_a_question_that_is_over_are_no_nudge(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        own = await owned(it)
        ended = await end_turn(it, own)
        with pytest.raises(UsageError, match="would be a nudge"):
            await acts.answer(it.tools, "last", "small", **WHO)
        done = await acts.answer(it.tools, ended, "Look again.", **WHO)
        assert done.answer == {"action": "accept", "content": {"nudge": "Look again."}}


async def test_a_turn_is_accepted_by_its_rollout(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        own = await owned(it)
        ended = await end_turn(it, own)
        assert (await acts.answer(it.tools, "last", "accept", **WHO)).id == ended
