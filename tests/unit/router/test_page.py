"""The metrics page is valid Prometheus text with a bounded number of series."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from router_node.admin.counters import RouterMetrics
from router_node.admin.metrics import NodeSample, Snapshot
from router_node.admin.page import MAX_NODES, MetricsPage


def families(snapshot: Snapshot) -> dict[str, dict[str, float]]:
    _, page = MetricsPage(lambda: snapshot).render()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[",".join(value for _, value in sorted(sample.labels.items()))] = (
                sample.value
            )
    return found


def test_every_count_of_a_snapshot_is_on_the_page() -> None:
    metrics = RouterMetrics()
    metrics.in_flight = 2
    metrics.finished("Generate", 0)
    metrics.finished("/v1/completions", 429)
    metrics.routed(0.000_03)
    metrics.count("retry")
    snapshot = metrics.snapshot()
    snapshot.queue_depth = 5
    snapshot.reservations = 7
    snapshot.net = {"streams_accepted": 11}
    snapshot.sources = {"redis": True, "static": True}
    snapshot.rejected = {"foreign": 3}
    snapshot.access_log_dropped = 13
    snapshot.keys_refused = 17
    snapshot.busy_poll_turns = 19
    snapshot.ready = True
    page = families(snapshot)
    assert page["laya_router_requests_total"] == {"OK,Generate": 1, "429,/v1/completions": 1}
    assert page["laya_router_requests_in_flight"] == {"": 2}
    assert page["laya_router_routing_seconds_count"] == {"": 1}
    assert page["laya_router_routing_seconds_bucket"]["5e-05"] == 1
    assert page["laya_router_routing_seconds_bucket"]["2.5e-05"] == 0
    assert page["laya_router_routing_seconds_bucket"]["+Inf"] == 1
    assert page["laya_router_events_total"] == {"retry": 1}
    assert page["laya_router_queue_depth"] == {"": 5}
    assert page["laya_router_reservations"] == {"": 7}
    assert page["laya_router_net_total"] == {"streams_accepted": 11}
    assert page["laya_router_store_up"] == {"": 1}
    assert page["laya_router_source_up"] == {"redis": 1, "static": 1}
    assert page["laya_router_records_rejected_total"] == {"foreign": 3}
    assert page["laya_router_access_log_dropped_total"] == {"": 13}
    assert page["laya_router_keys_refused_total"] == {"": 17}
    assert page["laya_router_busy_poll_turns_total"] == {"": 19}
    assert page["laya_router_ready"] == {"": 1}
    assert page["process_open_fds"][""] > 0
    assert "laya_build_info" in page


def test_every_state_has_a_series_even_when_no_node_is_in_it() -> None:
    page = families(Snapshot(nodes=[NodeSample(node_id="n1", state="dark")]))
    assert page["laya_router_nodes"]["dark"] == 1
    assert page["laya_router_nodes"]["ready"] == 0


def test_a_thousand_nodes_do_not_make_a_thousand_series() -> None:
    nodes = [NodeSample(node_id=f"n{i:04}", state="ready", headroom_tokens=1, report_age=1) for i in range(1000)]
    page = families(Snapshot(nodes=nodes))
    headroom = page["laya_router_node_headroom_tokens"]
    assert len(headroom) == MAX_NODES + 1
    assert headroom["other"] == 1000 - MAX_NODES
    assert page["laya_router_nodes"]["ready"] == 1000


def test_an_open_metrics_scraper_gets_its_format() -> None:
    content_type, body = MetricsPage(Snapshot).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_two_pages_share_nothing() -> None:
    first, second = MetricsPage(lambda: Snapshot(in_flight=1)), MetricsPage(lambda: Snapshot(in_flight=2))
    assert b"laya_router_requests_in_flight 1.0" in first.render()[1]
    assert b"laya_router_requests_in_flight 2.0" in second.render()[1]
