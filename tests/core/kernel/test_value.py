"""V(s) against figures computed by hand or by another program.

The quantiles are scipy 1.x: ``beta.ppf(p, s + 0.5, n - s + 0.5)`` and ``t.ppf(0.975, df)``.
"""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.backup import Rules, answer_key, decisions
from core.kernel.replay import fold
from core.kernel.tree import Tree
from core.kernel.value import Value, jeffreys, q_value, state_value
from tests.core.kernel.logs import log

JEFFREYS = [
    (3, 7, 0.1388642191, 0.7654987507),
    (1, 2, 0.0608302759, 0.9391697241),
    (1, 10, 0.0110116738, 0.3813147711),
    (5, 10, 0.2235286703, 0.7764713297),
    (9, 10, 0.6186852289, 0.9889883262),
    (50, 100, 0.4031739509, 0.5968260491),
    (999, 1000, 0.9953355412, 0.9998920812),
]
STUDENT = {2: 4.3026527297, 3: 3.1824463053, 9: 2.2621571628, 99: 1.9842169516}


@pytest.mark.parametrize(("successes", "n", "low", "high"), JEFFREYS)
def test_the_interval_of_a_proportion_is_jeffreys(
    successes: int, n: int, low: float, high: float
) -> None:
    interval = jeffreys(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)
    assert (interval.method, interval.level) == ("jeffreys", 0.95)


def test_where_all_agree_the_interval_reaches_the_end() -> None:
    assert jeffreys(0, 10).low == 0.0
    assert jeffreys(0, 10).high == pytest.approx(0.2171962675, abs=1e-9)
    assert jeffreys(10, 10).high == 1.0
    assert jeffreys(10, 10).low == pytest.approx(0.7828037325, abs=1e-9)


@given(st.integers(1, 200), st.data())
def test_the_interval_of_a_proportion_is_mirrored_and_holds_its_mean(
    n: int, data: st.DataObject
) -> None:
    successes = data.draw(st.integers(0, n))
    interval, mirrored = jeffreys(successes, n), jeffreys(n - successes, n)
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-9)
    assert 0.0 <= interval.low <= successes / n <= interval.high <= 1.0


@pytest.mark.parametrize("freedom", sorted(STUDENT))
def test_graded_returns_get_a_t_interval(freedom: int) -> None:
    n = freedom + 1
    returns = [0.3 + 0.1 * (number % 3) for number in range(n)]
    value = q_value(returns)
    assert value.interval is not None
    half = STUDENT[freedom] * statistics.stdev(returns) / math.sqrt(n)
    assert value.interval.method == "t"
    assert value.interval.high - value.interval.low == pytest.approx(2 * half)
    assert value.mean == pytest.approx(statistics.mean(returns))
    assert value.variance == pytest.approx(statistics.variance(returns) / n)


def test_two_graded_returns_have_a_variance_and_no_interval() -> None:
    value = q_value([0.25, 0.75])
    assert (value.mean, value.n, value.interval) == (0.5, 2, None)
    assert value.variance == pytest.approx(0.0625)


@pytest.mark.parametrize("only", [0.0, 0.5, 1.0])
def test_a_single_return_has_a_mean_and_nothing_that_says_how_sure(only: float) -> None:
    assert q_value([only]) == Value(only, 1, None, None)


def test_no_return_at_all_is_no_value_and_not_zero() -> None:
    assert q_value([], excluded=3) == Value(None, 0, None, None, 3)


def test_a_pass_rate_is_never_certain_just_because_all_agree() -> None:
    value = q_value([1.0, 1.0, 1.0])
    assert value.variance == pytest.approx(3.5 * 0.5 / (16 * 5))
    assert value.interval is not None
    assert value.interval.low < 1.0


def test_a_declared_graded_reward_is_graded_even_if_all_are_0_or_1() -> None:
    value = q_value([0.0, 1.0, 1.0], binary=False)
    assert value.interval is not None
    assert value.interval.method == "t"


# -- V of one state ----------------------------------------------------------------


