"""The parts between the router and its nodes: the dispatcher, and what keeps its tables in step with the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from router_node.admin.metrics import NodeSample, Snapshot
from router_node.discovery.base import Source
from router_node.discovery.consul_source import ConsulSource
from router_node.discovery.dns_source import DnsSource
from router_node.discovery.membership import Entry, Membership
from router_node.discovery.redis_source import RedisSource
from router_node.discovery.static import StaticSource
from router_node.dispatch import Dispatcher, DispatchSettings
from router_node.relay.expiry import Expiry
from router_node.routes.table import RouteTable
from shared.config import Config
from shared.ids import watcher_id
from shared.net.counters import NetCounters
from shared.net.flusher import Flusher
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.net.tls_watch import CertificateWatch

REACH_TIMEOUT = 2.0  # seconds that a start waits for nodes
_REACH_LOOK = 0.01
_TOLD = 8  # nodes named in a sentence


def configured_sources(config: Config) -> list[Source]:
    """The sources that a configuration names."""
    server, router = config.server, config.router
    sources: list[Source] = []
    if router.nodes:
        sources.append(StaticSource(router.nodes))
    if server.redis:
        sources.append(
            RedisSource(
                server.redis,
                server.cluster,
                server.cluster_token,
                interval=router.refresh_interval,
                trust_all=server.insecure,
            )
        )
    sources += [DnsSource(one) for one in router.dns]
    if server.consul.address:
        sources.append(ConsulSource(server.consul))
    return sources


class NodeSide:
    """Made once in each process, worker or supervisor: each has links, and reservations, of its own."""

    def __init__(self, config: Config, sources: Sequence[Source], worker: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self.counters = NetCounters()
        self.flusher = Flusher(loop, self.counters)
        self.net = NetSettings.from_config(config.server, config.router)
        self._expiry = Expiry(loop)
        self.certificates = CertificateWatch()
        self._tls = self.certificates.client(config.router.node_tls)
        watcher = watcher_id(worker)
        self.dispatcher = Dispatcher(
            watcher, DispatchSettings.from_config(config.router), loop.time, wake=self._expiry.wake
        )
        self._expiry.bind(self.dispatcher)
        self.table = RouteTable(self.dispatcher)
        self.membership = Membership(
            self.dispatcher,
            sources,
            self._pool,
            watcher_id=watcher,
            token=config.server.cluster_token,
            drain=config.server.drain_timeout,
        )
        self.membership.on_change.append(self.table.invalidate)

    def _pool(self, address: str, on_state: Callable[[bool], None]) -> Pool:
        return Pool(address, self.net, self.flusher, tls=self._tls, on_state=on_state)

    async def start(self) -> None:
        """Look for nodes; returns without waiting for any."""
        self.certificates.start()
        await self.membership.start()

    async def reach(self) -> None:
        """Wait a little until the nodes there are have been met: who opens its port should be as able as the others."""
        for _ in range(int(REACH_TIMEOUT / _REACH_LOOK)):
            if self.membership.settled:
                return
            await asyncio.sleep(_REACH_LOOK)

    async def close(self) -> None:
        """Let go of every node."""
        self._expiry.close()
        await self.certificates.close()
        await self.membership.close()

    def not_ready(self) -> str:
        """Why no request can be sent to a node now, in one sentence, or ""."""
        if self.dispatcher.ready:
            return ""
        entries = list(self.membership.entries())
        if entries:
            told = ", ".join(f"{_name(entry)} is {entry.link.state}" for entry in entries[:_TOLD])
            return f"no node is ready: {told}{' and so on' if len(entries) > _TOLD else ''}"
        away = [health.detail for health in (source.health() for source in self.membership.sources) if not health.up]
        return f"no node is known: {away[0]}" if away else "no node is known yet"

    def add_to(self, snapshot: Snapshot) -> None:
        """Fill in what is known about nodes, sources and connections."""
        nodes = self.dispatcher.nodes()
        snapshot.queue_depth = self.dispatcher.queued
        if self.dispatcher.outliers.ejected_total:
            snapshot.events["node_ejected"] = self.dispatcher.outliers.ejected_total
        snapshot.reservations = sum(node.reservations for node in nodes)
        snapshot.nodes = [self._sample(entry) for entry in self.membership.entries()]
        snapshot.ready = self.dispatcher.ready
        for source in self.membership.sources:
            snapshot.sources[source.name] = source.health().up
            for reason, count in source.rejections().items():
                snapshot.rejected[reason] = snapshot.rejected.get(reason, 0) + count
        counters = self.counters
        snapshot.net = counters.totals()
        snapshot.net_reasons = dict(counters.reasons)

    def _sample(self, entry: Entry) -> NodeSample:
        link = entry.link
        node = self.dispatcher.node(link.node_id) if self.membership.owner(link.node_id) is link else None
        report = link.report
        return NodeSample(
            node_id=_name(entry),
            state="ejected" if node is not None and node.state == "ejected" else link.state,
            capacity_tokens=report.kv_capacity_tokens if report is not None else 0,
            headroom_tokens=report.headroom_tokens if report is not None else 0,
            running=report.running if report is not None else 0,
            waiting=report.waiting if report is not None else 0,
            reserved_tokens=node.reserved_tokens if node is not None else 0,
            streams=link.pool.streams,
            connections=link.pool.connections,
            report_age=link.report_age,
        )


def _name(entry: Entry) -> str:
    return entry.link.node_id or entry.named_id or entry.link.address
