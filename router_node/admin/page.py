"""The metrics page: a snapshot as Prometheus text, on a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router_node.admin.metrics import OTHER, ROUTING_BOUNDS, NodeSample, RoutesSample, Snapshot, code_label
from router_node.admin.moves_page import families
from router_node.admin.stages import BOUNDS
from router_node.discovery.states import STATES
from shared.version import __version__

MAX_NODES: Final = 256  # nodes with series of their own; the rest share "other"

_NODE_GAUGES: Final = (
    ("capacity_tokens", "KV capacity that the node reported, in tokens."),
    ("headroom_tokens", "KV capacity minus holds that the node reported, in tokens."),
    ("running", "Requests in the node's engine."),
    ("waiting", "Requests waiting for admission in the node."),
    ("reserved_tokens", "Tokens sent to the node that no report has counted yet."),
    ("streams", "Streams open to the node."),
    ("connections", "Connections open to the node."),
)


class MetricsPage:
    """Renders what ``collect`` returns at each request; ``workers`` is how many processes stand behind it."""

    def __init__(self, collect: Callable[[], Snapshot], workers: int = 1) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_RouterCollector(collect, workers))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and page, in the format that an ``accept`` header prefers."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)


class _RouterCollector(Collector):
    def __init__(self, collect: Callable[[], Snapshot], workers: int) -> None:
        self._collect = collect
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        snapshot = self._collect()
        yield from _requests(snapshot)
        yield from _nodes(snapshot)
        yield from _connections(snapshot)
        yield from _surroundings(snapshot)
        yield from _routes(snapshot.routes)
        yield from _pins(snapshot.pins)
        yield from families(snapshot.moves)
        yield _gauge("workers", "Processes that serve the public port.", self._workers)
        build = GaugeMetricFamily("laya_build_info", "Version of Laya.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build


def _requests(snapshot: Snapshot) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "laya_router_requests", "Finished requests by method and gRPC code or HTTP status.", labels=("method", "code")
    )
    for method, code, count in sorted(snapshot.requests):
        requests.add_metric((method, code_label(code)), count)
    yield requests
    yield _gauge("requests_in_flight", "Requests in the router now, waiting ones too.", snapshot.in_flight)
    yield _gauge("queue_depth", "Requests waiting for a node with room.", snapshot.queue_depth)
    yield _gauge("reservations", "Requests sent to a node that no report has counted yet.", snapshot.reservations)
    routing = HistogramMetricFamily(
        "laya_router_routing_seconds", "The router's own time before a request's first byte left for its node."
    )
    if snapshot.routing_buckets:
        routing.add_metric((), _cumulated(ROUTING_BOUNDS, snapshot.routing_buckets), snapshot.routing_seconds)
    yield routing
    stages = HistogramMetricFamily(
        "laya_router_stage_seconds",
        "Where a sample of the requests spent its time; first is the first byte of a streamed answer.",
        labels=("stage",),
    )
    for stage, counts in snapshot.stage_buckets.items():
        stages.add_metric((stage,), _cumulated(BOUNDS, counts), snapshot.stage_seconds.get(stage, 0.0))
    yield stages
    yield _counter("events", "Rarer events by name.", "event", snapshot.events)
    yield _counter("spans", "Spans of traced requests, by what became of them.", "result", snapshot.spans)


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each with all below it."""
    out: list[tuple[str, float]] = []
    reached = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=False):
        reached += count
        out.append(("+Inf" if bound == float("inf") else repr(bound), reached))
    return out


def _nodes(snapshot: Snapshot) -> Iterator[Metric]:
    states = GaugeMetricFamily("laya_router_nodes", "Nodes by state.", labels=("state",))
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for node in snapshot.nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    for state, count in counts.items():
        states.add_metric((state,), count)
    yield states
    for field, text in _NODE_GAUGES:
        family = GaugeMetricFamily(f"laya_router_node_{field}", text, labels=("node",))
        for label, value in _bounded(snapshot.nodes, field):
            family.add_metric((label,), value)
        yield family
    age = GaugeMetricFamily("laya_router_node_report_age_seconds", "Age of the node's last report.", labels=("node",))
    for node in snapshot.nodes[:MAX_NODES]:
        if node.report_age >= 0:
            age.add_metric((node.node_id,), node.report_age)
    yield age


