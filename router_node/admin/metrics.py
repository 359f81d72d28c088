"""What the router counts while it works.

The request path adds to plain integers, a fraction of a microsecond each; ``page.py`` turns a snapshot of them into
Prometheus text when somebody asks. A snapshot is plain data, so that the supervisor of several workers can add theirs
up and show one page. Every map is bounded: what does not fit is counted under "other".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

from router_node.admin import moves
from router_node.admin.stages import StageTimes, merge
from shared.errors import Code

MAX_METHODS: Final = 64
MAX_EVENTS: Final = 64
OTHER: Final = "other"

# Upper bounds of the routing-time histogram, in seconds; the last bucket is open.
ROUTING_BOUNDS: Final = (
    0.000_01,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.05,
    0.25,
    1.0,
    5.0,
    30.0,
)

_GRPC_CODES: Final = {int(code): code.name for code in Code}


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """A node as a worker sees it, for metrics. Tokens are KV tokens; ``report_age`` is seconds, negative for none."""

    node_id: str
    state: str
    capacity_tokens: int = 0
    headroom_tokens: int = 0
    running: int = 0
    waiting: int = 0
    reserved_tokens: int = 0
    streams: int = 0
    connections: int = 0
    report_age: float = -1.0


class RoutesSample(msgspec.Struct, frozen=True, kw_only=True):
    """The rules, for metrics. ``store_up`` is None where no store keeps them."""

    version: int = 0
    rules: int = 0
    swaps: int = 0
    store_up: bool | None = None
    reloads: dict[str, int] = {}
    reseeds: int = 0
    rejected: int = 0


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything one worker has to say at one moment."""

    requests: list[tuple[str, int, int]] = []  # method, code, count
    in_flight: int = 0
    routing_buckets: list[int] = []
    routing_seconds: float = 0.0
    stage_buckets: dict[str, list[int]] = {}
    stage_seconds: dict[str, float] = {}
    events: dict[str, int] = {}
    queue_depth: int = 0
    reservations: int = 0
    net: dict[str, int] = {}
    spans: dict[str, int] = {}
    net_reasons: dict[str, int] = {}
    nodes: list[NodeSample] = []
    sources: dict[str, bool] = {}
    rejected: dict[str, int] = {}
    routes: RoutesSample | None = None
    moves: moves.MovesSample = moves.MovesSample()
    pins: dict[str, int] = {}
    access_log_dropped: int = 0
    keys_refused: int = 0
    key_file_errors: int = 0
    ready: bool = False
    loop_lag: float = 0.0  # longest delay of the event loop lately, in seconds
    cpu_seconds: float = 0.0
    tasks: int = 0  # of the event loop; few and as many as there are nodes, however many requests there are


class RouterMetrics:
    """The counters of one worker. ``in_flight`` is the owner's to raise and lower: requests in the router now."""

    __slots__ = ("_buckets", "_events", "_methods", "_requests", "_seconds", "in_flight", "moves", "stages")

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: dict[tuple[str, int], int] = {}
        self._methods: set[str] = set()
        self._events: dict[str, int] = {}
        self._buckets = [0] * (len(ROUTING_BOUNDS) + 1)
        self._seconds = 0.0
        self.stages = StageTimes()
        self.moves = moves.MoveCounts()

    def finished(self, method: str, code: int) -> None:
        """Count a finished request. ``code`` is a gRPC code, or an HTTP status of 100 and over."""
        try:
            self._requests[method, code] += 1
        except KeyError:
            self._first(method, code)

    def _first(self, method: str, code: int) -> None:
        if method not in self._methods:
            if len(self._methods) >= MAX_METHODS:
                method = OTHER
            else:
                self._methods.add(method)
        if not (0 <= code <= 16 or 100 <= code <= 599):
            code = int(Code.UNKNOWN)
        self._requests[method, code] = self._requests.get((method, code), 0) + 1

    def routed(self, seconds: float) -> None:
        """Record the router's own time before a request's first byte left for its node."""
        self._buckets[bisect_left(ROUTING_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def count(self, event: str) -> None:
        """Count a rare event by its name; names beyond the first 64 are counted together."""
        if event not in self._events and len(self._events) >= MAX_EVENTS:
            event = OTHER
        self._events[event] = self._events.get(event, 0) + 1

    def snapshot(self) -> Snapshot:
        """The counters as they stand; what other parts know is filled in by ``collect``."""
        return Snapshot(
            requests=[(method, code, count) for (method, code), count in self._requests.items()],
            in_flight=self.in_flight,
            routing_buckets=list(self._buckets),
            routing_seconds=self._seconds,
            stage_buckets=self.stages.buckets(),
            stage_seconds=self.stages.seconds(),
            events=dict(self._events),
            moves=self.moves.sample(),
        )


def code_label(code: int) -> str:
    """How a code is shown: gRPC codes by name, HTTP statuses as numbers."""
    return _GRPC_CODES.get(code) or str(code)


def total(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The snapshots of several workers as one: counts added, node gauges joined, the longest lag, ready if any is."""
    snapshots = list(snapshots)
    out = Snapshot(routing_buckets=[0] * (len(ROUTING_BOUNDS) + 1))
    requests: dict[tuple[str, int], int] = {}
    nodes: dict[str, NodeSample] = {}
    for one in snapshots:
        for method, code, count in one.requests:
            requests[method, code] = requests.get((method, code), 0) + count
        for i, count in enumerate(one.routing_buckets[: len(out.routing_buckets)]):
            out.routing_buckets[i] += count
        merge(out.stage_buckets, one.stage_buckets)
        for stage, seconds in one.stage_seconds.items():
            out.stage_seconds[stage] = out.stage_seconds.get(stage, 0.0) + seconds
        for name in ("events", "net", "net_reasons", "rejected", "spans"):
            _add(getattr(out, name), getattr(one, name))
        for name in (
            "in_flight",
            "routing_seconds",
            "queue_depth",
            "reservations",
            "access_log_dropped",
            "keys_refused",
            "key_file_errors",
            "cpu_seconds",
            "tasks",
        ):
            setattr(out, name, getattr(out, name) + getattr(one, name))
        for source, up in one.sources.items():
            out.sources[source] = out.sources.get(source, True) and up
        for node in one.nodes:
            nodes[node.node_id] = _join(nodes.get(node.node_id), node)
        out.ready = out.ready or one.ready
        out.loop_lag = max(out.loop_lag, one.loop_lag)
    out.moves = moves.total(one.moves for one in snapshots)
    out.requests = [(method, code, count) for (method, code), count in requests.items()]
    out.nodes = [nodes[node_id] for node_id in sorted(nodes)]
    return out


def _add(into: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


def _join(one: NodeSample | None, other: NodeSample) -> NodeSample:
    """Two views of a node: what each worker did is added, what the node said comes from the later report."""
    if one is None:
        return other
    fresher = other if 0 <= other.report_age < one.report_age or one.report_age < 0 else one
    return msgspec.structs.replace(
        fresher,
        reserved_tokens=one.reserved_tokens + other.reserved_tokens,
        streams=one.streams + other.streams,
        connections=one.connections + other.connections,
    )
