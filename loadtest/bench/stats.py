"""Statistics of rounds: quantiles, Student's t, confidence intervals, and what a difference comes to in plain words."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["better", "worse", "no difference shown", "too few rounds"]
LEAST_ROUNDS = 3


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile of unsorted values, interpolated; nan when there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Sequence[float]) -> float:
    """The median of those that are numbers; nan when none is."""
    known = [v for v in values if not math.isnan(v)]
    return statistics.median(known) if known else math.nan


def t_quantile(p: float, freedom: float) -> float:
    """Student's t below which lies the share ``p``, 0.5 or more, with so many degrees of freedom."""
    low, high = 0.0, 2.0
    while t_share(high, freedom) < p and high < 1e9:
        low, high = high, high * 2
    for _ in range(100):
        middle = (low + high) / 2
        if t_share(middle, freedom) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_share(t: float, freedom: float) -> float:
    """Share of Student's distribution below ``t``, 0 or more."""
    return 1.0 - 0.5 * _beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(b, a, 1.0 - x)
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), 1e-300)
    result = d
    for i in range(1, 400):
        for top in (
            i * (b - i) * x / ((a + 2 * i - 1) * (a + 2 * i)),
            -(a + i) * (a + b + i) * x / ((a + 2 * i) * (a + 2 * i + 1)),
        ):
            d = 1.0 / _away(1.0 + top * d)
            c = _away(1.0 + top / c)
            result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * result / a


def _away(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and the bounds that it lies between with the confidence asked for."""

    middle: float
    low: float
    high: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of the mean of values that vary as a normal distribution does; bounds are nan for fewer than two."""
    n = len(values)
    if n < 2:
        return Interval(values[0] if values else math.nan, math.nan, math.nan)
    mean = statistics.fmean(values)
    half = t_quantile(0.5 + confidence / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of mean(b) - mean(a), whose spreads may differ and whose rounds have nothing to do with each other."""
    if len(a) < 2 or len(b) < 2:
        return Interval(math.nan, math.nan, math.nan)
    parts = [statistics.variance(v) / len(v) for v in (a, b)]
    middle = statistics.fmean(b) - statistics.fmean(a)
    if not sum(parts):
        return Interval(middle, middle, middle)
    freedom = sum(parts) ** 2 / sum(p * p / (len(v) - 1) for p, v in zip(parts, (a, b), strict=True))
    half = t_quantile(0.5 + confidence / 2, freedom) * math.sqrt(sum(parts))
    return Interval(middle, middle - half, middle + half)


def bootstrap_interval(values: Sequence[float], confidence: float = 0.95, seed: int = 0, draws: int = 2000) -> Interval:
    """Of the median of many values of any distribution, by drawing anew from them; the seed makes it repeatable."""
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, math.nan, math.nan)
    rng = random.Random(seed)
    found = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    edge = (1.0 - confidence) / 2
    return Interval(statistics.median(values), quantile(found, edge), quantile(found, 1.0 - edge))


@dataclass(frozen=True, slots=True)
class Difference:
    """What ``b`` is over ``a``: both means, the interval of the difference, and the verdict."""

    a: float
    b: float
    change: Interval
    verdict: Verdict


def compare(
    a: Sequence[float], b: Sequence[float], *, less_is_better: bool, paired: bool, confidence: float = 0.95
) -> Difference:
    """Rounds of A beside rounds of B; ``paired`` says that the i-th of both ran next to each other.

    A verdict is given only where the interval leaves 0 out.
    """
    if paired:
        both = [(x, y) for x, y in zip(a, b, strict=False) if not (math.isnan(x) or math.isnan(y))]
        a, b = [x for x, _ in both], [y for _, y in both]
    else:
        a, b = [x for x in a if not math.isnan(x)], [y for y in b if not math.isnan(y)]
    means = (statistics.fmean(a) if a else math.nan, statistics.fmean(b) if b else math.nan)
    if min(len(a), len(b)) < LEAST_ROUNDS:
        return Difference(*means, Interval(means[1] - means[0], math.nan, math.nan), "too few rounds")
    if paired:
        change = mean_interval([y - x for x, y in zip(a, b, strict=True)], confidence)
    else:
        change = welch_interval(a, b, confidence)
    if change.low <= 0.0 <= change.high:
        return Difference(*means, change, "no difference shown")
    return Difference(*means, change, "better" if (change.high < 0) == less_is_better else "worse")
