"""The action space, and what asking is worth in the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from core.contracts.reward import RolloutNode, VerifyResult
from core.rewards.compose import ComposedReward
from core.rewards.spaces import AskingReward
from core.tasks.models import AskingSpec
from tests.core.rewards.nodes import chain

ASKED = ("root", "prompt", "step", "ask", "step", "ask", "step")
SILENT = ("root", "prompt", "step", "step")

Expected = Literal["required", "forbidden", "optional"]


@dataclass(frozen=True)
class Fixed:
    """Implements ``Reward`` with a verdict known beforehand."""

    reward: float
    span: tuple[float, float] = (0.0, 1.0)
    digest: str = "fixed"

    async def score(self, node: RolloutNode) -> VerifyResult:
        return VerifyResult(self.reward, items={"a": 1.0}, range=self.span, raw=str(self.reward))


@pytest.mark.parametrize(
    ("expected", "kinds", "value"),
    [
        ("required", ASKED, 1.0),
        ("required", SILENT, 0.0),
        ("forbidden", ASKED, 0.0),
        ("forbidden", SILENT, 1.0),
        ("optional", ASKED, 1.0),
        ("optional", SILENT, 1.0),
    ],
)
async def test_the_action_is_what_the_task_expects(
    expected: Expected, kinds: tuple[str, ...], value: float
) -> None:
    result = await AskingReward(AskingSpec(expected, 0.3)).score(chain(*kinds))
    assert (result.reward, result.space) == (value, "action")


async def test_each_question_gets_its_own_step_event_and_silence_a_terminal_one() -> None:
    reward = AskingReward(AskingSpec("required", 0.3))
    asked = (await reward.score(chain(*ASKED))).events
    assert [(event.node, event.granularity) for event in asked] == [("n4", "step"), ("n6", "step")]
    (silent,) = (await reward.score(chain(*SILENT))).events
    assert (silent.node, silent.granularity, silent.value) == ("n4", "terminal", 0.0)


async def test_only_questions_on_the_path_count() -> None:
    leaf = chain("root", "prompt", "step")
    assert leaf.parent is not None
    leaf.parent.children.append(chain("ask"))
    assert (await AskingReward(AskingSpec("required", 1.0)).score(leaf)).reward == 0.0


@pytest.mark.parametrize(
    ("output", "kinds", "reward"),
    [
        (1.0, ASKED, 1.0),
        (1.0, SILENT, 0.7),
        (0.5, SILENT, 0.35),
        (0.0, ASKED, 0.0),
        (0.0, SILENT, 0.0),
    ],
)
async def test_silence_costs_its_share_and_asking_alone_earns_nothing(
    output: float, kinds: tuple[str, ...], reward: float
) -> None:
    asking = AskingReward(AskingSpec("required", 0.3))
    result = await ComposedReward(Fixed(output), asking).score(chain(*kinds))
    assert result.reward == pytest.approx(reward)
    assert result.items["output"] == output
    assert result.items["a"] == 1.0
    assert result.items["action"] == (1.0 if kinds is ASKED else 0.0)
    assert {event.space for event in result.events} == {"output", "action"}
    assert result.raw == str(output)


async def test_the_share_is_taken_above_the_bottom_of_the_range() -> None:
    asking = AskingReward(AskingSpec("required", 0.5))
    result = await ComposedReward(Fixed(1.0, (-1.0, 1.0)), asking).score(chain(*SILENT))
    assert result.reward == 0.0
    low = await ComposedReward(Fixed(-1.0, (-1.0, 1.0)), asking).score(chain(*ASKED))
    assert low.reward == -1.0


async def test_an_agent_that_cannot_ask_is_not_scored_for_it() -> None:
    asking = AskingReward(AskingSpec("required", 0.3), applies=False)
    result = await ComposedReward(Fixed(1.0), asking).score(chain(*SILENT))
    assert result.reward == 1.0
    assert "action" not in result.items
    assert {event.space for event in result.events} == {"output"}


def test_digests_tell_apart_what_would_score_differently() -> None:
    specs = [AskingSpec("required", 0.3), AskingSpec("required", 0.4), AskingSpec("forbidden", 0.3)]
    digests = {ComposedReward(Fixed(1.0), AskingReward(spec)).digest for spec in specs}
    digests.add(ComposedReward(Fixed(1.0, digest="x"), AskingReward(specs[0])).digest)
    assert len(digests) == 4
