"""What the main line is, how it ended, and what choosing one says about it."""

from __future__ import annotations

import pytest

from core.contracts.errors import UsageError
from core.contracts.values import Outcome
from core.kernel import events as ev
from core.kernel.branch import Continuation
from core.kernel.replay import fold
from core.kernel.tree import Tree
from core.services.branching import BranchRequest, rewound
from core.services.engine import line_result, outcome_of
from core.services.views import head, rows
from tests.core.kernel.golden import QUESTION, scored
from tests.core.kernel.logs import log


def two_lines(*more: tuple[int, ev.Body], child: str = "scored") -> Tree:
    """The main line got 1; line 1 was forked at its question."""
    ending: list[tuple[int, ev.Body]] = [(1, scored("n8", 0.25))] if child == "scored" else []
    error = None if child == "scored" else "it crashed"
    return fold(
        log(
            (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
            (0, ev.Asked(0, QUESTION)),
            (0, ev.Answered("n3", "accept", {}, "ann", "cli")),
            (0, scored("n3", 1.0)),
            (0, ev.LineEnded("scored")),
            (1, ev.LineStarted("n3", {"kind": "answer"}, "exact", "option")),
            (1, ev.StepStarted("updates")),
            *ending,
            (1, ev.LineEnded(child, error, "agent_crashed" if error else None)),
            (0, ev.RolloutEnded("scored", seconds=3.0)),
            *more,
        )
    )


def test_a_restored_line_is_selected_and_assisted_and_its_reward_counts() -> None:
    tree = two_lines((1, ev.MainLineSet(1, "restore", "ann")))
    line = tree.main_line
    assert line is not None
    assert (line.number, line.selected, line.assisted) == (1, True, True)
    result = line_result(tree)
    assert result.outcome is Outcome.SCORED
    assert result.verdict is not None
    assert result.verdict.reward == 0.25
    summary = head(tree)
    assert (summary.reward, summary.selected, summary.assisted) == (0.25, True, True)
    assert [row.line for row in rows(tree) if row.main] == [1]


def test_a_line_that_is_set_for_another_reason_is_not_selected() -> None:
    line = two_lines((1, ev.MainLineSet(1, "attempt"))).main_line
    assert line is not None
    assert (line.selected, line.assisted) == (False, False)


def test_a_main_line_that_failed_has_no_reward_whatever_another_got() -> None:
    tree = two_lines((1, ev.MainLineSet(1, "restore", "ann")), child="failed")
    result = line_result(tree)
    assert (result.outcome, result.verdict) == (Outcome.FAILED, None)
    assert (result.error, result.error_category) == ("it crashed", "agent_crashed")


def test_a_line_that_made_no_node_does_not_take_its_parents_verdict() -> None:
    tree = two_lines(
        (2, ev.LineStarted("n3", {"kind": "resample"}, "exact", "human", main=True)),
        (2, ev.LineEnded("failed", "no fork", "sandbox")),
    )
    assert tree.nodes["n3"].verdict is not None
    assert line_result(tree).verdict is None


def test_a_verifiers_failure_is_over_once_there_is_a_verdict_and_an_agents_is_not() -> None:
    for category, left in (("reward_missing", None), ("agent_timeout", "agent_timeout")):
        tree = fold(
            log(
                (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
                (0, ev.StepStarted("updates")),
                (0, ev.ScoringFailed("n3", "it broke", category)),
                (0, ev.LineEnded("failed", "it broke", category)),
                (0, ev.RolloutEnded("failed", "it broke", category)),
                (0, scored("n3", 1.0)),
            )
        )
        result = outcome_of(tree)
        assert (result.outcome, result.error_category) == (Outcome.SCORED, left)


def test_a_mended_line_is_scored_and_one_that_crashed_is_not_mended() -> None:
    for category, outcome in (("reward_missing", "scored"), ("agent_crashed", "failed")):
        tree = fold(
            log(
                (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
                (0, ev.StepStarted("updates")),
                (0, ev.ScoringFailed("n3", "it broke", "reward_missing")),
                (0, ev.LineEnded("failed", "it broke", category)),
                (0, scored("n3", 1.0)),
            )
        )
        assert tree.lines[0].outcome == outcome


def test_a_rewind_goes_on_in_one_way_that_no_value_counts() -> None:
    way = Continuation("answer", "Blue", content={"colour": "b"}, origin="option")
    again = rewound([way])
    assert (again.origin, again.label, again.content) == ("human", "rewound: Blue", {"colour": "b"})
    assert rewound([Continuation("resample", "again 1", origin="sampled")]).label == "rewound"
    for ways in ([], [way, way]):
        with pytest.raises(UsageError, match="goes on in one way"):
            rewound(ways)


def test_a_rewind_survives_its_journey_to_the_owner() -> None:
    request = BranchRequest("n3", resample=1, main=True)
    assert BranchRequest.from_json(request.to_json()) == request


def test_a_pause_is_told_until_it_ends_or_the_rollout_does() -> None:
    begun: list[tuple[int, ev.Body]] = [
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.PhaseStarted("execute")),
        (0, ev.Paused("ann", "cli")),
    ]
    assert head(fold(log(*begun))).phase == "paused"
    for after in (ev.Unpaused("ann"), ev.OwnerChanged("e2", "died"), ev.RolloutEnded("cancelled")):
        assert head(fold(log(*begun, (0, after)))).phase == "execute"
