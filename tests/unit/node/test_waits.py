"""Estimates of waits from what is in use and how long it is kept."""

from __future__ import annotations

import random

import pytest

from inference_node.waits import LONGEST, SHORTEST, UNKNOWN, Turnover, Waits, hint, longest


def test_what_is_in_use_comes_free_in_the_time_it_is_kept():
    turnover = Turnover(100.0)
    assert turnover.per_second(10) == 0.0
    for _ in range(50):
        turnover.add(4, 2.0)
    assert turnover.per_second(10) == pytest.approx(5.0)
    assert turnover.per_second(0) == 0.0


def test_the_mean_is_by_amount_and_follows_change():
    turnover = Turnover(100.0)
    turnover.add(9, 1.0)
    turnover.add(1, 11.0)
    assert turnover.per_second(1) == pytest.approx(0.5, rel=0.1)
    for _ in range(500):
        turnover.add(1, 4.0)
    assert turnover.per_second(1) == pytest.approx(0.25, rel=0.05)


def test_the_estimate_does_not_depend_on_the_load_it_was_measured_under():
    """Lengths are drawn alike at a tenth of the load and at full load: the rate at full load is known from either."""
    draw = random.Random(1)
    quiet = Waits(100, 10, 100)
    for _ in range(1000):
        quiet.ended(10, 1, draw.uniform(1.0, 3.0))
    assert quiet.for_blocks(50, 100) == pytest.approx(1.0, rel=0.1)
    assert quiet.for_sequences(5, 10) == pytest.approx(1.0, rel=0.1)


def test_nothing_missing_is_no_wait_and_nothing_known_is_unknown():
    waits = Waits(10, 2, 100)
    assert waits.for_blocks(0, 10) == waits.for_prefill(-5, 10) == 0.0
    assert waits.for_blocks(1, 10) is waits.for_sequences(1, 1) is waits.for_prefill(1, 10) is None
    assert longest(1.0, 2.0, 0.0) == 2.0 and longest(1.0, None) is None


def test_the_engines_own_prefill_rate_goes_before_what_was_seen():
    waits = Waits(10, 2, 100)
    waits.prefilled(100, 1.0)
    assert waits.for_prefill(100, 100) == pytest.approx(1.0)
    waits.measure(lambda: 400.0)
    assert waits.for_prefill(100, 100) == pytest.approx(0.25)
    waits.measure(lambda: 0.0)
    assert waits.for_prefill(100, 100) == pytest.approx(1.0)


def test_prompts_that_the_cache_saves_go_through_faster_but_no_more_than_tenfold():
    waits = Waits(10, 2, 100)
    share = 0.75
    waits.measure(lambda: 400.0, lambda: share)
    assert waits.measured_rate == pytest.approx(1600.0)
    assert waits.for_prefill(100, 100) == pytest.approx(100 / 1600)
    share = 1.0
    assert waits.measured_rate == pytest.approx(4000.0)
    share = -1.0
    assert waits.measured_rate == pytest.approx(400.0)
    waits.measure(lambda: 0.0, lambda: 0.5)
    assert waits.measured_rate == 0.0


def test_hints_are_bounded():
    assert (hint(None), hint(0.0), hint(1e9), hint(2.5)) == (UNKNOWN, SHORTEST, LONGEST, 2.5)
