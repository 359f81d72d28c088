"""The node's own metrics, in a registry of its own. Names begin with ``laya_node_`` and end with their unit.

Gauges of the ledger and the engine are read when somebody scrapes; the request path only counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_node.keeper import Keeper
from inference_node.lanes import Lane
from inference_node.memory.guard import GpuReading
from inference_node.report import Reporter
from inference_node.resumes import Resumes
from inference_node.state import NodeState, Serving
from shared.net.counters import NetCounters
from shared.version import __version__

SERVICES = ("generate", "complete", "chat", "embed", "openai")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_FINE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_NET = ("connections_accepted", "connections_closed", "streams_accepted", "streams_refused", "streams_reset")
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class ServiceMetrics:
    """Counters of one service with the labels resolved, so that counting is one call."""

    __slots__ = ("cancelled", "failed", "queue", "refused", "serialise", "served", "total", "ttft")

    def __init__(self, metrics: NodeMetrics, service: str) -> None:
        self.served = metrics.requests.labels(service, "ok")
        self.failed = metrics.requests.labels(service, "error")
        self.refused = metrics.requests.labels(service, "refused")
        self.cancelled = metrics.requests.labels(service, "cancelled")
        self.queue = metrics.queue_seconds.labels(service)
        self.ttft = metrics.ttft_seconds.labels(service)
        self.total = metrics.request_seconds.labels(service)
        self.serialise = metrics.serialise_seconds.labels(service)


class NodeMetrics:
    """All metrics of one node."""

    def __init__(self, state: NodeState, reporter: Reporter, net: NetCounters | None = None) -> None:
        """``net`` are the counters of the node's connections."""
        self._state = state
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "laya_node_requests_total", "Requests by how they ended", ("service", "outcome"), registry=registry
        )
        self.refusals = Counter(
            "laya_node_refusals_total", "Requests refused before they ran, by reason", ("reason",), registry=registry
        )
        self.prompt_tokens = Counter(
            "laya_node_prompt_tokens_total", "Prompt tokens of admitted requests", registry=registry
        )
        self.completion_tokens = Counter(
            "laya_node_completion_tokens_total", "New tokens of typed requests", registry=registry
        )
        self.queue_seconds = Histogram(
            "laya_node_queue_seconds", "Wait for admission", ("service",), registry=registry, buckets=_SECONDS
        )
        self.ttft_seconds = Histogram(
            "laya_node_ttft_seconds", "Arrival to first token", ("service",), registry=registry, buckets=_SECONDS
        )
        self.request_seconds = Histogram(
            "laya_node_request_seconds", "Arrival to end", ("service",), registry=registry, buckets=_SECONDS
        )
        self.serialise_seconds = Histogram(
            "laya_node_serialise_seconds",
            "Making the messages of an answer and handing them on, of one request in 17",
            ("service",),
            registry=registry,
            buckets=_FINE_SECONDS,
        )
        self.resumes = Resumes(registry)
        registry.register(_Gauges(state, reporter, net or NetCounters()))
        self.services = {name: ServiceMetrics(self, name) for name in SERVICES}

    def follow_spans(self, counts: Callable[[], dict[str, int]]) -> None:
        """Show what became of the spans of traced requests."""
        self.registry.register(_Spans(counts))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format, the engine's own metrics after ours."""
        text = generate_latest(self.registry)
        serving = self._state.serving_or_none
        return text if serving is None else text + serving.engine.metrics_text().encode()


