"""Fading rates and ratios."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.rates import Rate, Ratio


def test_a_steady_flow_shows_its_rate_from_early_on():
    rate = Rate(10.0, 0.0)
    for i in range(1, 21):
        rate.add(5, i * 0.1)
    assert rate.per_second(2.0) == pytest.approx(50, rel=0.1)


def test_a_rate_fades_when_nothing_comes():
    rate = Rate(10.0, 0.0)
    rate.add(1000, 50.0)
    assert rate.per_second(50.0) > 20 * rate.per_second(100.0) > 0


def test_seconds_for_an_amount():
    rate = Rate(10.0, 0.0)
    assert rate.seconds_for(0, 1.0) == 0.0
    assert rate.seconds_for(5, 1.0) is None
    for i in range(1000):
        rate.add(10, i * 0.1)
    assert rate.seconds_for(200, 100.0) == pytest.approx(2.0, rel=0.05)


def test_a_ratio_follows_the_recent_past_and_idle_time_forgets_nothing():
    ratio = Ratio(10.0)
    assert ratio.value == 0.0
    ratio.add(8000, 1.0)
    assert ratio.value == pytest.approx(8000)
    for _ in range(100):
        ratio.add(400, 1.0)
    assert ratio.value == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize("bad", [(-1, 1), (1, -1), (math.nan, 1), (1, math.nan), (math.inf, 1), (1, math.inf), (1, 0)])
def test_absurd_growth_is_left_out(bad):
    ratio = Ratio(10.0)
    ratio.add(10, 1)
    ratio.add(*bad)
    assert ratio.value == 10


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), max_size=50))
def test_rates_are_finite_and_never_negative(events):
    rate, now = Rate(10.0, 0.0), 0.0
    for amount, gap in events:
        now += gap
        rate.add(amount, now)
        value = rate.per_second(now)
        assert 0 <= value < math.inf
