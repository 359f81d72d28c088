"""Counters on the request path are bounded, cheap, and add up over workers."""

from __future__ import annotations

import timeit

import msgspec

from router_node.admin.counters import MAX_EVENTS, MAX_METHODS, RouterMetrics
from router_node.admin.metrics import NodeSample, Snapshot, code_label, total


def test_requests_are_counted_by_method_and_code() -> None:
    metrics = RouterMetrics()
    metrics.finished("Generate", 0)
    metrics.finished("Generate", 0)
    metrics.finished("Generate", 14)
    metrics.finished("/v1/completions", 429)
    assert sorted(metrics.snapshot().requests) == [("/v1/completions", 429, 1), ("Generate", 0, 2), ("Generate", 14, 1)]


def test_codes_are_shown_by_name_or_number() -> None:
    assert (code_label(0), code_label(14), code_label(429)) == ("OK", "UNAVAILABLE", "429")


def test_methods_beyond_the_bound_share_one_series() -> None:
    metrics = RouterMetrics()
    for i in range(MAX_METHODS + 500):
        metrics.finished(f"method-{i}", 0)
        metrics.finished(f"method-{i}", 5)
    requests = metrics.snapshot().requests
    assert len({method for method, _, _ in requests}) == MAX_METHODS + 1
    assert sum(count for _, _, count in requests) == 2 * (MAX_METHODS + 500)


def test_codes_that_do_not_exist_are_unknown() -> None:
    metrics = RouterMetrics()
    for code in (17, 99, -1, 10_000, 600):
        metrics.finished("Generate", code)
    assert metrics.snapshot().requests == [("Generate", 2, 5)]


def test_events_beyond_the_bound_share_one_series() -> None:
    metrics = RouterMetrics()
    for i in range(MAX_EVENTS + 100):
        metrics.count(f"event-{i}")
    events = metrics.snapshot().events
    assert len(events) == MAX_EVENTS + 1 and events["other"] == 100


def test_routing_time_falls_into_its_bucket() -> None:
    metrics = RouterMetrics()
    for seconds in (0.0, 0.000_01, 0.000_02, 0.3, 99.0):
        metrics.routed(seconds)
    snapshot = metrics.snapshot()
    assert snapshot.routing_buckets[0] == 2  # a bound belongs to its own bucket
    assert snapshot.routing_buckets[1] == 1
    assert snapshot.routing_buckets[-1] == 1
    assert sum(snapshot.routing_buckets) == 5


def test_workers_add_up() -> None:
    one, two = RouterMetrics(), RouterMetrics()
    one.in_flight, two.in_flight = 3, 4
    for metrics in (one, two):
        metrics.finished("Chat", 0)
        metrics.routed(0.002)
        metrics.count("retry")
    two.finished("Embed", 12)
    first, second = one.snapshot(), two.snapshot()
    first.nodes = [
        NodeSample(node_id="n1", state="ready", headroom_tokens=10, streams=1, reserved_tokens=5, report_age=2)
    ]
    second.nodes = [NodeSample(node_id="n1", state="ready", headroom_tokens=8, streams=2, report_age=0.5)]
    first.sources, second.sources = {"redis": True}, {"redis": False}
    second.ready = True
    both = total([first, second])
    assert sorted(both.requests) == [("Chat", 0, 2), ("Embed", 12, 1)]
    assert both.in_flight == 7 and both.events == {"retry": 2} and sum(both.routing_buckets) == 2
    assert both.ready and both.sources == {"redis": False}
    (node,) = both.nodes
    assert (node.headroom_tokens, node.streams, node.reserved_tokens, node.report_age) == (8, 3, 5, 0.5)


def test_a_snapshot_travels_as_json() -> None:
    metrics = RouterMetrics()
    metrics.finished("Chat", 0)
    snapshot = metrics.snapshot()
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


def test_counting_costs_next_to_nothing() -> None:
    metrics = RouterMetrics()

    def one_request() -> None:
        metrics.finished("Generate", 0)
        metrics.routed(0.000_04)

    assert min(timeit.repeat(one_request, number=1000, repeat=20)) / 1000 < 5e-6
