"""What a router has counted, as it stands at one moment.

``page.py`` turns it into Prometheus text when somebody asks. It is plain data, so that the supervisor of several
workers can add theirs up and show one page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from router_node.admin import moves
from router_node.admin.stages import merge
from shared.errors import Code

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
    busy_poll_turns: int = 0  # of the event loop, with nothing to do, awake for the next request
    tasks: int = 0  # of the event loop; few and as many as there are nodes, however many requests there are


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
            "busy_poll_turns",
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
