"""Statistics against known values, and verdicts on known distributions."""

from __future__ import annotations

import math
import random

import pytest

from loadtest.bench.stats import (
    bootstrap_interval,
    compare,
    mean_interval,
    median,
    quantile,
    t_quantile,
    welch_interval,
)


def test_quantiles_are_interpolated() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.25) == 2.5
    assert quantile([1.0], 0.99) == 1.0
    assert math.isnan(quantile([], 0.5))
    assert median([math.nan, 1.0, 3.0]) == 2.0


@pytest.mark.parametrize(
    ("p", "freedom", "t"),
    # From the tables of Student's distribution.
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.776),
        (0.975, 10, 2.228),
        (0.995, 5, 4.032),
        (0.95, 30, 1.697),
        (0.975, 1e6, 1.960),
    ],
)
def test_students_t_is_that_of_the_tables(p: float, freedom: float, t: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(t, abs=0.001)


def test_an_interval_of_the_mean_is_as_the_textbook_has_it() -> None:
    found = mean_interval([4.0, 5.0, 6.0])
    assert (found.middle, found.low, found.high) == pytest.approx((5.0, 2.516, 7.484), abs=0.001)
    assert math.isnan(mean_interval([4.0]).low)


def test_welchs_interval_is_as_the_textbook_has_it() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0], [4.0, 6.0, 8.0]
    found = welch_interval(a, b)
    # (1/2 + 4/3)² / ((1/2)²/4 + (4/3)²/2) = 3.533 degrees of freedom
    assert found.middle == pytest.approx(3.0)
    assert found.high - found.middle == pytest.approx(t_quantile(0.975, 3.533) * math.sqrt(0.5 + 4 / 3), abs=0.001)
    same = welch_interval([2.0, 2.0], [3.0, 3.0])
    assert (same.low, same.high) == (1.0, 1.0)


def test_the_bootstraps_interval_holds_the_median_and_is_repeatable() -> None:
    rng = random.Random(5)
    values = [rng.expovariate(1.0) for _ in range(200)]
    found = bootstrap_interval(values)
    assert found.low < math.log(2) < found.high
    assert found == bootstrap_interval(values)
    assert found.high - found.low < 0.6


def rounds(rng: random.Random, mean: float, n: int = 8, spread: float = 5.0) -> list[float]:
    return [rng.gauss(mean, spread) for _ in range(n)]


def test_a_real_difference_is_seen_in_its_direction() -> None:
    rng = random.Random(1)
    a, b = rounds(rng, 100.0), rounds(rng, 150.0)
    assert compare(a, b, less_is_better=True, paired=False).verdict == "worse"
    assert compare(a, b, less_is_better=False, paired=False).verdict == "better"
    assert compare(b, a, less_is_better=True, paired=False).verdict == "better"


def test_two_runs_of_one_thing_differ_about_as_often_as_the_confidence_says() -> None:
    rng = random.Random(2)
    shown = sum(
        compare(rounds(rng, 100.0), rounds(rng, 100.0), less_is_better=True, paired=paired).verdict
        != "no difference shown"
        for paired in (True, False)
        for _ in range(200)
    )
    assert 4 <= shown <= 36  # 5 % of 400, three standard deviations about it


def test_pairs_see_through_what_both_rounds_share() -> None:
    rng = random.Random(3)
    weather = [rng.gauss(0.0, 50.0) for _ in range(10)]
    a = [200.0 + w + rng.gauss(0.0, 1.0) for w in weather]
    b = [205.0 + w + rng.gauss(0.0, 1.0) for w in weather]
    assert compare(a, b, less_is_better=True, paired=True).verdict == "worse"
    assert compare(a, b, less_is_better=True, paired=False).verdict == "no difference shown"


def test_two_rounds_are_too_few() -> None:
    found = compare([1.0, 1.0], [9.0, 9.0], less_is_better=True, paired=True)
    assert found.verdict == "too few rounds" and found.change.middle == 8.0


def test_rounds_without_a_figure_are_left_out() -> None:
    nan = math.nan
    found = compare([1.0, nan, 1.1, 0.9, 5.0], [2.0, 9.0, 2.1, 1.9, nan], less_is_better=True, paired=True)
    assert (found.a, found.b) == pytest.approx((1.0, 2.0)) and found.verdict == "worse"
    assert compare([nan] * 4, [1.0] * 4, less_is_better=True, paired=True).verdict == "too few rounds"


def test_equal_rounds_show_no_difference() -> None:
    assert compare([3.0] * 4, [3.0] * 4, less_is_better=True, paired=True).verdict == "no difference shown"
