"""V(s): the value of a state from the returns of its continuations.

Children are grouped by *continuation*. Within a group Q is the mean of its
returns; V = sum of q times Q over the groups, where q says how likely each
continuation is. Backed up per decision, never over pooled leaves: the mean of
leaves is biased as soon as one child branches more than another.

Intervals: Jeffreys for 0/1 returns (Brown, Cai, DasGupta 2001), Student t for
graded returns with n >= 3, both only inside a group of leaf returns. Above,
Var(V) = sum of q^2 Var(Q); one group without a variance leaves V without an
interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Weights: TypeAlias = Literal["uniform", "empirical"] | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """Two-sided, at ``level`` (0.95). Ends are in reward units."""

    low: float
    high: float
    method: Literal["jeffreys", "t", "normal"]
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Value:
    """An estimate with what it rests on. ``mean`` None means nothing was scored."""

    mean: float | None
    n: int
    """Leaf returns that it rests on."""
    variance: float | None
    """Variance of ``mean`` as an estimate; None when it cannot be known (n = 1)."""
    interval: Interval | None
    excluded: int = 0
    """Children that failed or are out by rule: counted, never a 0."""


@dataclass(frozen=True, slots=True)
class Group:
    """One continuation and its Q."""

    key: str
    q: float
    value: Value


@dataclass(frozen=True, slots=True)
class StateValue:
    """V of one state: the groups, the weights' name, and the sum."""

    value: Value
    groups: tuple[Group, ...]
    weights: str


Bounds: TypeAlias = tuple[float, float] | None
"""The declared range of a reward; an interval never leaves it."""


def q_value(
    returns: Sequence[float],
    *,
    excluded: int = 0,
    binary: bool | None = None,
    bounds: Bounds = None,
) -> Value:
    """Q of one continuation from the returns of its children.

    ``binary`` None means: judge by the returns themselves (all 0 or 1), where no other
    range than 0 to 1 was declared.
    """
    if binary is None and bounds is not None and bounds != (0.0, 1.0):
        binary = False
    n = len(returns)
    if n == 0:
        return Value(None, 0, None, None, excluded)
    mean = math.fsum(returns) / n
    if n == 1:
        return Value(mean, 1, None, None, excluded)
    zero_one = all(value in (0.0, 1.0) for value in returns) if binary is None else binary
    spread = math.fsum((value - mean) ** 2 for value in returns) / (n - 1)
    if zero_one:
        return Value(mean, n, _binary_variance(returns), jeffreys(sum(returns), n), excluded)
    if spread == 0.0:
        # Equal returns say nothing about how far the next would lie.
        return Value(mean, n, None, None, excluded)
    interval = _within(_t_interval(mean, spread / n, n), bounds) if n >= 3 else None
    return Value(mean, n, spread / n, interval, excluded)


def state_value(
    groups: Mapping[str, Value],
    *,
    weights: Weights = "uniform",
    excluded: int = 0,
    bounds: Bounds = None,
) -> StateValue:
    """V = sum q Q over the groups that have a value; q is renormalised over them.

    ``weights``: ``uniform`` over continuations, ``empirical`` by their n, or a
    stated user model (key to probability). Raises ValueError for a stated model
    with a negative weight.
    """
    scored = {key: value for key, value in groups.items() if value.mean is not None}
    lost = excluded + sum(value.excluded for value in groups.values())
    name = weights if isinstance(weights, str) else "stated"
    shares = _shares(scored, weights)
    if not scored or not shares:
        return StateValue(Value(None, 0, None, None, lost), (), name)
    parts = tuple(Group(key, shares[key], scored[key]) for key in scored)
    mean = math.fsum(part.q * part.value.mean for part in parts if part.value.mean is not None)
    variances = [
        part.q**2 * part.value.variance
        for part in parts
        if part.q > 0 and part.value.variance is not None
    ]
    complete = len(variances) == sum(part.q > 0 for part in parts)
    variance = math.fsum(variances) if complete else None
    n = sum(part.value.n for part in parts)
    interval = _within(_combined_interval(parts, mean, variance), bounds)
    return StateValue(Value(mean, n, variance, interval, lost), parts, name)


def jeffreys(successes: float, n: int, level: float = 0.95) -> Interval:
    """Jeffreys interval of a proportion; the ends are 0 and 1 where all agree."""
    tail = (1 - level) / 2
    a, b = successes + 0.5, n - successes + 0.5
    low = 0.0 if successes == 0 else _beta_quantile(tail, a, b)
    high = 1.0 if successes == n else _beta_quantile(1 - tail, a, b)
    return Interval(low, high, "jeffreys", level)


def _shares(scored: Mapping[str, Value], weights: Weights) -> dict[str, float]:
    if weights == "uniform":
        raw = dict.fromkeys(scored, 1.0)
    elif weights == "empirical":
        raw = {key: float(value.n) for key, value in scored.items()}
    else:
        assert not isinstance(weights, str)
        if any(weight < 0 for weight in weights.values()):
            raise ValueError("a user model's weights must not be negative")
        raw = {key: float(weights.get(key, 0.0)) for key in scored}
    total = math.fsum(raw.values())
    return {key: value / total for key, value in raw.items()} if total > 0 else {}


def _combined_interval(
    parts: Sequence[Group], mean: float, variance: float | None
) -> Interval | None:
    live = [part for part in parts if part.q > 0]
    if len(live) == 1:
        return live[0].value.interval
    if variance is None:
        return None
    half = 1.959963984540054 * math.sqrt(variance)
    return Interval(mean - half, mean + half, "normal")


def _within(interval: Interval | None, bounds: Bounds) -> Interval | None:
    if interval is None or bounds is None:
        return interval
    low, high = max(interval.low, bounds[0]), min(interval.high, bounds[1])
    return replace(interval, low=low, high=high)


def _binary_variance(returns: Sequence[float]) -> float:
    """Posterior variance under the Jeffreys prior: never 0 just because all agree."""
    a, b = sum(returns) + 0.5, len(returns) - sum(returns) + 0.5
    return a * b / ((a + b) ** 2 * (a + b + 1))


def _t_interval(mean: float, variance: float, n: int, level: float = 0.95) -> Interval:
    half = _t_quantile(1 - (1 - level) / 2, n - 1) * math.sqrt(variance)
    return Interval(mean - half, mean + half, "t", level)


def _t_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for p > 0.5, through the beta distribution."""
    x = _beta_quantile(2 * (1 - p), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x)


def _beta_quantile(p: float, a: float, b: float) -> float:
    """Inverse of the regularised incomplete beta function, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b) by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_cdf(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d, fraction = 1.0, 0.0, 1.0
    for m in range(500):
        if m == 0:
            numerator = 1.0
        elif m % 2 == 0:
            k = m // 2
            numerator = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        else:
            k = (m - 1) // 2
            numerator = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        d = 1.0 + numerator * d
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = 1.0 + numerator / (c if abs(c) > tiny else tiny)
        fraction *= c * d
        if abs(1.0 - c * d) < 1e-14:
            break
    return front * (fraction - 1.0)