def test_groups_count_equally_however_many_children_they_have() -> None:
    groups = {"small": q_value([1.0]), "large": q_value([0.0] * 9)}
    assert state_value(groups).value.mean == 0.5
    assert state_value(groups, weights="empirical").value.mean == pytest.approx(0.1)
    stated = state_value(groups, weights={"small": 3.0, "large": 1.0})
    assert stated.value.mean == pytest.approx(0.75)
    assert [(part.key, part.q) for part in stated.groups] == [("small", 0.75), ("large", 0.25)]
    assert stated.weights == "stated"


def test_variance_is_the_weighted_sum_of_the_groups() -> None:
    groups = {"a": q_value([0.2, 0.4, 0.9]), "b": q_value([0.0, 0.5, 0.1])}
    value = state_value(groups).value
    a, b = groups["a"].variance, groups["b"].variance
    assert a is not None
    assert b is not None
    assert value.variance == pytest.approx(0.25 * a + 0.25 * b)
    assert value.interval is not None
    assert value.interval.method == "normal"
    half = 1.959963985 * math.sqrt(0.25 * a + 0.25 * b)
    assert (value.interval.high - value.interval.low) / 2 == pytest.approx(half)


def test_one_group_of_one_leaves_the_state_without_an_interval() -> None:
    value = state_value({"a": q_value([1.0, 0.0, 1.0]), "b": q_value([1.0])}).value
    assert value.mean == pytest.approx((2 / 3 + 1) / 2)
    assert (value.n, value.variance, value.interval) == (4, None, None)


def test_a_group_that_cannot_be_chosen_takes_no_interval_away() -> None:
    groups = {"a": q_value([1.0, 0.0, 1.0]), "b": q_value([1.0])}
    value = state_value(groups, weights={"a": 1.0}).value
    assert value.interval == groups["a"].interval


def test_a_single_group_keeps_its_own_interval() -> None:
    group = q_value([1.0, 0.0, 1.0])
    assert state_value({"a": group}).value.interval == group.interval


def test_failed_children_are_counted_and_are_no_zero() -> None:
    groups = {"a": q_value([1.0, 1.0], excluded=2), "b": q_value([], excluded=1)}
    value = state_value(groups, excluded=1).value
    assert (value.mean, value.n, value.excluded) == (1.0, 2, 4)


def test_nothing_scored_is_no_value() -> None:
    assert state_value({"a": q_value([], excluded=1)}).value == Value(None, 0, None, None, 1)
    assert state_value({"a": q_value([1.0])}, weights={"b": 1.0}).value.mean is None


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        state_value({"a": q_value([1.0])}, weights={"a": -1.0})


# -- backed up along a tree ----------------------------------------------------------


def leaf(line: int, node: int, reward: float | None) -> list[tuple[int, ev.Body]]:
    """The end of a line at ``n<node>``: a verdict, or a failure."""
    if reward is None:
        return [(line, ev.LineEnded("failed", "it died", "agent_crashed"))]
    verdict = ev.Scored(
        f"n{node}", reward, {}, [], "output", "terminal", [0.0, 1.0], "v", hardened=True
    )
    return [(line, verdict), (line, ev.LineEnded("scored"))]


class Grower:
    """A tree of one prompt per line, forked at will."""

    def __init__(self) -> None:
        self._bodies: list[tuple[int, ev.Body]] = []
        self._lines = 0

    def line(
        self,
        parent: str | None,
        answer: str | None = None,
        *,
        fidelity: str = "exact",
        origin: str = "option",
    ) -> tuple[int, str]:
        """A new line and the id of its one node."""
        content: JsonObject = {"a": answer}
        continuation: JsonObject = (
            {"kind": "resample"} if answer is None else {"kind": "answer", "content": content}
        )
        number, self._lines = self._lines, self._lines + 1
        started = ev.LineStarted(parent, continuation, fidelity, origin, main=number == 0)
        self._bodies.append((number, started))
        self._bodies.append((number, ev.Prompted("x", "task")))
        return number, f"n{len(self._bodies) + 1}"

    def end(self, line: int, node: str, reward: float | None) -> None:
        self._bodies += leaf(line, int(node[1:]), reward)

    def grow(self, parent: str, *rewards: float | None, answer: str | None = None) -> None:
        for reward in rewards:
            self.end(*self.line(parent, answer), reward)

    def score(self, line: int, node: str, reward: float) -> None:
        """A verdict on a node of a line that had ended without one."""
        self._bodies.append(leaf(line, int(node[1:]), reward)[0])

    def tree(self) -> Tree:
        return fold(log(*self._bodies))