def _bounded(nodes: list[NodeSample], field: str) -> Iterator[tuple[str, float]]:
    for node in nodes[:MAX_NODES]:
        yield node.node_id, getattr(node, field)
    if len(nodes) > MAX_NODES:
        yield OTHER, sum(getattr(node, field) for node in nodes[MAX_NODES:])


def _connections(snapshot: Snapshot) -> Iterator[Metric]:
    yield _counter("net", "Connections and streams, by what happened to them.", "event", snapshot.net)
    yield _counter("net_ends", "Rarer ends of connections and streams.", "reason", snapshot.net_reasons)


def _surroundings(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge("ready", "1 when at least one node can take requests.", int(snapshot.ready))
    up = GaugeMetricFamily("laya_router_source_up", "1 while the source of nodes can be read.", labels=("source",))
    for name, is_up in sorted(snapshot.sources.items()):
        up.add_metric((name,), int(is_up))
    yield up
    if "redis" in snapshot.sources:
        yield _gauge("store_up", "1 while Redis can be read.", int(snapshot.sources["redis"]))
    yield _counter("records_rejected", "Registrations that were refused.", "reason", snapshot.rejected)
    for name, text, value in (
        ("access_log_dropped", "Access-log lines dropped because the writer was behind.", snapshot.access_log_dropped),
        ("keys_refused", "Requests refused for a missing or wrong API key.", snapshot.keys_refused),
        ("key_file_errors", "Changes of the key file that could not be read.", snapshot.key_file_errors),
        ("cpu_seconds", "CPU time of all workers.", snapshot.cpu_seconds),
        ("busy_poll_turns", "Turns of the event loop with nothing to do, between requests.", snapshot.busy_poll_turns),
    ):
        yield CounterMetricFamily(f"laya_router_{name}", text, value=value)
    yield _gauge("tasks", "Tasks in the event loops of all workers.", snapshot.tasks)
    yield _gauge("loop_lag_seconds", "Longest delay of the event loop in the last half minute.", snapshot.loop_lag)


def _routes(routes: RoutesSample | None) -> Iterator[Metric]:
    if routes is None:
        return
    yield _gauge("routes_version", "Version of the rules that requests go by.", routes.version)
    yield _gauge("routes_rules", "Rules.", routes.rules)
    for name, text, value in (
        ("routes_swaps", "Times that requests began to go by another version of the rules.", routes.swaps),
        ("routes_reseeds", "Times that the store's rules were written anew from here.", routes.reseeds),
        ("routes_rejected", "Values among the store's rules that were not of our making.", routes.rejected),
    ):
        yield CounterMetricFamily(f"laya_router_{name}", text, value=value)
    yield _counter("routes_reloads", "Times that all rules were read from the store.", "reason", routes.reloads)
    if routes.store_up is not None:
        yield _gauge("routes_store_up", "1 while the store's rules can be read.", int(routes.store_up))


def _pins(pins: dict[str, int]) -> Iterator[Metric]:
    if not pins:
        return
    yield _gauge("pins_pending", "Sessions off the ring that the store is yet to be told of.", pins.get("pending", 0))
    for name, text in (
        ("acknowledged", "Sessions off the ring that the store keeps as the mode asks."),
        ("dropped", "Sessions off the ring that the store was not told of, since too many waited."),
        ("taken", "Sessions off the ring that others told of."),
    ):
        yield CounterMetricFamily(f"laya_router_pins_{name}", text, value=pins.get(name, 0))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"laya_router_{name}", text, value=value)


def _counter(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"laya_router_{name}", text, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family
