"""Where one request's time went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.client import Timings, told
from shared.timing import STAGES, Breakdown, averaged, breakdown, lines, mean

SECONDS = st.floats(0.0, 1e3)


def test_the_stages_of_a_request() -> None:
    timings = Timings(queue=1.0, ttft=3.0, total=10.0, serialise=2.0, route=0.5, waited=4.0)
    found = breakdown(timings, 16.0)
    assert found == Breakdown(route=0.5, queue=5.0, prefill=2.0, decode=5.0, serialise=2.0, rest=1.5, total=16.0)


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_no_stage_is_negative_and_they_sum_up(
    queue: float, prefill: float, decode: float, serialise: float, route: float, waited: float, seconds: float
) -> None:
    timings = Timings(queue, queue + prefill, queue + prefill + decode, serialise, route, waited)
    found = breakdown(timings, seconds)
    assert all(getattr(found, stage) >= 0 for stage in STAGES)
    assert sum(getattr(found, stage) for stage in STAGES) == pytest.approx(found.total)
    assert found.total >= seconds


def test_the_routers_part_is_in_its_headers() -> None:
    headers = [("laya-router-us", "120"), ("laya-node", "n0"), ("laya-queue-us", "3500")]
    timings = told(Timings(queue=1.0), headers)
    assert (timings.route, timings.waited, timings.queue) == (pytest.approx(120e-6), pytest.approx(3.5e-3), 1.0)
    assert told(Timings(), None) == Timings()


def test_a_mean_is_by_stage() -> None:
    assert mean([]) is None
    assert mean([Breakdown(route=1.0, total=3.0), Breakdown(route=2.0, decode=2.0, total=5.0)]) == Breakdown(
        route=1.5, decode=1.0, total=4.0
    )


def test_each_stage_has_a_line_with_its_share() -> None:
    shown = lines(Breakdown(route=0.001, decode=0.003, total=0.004))
    assert [line.split()[0] for line in shown] == [*STAGES, "total"]
    assert shown[0].split()[1:] == ["1.000", "ms", "25.0%"]
    assert lines(Breakdown())[-1].split()[1:] == ["0.000", "ms"]


def test_the_servers_histograms_give_the_mean_of_all() -> None:
    sums = {
        "laya_router_stage_seconds, match": (0.002, 10.0),
        "laya_router_stage_seconds, relay_in": (0.001, 10.0),
        "laya_router_stage_seconds, queue": (5.0, 1.0),  # one in ten waited
        "laya_node_queue_seconds": (17.0, 170.0),
        "laya_node_ttft_seconds": (51.0, 170.0),
        "laya_node_request_seconds": (170.0, 170.0),
        "laya_node_serialise_seconds": (1.0, 10.0),
    }
    found = averaged(sums, 2.0)
    assert found is not None
    expected = Breakdown(route=0.0003, queue=0.6, prefill=0.2, decode=0.6, serialise=0.1, rest=0.4997, total=2.0)
    for stage in (*STAGES, "total"):
        assert getattr(found, stage) == pytest.approx(getattr(expected, stage)), stage


def test_without_a_node_that_answered_there_is_no_mean() -> None:
    assert averaged({}, 1.0) is None
    assert averaged({"laya_node_ttft_seconds": (0.0, 0.0)}, 1.0) is None