class _Spans(Collector):
    """Reads the exporter's counts at scrape time."""

    def __init__(self, counts: Callable[[], dict[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "laya_node_spans", "Spans of traced requests, by what became of them", labels=["result"]
        )
        for result, count in self._counts().items():
            family.add_metric([result], count)
        yield family


class _Gauges(Collector):
    """Reads ledger, admission, engine and rates at scrape time."""

    def __init__(self, state: NodeState, reporter: Reporter, net: NetCounters) -> None:
        self._state = state
        self._reporter = reporter
        self._net = net

    def collect(self) -> Iterator[Metric]:
        state = self._state
        serving = state.serving_or_none
        labels = ["node_id", "model", "engine", "version"]
        info = GaugeMetricFamily("laya_node_info", "Always 1; the labels say what the node is", labels=labels)
        engine = serving.info.engine if serving is not None else ""
        info.add_metric([state.node_id, state.names[0], engine, __version__], 1)
        yield info
        yield _gauge("ready", "1 when requests are served", state.ready)
        yield _gauge("draining", "1 while draining", state.draining)
        yield _gauge("watches", "Routers' report streams", self._reporter.watches)
        yield _gauge("tasks", "Tasks in the event loop: those of running requests, and a few more", _tasks())
        for name in _NET:
            yield _counter(name, "Of the network layer", getattr(self._net, name))
        if serving is None:
            return
        yield from _admission(serving)
        if serving.keeper is not None:
            yield from _machine(serving.keeper)
        load = self._reporter.load()
        yield _gauge("kv_capacity_tokens", "KV capacity", load.capacity)
        yield _gauge("kv_headroom_tokens", "Capacity minus holds and what waits, less in the ramp", load.headroom)
        yield _gauge("running_requests", "Admitted requests", load.running)
        yield _gauge("waiting_requests", "Requests waiting for admission", load.waiting)
        yield _gauge("queued_prefill_tokens", "Prompt tokens not yet prefilled", load.queued_prefill)
        rates = self._reporter.rates
        yield _gauge("prefix_hit_ratio", "Recent share of prompt tokens in the prefix cache", rates.prefix_hit_rate)
        yield _gauge("prefill_tokens_per_second", "Recent prefill rate", rates.prefill)
        yield _gauge("decode_tokens_per_second", "Recent decode rate", rates.decode)
        stats = serving.engine.stats()
        yield _gauge("engine_running_sequences", "Sequences in the engine's batch", stats.running)
        yield _gauge("engine_waiting_sequences", "Sequences the engine has not started", stats.waiting)
        yield _gauge("engine_kv_usage_ratio", "The engine's own KV gauge, 0 to 1", stats.kv_usage)
        yield _counter("engine_preemptions", "Preemptions; 0 unless KV is over-committed", stats.preemptions)
        yield _counter("engine_prompt_tokens", "Prompt tokens prefilled, cached ones left out", stats.prompt_tokens)
        yield _counter("engine_generation_tokens", "New tokens of all requests", stats.generation_tokens)
        yield _counter("engine_prefix_queries_tokens", "Prompt tokens looked up in the cache", stats.prefix_queries)
        yield _counter("engine_prefix_hits_tokens", "Of those, found", stats.prefix_hits)


def _admission(serving: Serving) -> Iterator[Metric]:
    admission = serving.admission
    lanes: tuple[tuple[str, str, Callable[[Lane], int]], ...] = (
        ("lane_waiting_requests", "Requests waiting, by lane", lambda lane: lane.waiting),
        ("lane_queued_tokens", "Prompt tokens waiting, by lane", lambda lane: lane.tokens),
        ("lane_prefill_tokens", "Prompt tokens in prefill, by lane", lambda lane: lane.prefill),
        ("lane_queue_limit_tokens", "Prompt tokens that may wait, by lane", admission.queue_limit),
    )
    for name, text, read in lanes:
        family = GaugeMetricFamily(f"laya_node_{name}", text, labels=["lane"])
        for lane in admission.lanes:
            family.add_metric([lane.name], read(lane))
        yield family
    ledger = admission.ledger
    yield _gauge("kv_held_tokens", "KV held for admitted requests", ledger.capacity_tokens - ledger.headroom_tokens)
    yield _gauge("holds", "Requests that hold KV", ledger.holds)
    yield _gauge("admission_open", "1 while new requests are taken", not admission.closed_reason)
    yield _gauge("ramp_ratio", "Share of the room given, 1 once the ramp is over", admission.ramp_share)
    overcommit = admission.sizes.overcommit
    yield _gauge("overcommit", "1 where KV is promised by learned output lengths", overcommit is not None)
    if overcommit is not None:
        yield _gauge("overcommit_known_outputs", "Output lengths that holds are learned from", overcommit.known)
        yield _gauge("overcommit_paused", "1 while holds are full after a preemption", overcommit.paused)


def _machine(keeper: Keeper) -> Iterator[Metric]:
    """The guard's readings; what the machine does not tell is not there."""
    family = GaugeMetricFamily("laya_node_shedding", "1 while load is shed for this cause", labels=["cause"])
    if keeper.guard.cause:
        family.add_metric([keeper.guard.cause], 1)
    yield family
    yield _counter("sheds", "Times that load was shed", keeper.sheds)
    now = keeper.readings
    if now.memory is not None:
        yield _gauge("memory_ratio", "Share in use of the tightest memory limit, page cache left out", now.memory)
    if now.stall is not None:
        yield _gauge("memory_stall_ratio", "Share of ten seconds in which all tasks waited for memory", now.stall / 100)
    if now.rss is not None:
        yield _gauge("resident_memory_bytes", "Resident memory of the node and its engine", now.rss)
    gpus: tuple[tuple[str, str, Callable[[GpuReading], float | None]], ...] = (
        ("gpu_memory_ratio", "Share of the GPU's memory in use", lambda gpu: gpu.memory),
        ("gpu_temperature_celsius", "Temperature of the GPU", lambda gpu: gpu.celsius),
        ("gpu_power_ratio", "Power drawn, as a share of the GPU's limit", lambda gpu: gpu.power),
    )
    for name, text, read in gpus:
        family = GaugeMetricFamily(f"laya_node_{name}", text, labels=["gpu"])
        for gpu in now.gpus:
            value = read(gpu)
            if value is not None:
                family.add_metric([str(gpu.index)], value)
        if family.samples:
            yield family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"laya_node_{name}", text, value=float(value))


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # rendered outside of the loop


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"laya_node_{name}", text, value=float(value))
