"""A burst at once, a rate after it."""

from __future__ import annotations

from shared.net.budget import Meter
from shared.net.settings import Budget


def spend(meter: Meter, now: float, most: int = 1000) -> int:
    n = 0
    while n < most and meter.spend(now):
        n += 1
    return n


def test_the_burst_is_there_at_once_and_then_the_rate():
    meter = Meter(Budget(burst=10, rate=5), 0.0)
    assert spend(meter, 0.0) == 10
    assert spend(meter, 0.0) == 0
    assert spend(meter, 1.0) == 5
    assert spend(meter, 1.1) == 0


def test_a_long_silence_does_not_save_up_more_than_the_burst():
    meter = Meter(Budget(burst=10, rate=5), 0.0)
    assert spend(meter, 0.0) == 10
    assert spend(meter, 1000.0) == 10


def test_what_is_earned_counts_up_to_the_burst():
    meter = Meter(Budget(burst=10, rate=0), 0.0)
    assert spend(meter, 0.0) == 10
    meter.earn(3.5)
    assert spend(meter, 0.0) == 3
    meter.earn(1e9)
    assert spend(meter, 0.0) == 10
