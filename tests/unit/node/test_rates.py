"""Fading ratios."""

from __future__ import annotations

import math

import pytest

from inference_node.rates import Ratio


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