def unequal() -> tuple[Tree, str, str]:
    """From the fork: ``no`` once to 1; ``yes`` to a state that branched to 0, 0, 0 and 1."""
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, answer="no")
    inner_line, inner = grower.line(fork, "yes")
    grower.end(inner_line, inner, None)
    grower.grow(inner, 0.0, answer="a")
    grower.grow(inner, 0.0, answer="b")
    grower.grow(inner, 0.0, answer="c")
    grower.grow(inner, 1.0, answer="d")
    return grower.tree(), fork, inner


def test_values_are_backed_up_per_decision_and_leaves_are_never_pooled() -> None:
    tree, fork, inner = unequal()
    found = decisions(tree)
    assert found[inner].value.value.mean == pytest.approx(0.25)
    assert found[fork].value.value.mean == pytest.approx((1.0 + 0.25) / 2)
    pooled = (1.0 + 0.0 + 0.0 + 0.0 + 1.0) / 5
    assert found[fork].value.value.mean != pytest.approx(pooled)
    assert found[fork].value.value.n == 5


def test_advantages_of_a_decision_average_to_zero_and_telescope_along_a_path() -> None:
    tree, fork, inner = unequal()
    found = decisions(tree)
    value = found[fork].value.value.mean
    assert value is not None
    parts = found[fork].value.groups
    means = [part.value.mean for part in parts]
    assert math.fsum(
        part.q * (mean - value) for part, mean in zip(parts, means, strict=True) if mean is not None
    ) == pytest.approx(0.0)
    middle = found[inner].value.value.mean
    assert middle in means
    assert middle is not None
    leaf_return = 1.0
    assert (middle - value) + (leaf_return - middle) == pytest.approx(leaf_return - value)


def test_a_resample_joins_the_group_of_the_line_it_resamples() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, 0.0, 1.0, answer="yes")
    grower.grow(fork, 0.0, answer="no")
    found = decisions(grower.tree())[fork].value
    assert {part.value.n for part in found.groups} == {1, 3}
    assert found.value.mean == pytest.approx((2 / 3 + 0) / 2)


def test_children_that_failed_are_excluded_and_counted() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, None, answer="yes")
    grower.grow(fork, 0.0, answer="no")
    value = decisions(grower.tree())[fork].value.value
    assert (value.mean, value.n, value.excluded) == (0.5, 2, 1)


def test_a_persons_branch_and_a_loose_child_are_out_unless_asked_for() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 0.0, answer="no")
    grower.end(*grower.line(fork, "yes", origin="human"), 1.0)
    grower.end(*grower.line(fork, "maybe", fidelity="transcript"), 1.0)
    tree = grower.tree()
    assert decisions(tree)[fork].value.value.mean == 0.0
    assert decisions(tree, Rules(include_human=True))[fork].value.value.mean == 0.5
    everything = Rules(include_human=True, include_loose=True)
    assert decisions(tree, everything)[fork].value.value.mean == pytest.approx(2 / 3)


def test_a_line_that_is_still_running_is_pending() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, answer="yes")
    grower.line(fork, "no")
    decision = decisions(grower.tree())[fork]
    assert decision.pending == 1
    assert decision.value.value.n == 1


