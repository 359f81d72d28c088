"""A router's data plane in memory: a real dispatcher and real metrics, nodes whose pools are fakes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from router_node.admin.counters import RouterMetrics
from router_node.dispatch import Dispatcher, DispatchSettings, NodeSpec, NodeState, Report
from router_node.gateway.gateway import Gateway
from router_node.middleware.keys import Authorizer, KeyRecord
from router_node.relay.account import Account
from router_node.relay.core import RelayCore
from router_node.relay.expiry import Expiry
from router_node.relay.front import RelayFront
from router_node.relay.migrate import never
from router_node.relay.settings import RelaySettings
from router_node.routes.table import RouteTable
from shared import headers as names
from tests.support.fake_streams import FakeClientStream, FakeUpstream

MODEL = "smollm2"


class Log:
    """An access log that keeps its entries."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []

    def add(self, entry: Account) -> None:
        kept = (
            "code",
            "reason",
            "method",
            "model",
            "node_id",
            "tenant",
            "attempts",
            "bytes_in",
            "bytes_out",
            "routed",
            "migrated",
        )
        self.entries.append({name: getattr(entry, name) for name in kept})


class Rig:
    """Front, gateway and their nodes. ``node(i)`` is the fake pool of the i-th node."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        keys: list[KeyRecord] | None = None,
        headroom: int = 100_000,
        timeout: float = 5.0,
        max_queued: int = 64,
        stood_still: Callable[[], bool] = never,
        **settings: object,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.expiry = Expiry(loop)
        self.dispatcher = Dispatcher(
            "w0",
            DispatchSettings(timeout=timeout, max_queued=max_queued),
            loop.time,
            rng=random.Random(1),
            wake=self.expiry.wake,
        )
        self.expiry.bind(self.dispatcher)
        self.upstreams: dict[str, FakeUpstream] = {}
        self.sequence = 0
        for i in range(nodes):
            self.add_node(f"n{i}", headroom)
        self.metrics = RouterMetrics()
        self.log = Log()
        self.bridge = FakeUpstream()
        self.core = RelayCore(
            dispatcher=self.dispatcher,
            authorizer=Authorizer(keys),
            table=RouteTable(self.dispatcher),
            metrics=self.metrics,
            access_log=self.log,  # type: ignore[arg-type]
            settings=replace(RelaySettings(), **settings),  # type: ignore[arg-type]
            loop=loop,
            stood_still=stood_still,
        )
        self.front = RelayFront(self.core, self.bridge)
        self.gateway = Gateway(self.core, lambda: self.dispatcher.ready)

    def add_node(self, node_id: str, headroom: int = 100_000) -> NodeState:
        spec = NodeSpec(MODEL, aliases=("small",), max_seq_len=65_536, kv_capacity_tokens=100_000)
        node = self.dispatcher.add_node(node_id, "127.0.0.1:1", spec)
        node.upstream = self.upstreams[node_id] = FakeUpstream()
        self.dispatcher.set_link(node_id, True)
        self.dispatcher.on_watch_reset(node_id)
        self.report(node_id, headroom)
        return node

    def counted(self, stream: FakeClientStream) -> FakeClientStream:
        """The stream's node says that it has the request."""
        (node_id,) = [name for name, upstream in self.upstreams.items() if stream in upstream.streams]
        self.report(node_id, 100_000, stream.headers[names.DISPATCH])
        return stream

    def report(self, node_id: str, headroom: int, *counted: bytes) -> None:
        """The node says how much room it has, and which requests are in its numbers."""
        self.sequence += 1
        report = Report(
            self.sequence,
            "boot",
            kv_capacity_tokens=100_000,
            headroom_tokens=headroom,
            prefill_tokens_per_second=8000.0,
            counted_dispatches=counted,
            full=True,
        )
        self.dispatcher.on_report(node_id, report)

    def node(self, i: int) -> FakeUpstream:
        return self.upstreams[f"n{i}"]

    @property
    def used(self) -> FakeUpstream:
        """The pool of the one node that a stream was opened on."""
        (found,) = [upstream for upstream in self.upstreams.values() if upstream.streams]
        return found

    def other(self, than: FakeUpstream) -> FakeUpstream:
        """The pool of the other node of two."""
        (found,) = [upstream for upstream in self.upstreams.values() if upstream is not than]
        return found

    def count(self, event: str) -> int:
        """How often an event was counted."""
        return self.metrics.snapshot().events.get(event, 0)

    def assert_idle(self) -> None:
        """Nothing is left of any request."""
        assert self.metrics.in_flight == 0
        assert self.dispatcher.reserved_tokens == 0
        assert self.dispatcher.queued == 0
        assert not self.core.deadlines.live
