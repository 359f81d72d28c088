"""The histograms of where a request's time goes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.admin.stages import BOUNDS, STAGES, StageTimes, merge, quantile


def test_a_time_falls_into_the_bucket_of_its_bound() -> None:
    times = StageTimes()
    times.add("node", 1e-6)
    times.add("node", 1.5e-6)
    times.add("node", 1000.0)
    counts = times.buckets()["node"]
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (1, 1, 1, 3)
    assert times.seconds()["node"] == pytest.approx(1000.0000025)
    assert all(not sum(times.buckets()[stage]) for stage in STAGES if stage != "node")


def test_bounds_rise_by_at_most_two_and_a_half() -> None:
    assert all(low < high <= low * 2.5 + 1e-12 for low, high in itertools.pairwise(BOUNDS))


def test_no_times_have_no_quantile() -> None:
    assert math.isnan(quantile(0.5, [0] * (len(BOUNDS) + 1)))


@given(st.lists(st.floats(2e-6, 49.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_within_its_bucket(values: list[float], share: float) -> None:
    times = StageTimes()
    for value in values:
        times.add("node", value)
    found = quantile(share, times.buckets()["node"])
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert exact / 2.6 <= found <= exact * 2.6


def test_workers_buckets_add_up() -> None:
    one, other = StageTimes(), StageTimes()
    one.add("match", 2e-6)
    other.add("match", 2e-6)
    other.add("node", 1.0)
    both: dict[str, list[int]] = {}
    merge(both, one.buckets())
    merge(both, other.buckets())
    assert sum(both["match"]) == 2 and sum(both["node"]) == 1