def test_who_stopped_where_a_person_went_on_keeps_its_own_return() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 0.0, answer="no")
    line, end = grower.line(fork, "yes")
    grower.end(line, end, 1.0)
    grower.end(*grower.line(end, origin="human"), 0.0)
    found = decisions(grower.tree())
    assert found[fork].value.value.mean == 0.5
    assert (found[end].value.value.mean, found[end].value.value.excluded) == (1.0, 1)


def test_to_stop_is_one_of_the_ways_on() -> None:
    grower = Grower()
    line, end = grower.line(None)
    grower.end(line, end, 1.0)
    grower.grow(end, 0.0, 0.0, answer=None)
    value = decisions(grower.tree())[end].value.value
    assert value.mean == pytest.approx(1 / 3)
    assert value.n == 3


def test_a_score_of_the_state_in_which_a_line_died_is_no_return() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, answer="yes")
    line, died = grower.line(fork, "no")
    grower.end(line, died, None)
    grower.score(line, died, 0.0)
    value = decisions(grower.tree())[fork].value.value
    assert (value.mean, value.n, value.excluded) == (1.0, 1, 1)


def test_attempts_at_a_rollout_are_no_decision() -> None:
    bodies: list[tuple[int, ev.Body]] = [
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.Prompted("x", "task")),
        (0, ev.LineEnded("interrupted")),
        (1, ev.LineStarted(None, {"kind": "attempt"}, main=True)),
        (1, ev.Prompted("x", "task")),
        *leaf(1, 6, 1.0),
    ]
    assert decisions(fold(log(*bodies))) == {}


def test_only_the_newest_attempt_stands_beside_the_children_of_the_root() -> None:
    bodies: list[tuple[int, ev.Body]] = [
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.Prompted("x", "task")),
        (0, ev.LineEnded("interrupted")),
        (1, ev.LineStarted(None, {"kind": "attempt"}, main=True)),
        (1, ev.Prompted("x", "task")),
        *leaf(1, 6, 1.0),
        (2, ev.LineStarted("n1", {"kind": "resample"}, "exact", "sampled")),
        (2, ev.Prompted("x", "task")),
        *leaf(2, 10, 0.0),
    ]
    value = decisions(fold(log(*bodies)))["n1"].value.value
    assert (value.mean, value.n, value.excluded) == (0.5, 2, 0)


def test_an_interval_stays_in_the_declared_range() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    grower.grow(fork, 1.0, 1.0, answer="yes")
    grower.grow(fork, 1.0, 0.0, answer="no")
    interval = decisions(grower.tree())[fork].value.value.interval
    assert interval is not None
    assert (interval.method, interval.high) == ("normal", 1.0)
    graded = q_value([0.0, 0.1, 0.9], bounds=(0.0, 1.0)).interval
    assert graded is not None
    assert (graded.low, graded.high) == (0.0, 1.0)


def test_a_reward_of_another_range_is_graded_even_if_all_are_0_or_1() -> None:
    interval = q_value([1.0, 1.0, 0.0], bounds=(0.0, 10.0)).interval
    assert interval is not None
    assert interval.method == "t"
    assert interval.high > 1.0


def test_answers_that_were_sampled_weigh_as_often_as_they_came() -> None:
    grower = Grower()
    main, fork = grower.line(None)
    grower.end(main, fork, None)
    for _ in range(3):
        grower.end(*grower.line(fork, "yes", origin="sampled"), 1.0)
    grower.end(*grower.line(fork, "no", origin="sampled"), 0.0)
    found = decisions(grower.tree())[fork].value
    assert (found.value.mean, found.weights) == (0.75, "empirical")


def test_equal_graded_returns_have_no_variance_to_speak_of() -> None:
    same = q_value([0.25, 0.25, 0.25])
    assert (same.mean, same.variance, same.interval) == (0.25, None, None)


def test_equal_answers_are_one_group_however_they_are_written() -> None:
    assert answer_key("accept", {"n": 1}) == answer_key("accept", {"n": 1.0})
    assert answer_key("accept", {"many": ["b", "a"]}) == answer_key("accept", {"many": ["a", "b"]})
    assert answer_key("accept", {"n": 1}) != answer_key("accept", {"n": 2})
