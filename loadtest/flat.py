"""Whether a figure stays where it is over a long run: flat, growing, or not to be said yet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WARM = 0.2  # share of a run in which caches, pools and allocators may still fill
LEAST = 8  # looks after that
_MOST = 240  # points that the slope is taken from; more are put together
_SURE = 2.58  # standard deviations of Mann-Kendall's statistic: one in two hundred flat runs

Verdict = Literal["flat", "grows", "too short to say"]


@dataclass(frozen=True, slots=True)
class Course:
    """What a figure did after it was warm. ``growth`` is over that time, in its unit; ``per_hour`` likewise."""

    verdict: Verdict
    first: float
    last: float
    growth: float
    per_hour: float


def judge(seconds: Sequence[float], values: Sequence[float], allowed: float) -> Course:
    """The course of a figure; it grows when it does so steadily, and by more than ``allowed`` in its unit.

    The slope is the median of those between all pairs of points (Theil and Sen), which a few odd looks do not move.
    """
    if not values:
        return Course("too short to say", math.nan, math.nan, math.nan, math.nan)
    start = seconds[0] + WARM * (seconds[-1] - seconds[0])
    warm = [(at, value) for at, value in zip(seconds, values, strict=True) if at >= start]
    if len(warm) < LEAST:
        return Course("too short to say", values[0], values[-1], values[-1] - values[0], math.nan)
    points = _thinned(warm)
    slope = _slope(points)
    span = points[-1][0] - points[0][0]
    growth = slope * span
    edge = max(1, len(points) // 5)
    first = statistics.median(v for _, v in points[:edge])
    last = statistics.median(v for _, v in points[-edge:])
    grows = growth > allowed and _trend([v for _, v in points]) > _SURE
    return Course("grows" if grows else "flat", first, last, growth, slope * 3600.0)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    size = -(-len(points) // _MOST)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [(statistics.median(at for at, _ in part), statistics.median(v for _, v in part)) for part in parts]


def _slope(points: Sequence[tuple[float, float]]) -> float:
    slopes = [
        (points[j][1] - points[i][1]) / (points[j][0] - points[i][0])
        for i in range(len(points))
        for j in range(i + 1, len(points))
        if points[j][0] > points[i][0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _trend(values: Sequence[float]) -> float:
    """Mann-Kendall's statistic in standard deviations: over 0 for values that rise."""
    n = len(values)
    score = sum((values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n))
    ties = sum(t * (t - 1) * (2 * t + 5) for t in (values.count(v) for v in set(values)) if t > 1)
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18.0
    return (score - 1) / math.sqrt(variance) if variance > 0 and score > 0 else 0.0
