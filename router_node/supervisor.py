"""Several workers on one port: more cores for one router.

The supervisor serves no client. It holds the port, finds the nodes and tells the workers, answers Admin, health and
metrics for all of them, and starts a worker again, with back-off, when it ends or falls silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from router_node.admin.metrics import Snapshot
from router_node.admin.server import Leave, private_socket
from router_node.admin.view import LocalView
from router_node.admin_side import AdminSide
from router_node.announce import announce
from router_node.config import Options
from router_node.control import TeeSource
from router_node.exits import FAILED, OK
from router_node.fleet import Fleet
from router_node.node_side import NodeSide, configured_sources
from router_node.ports import Ports, hold_port
from router_node.route_side import RouteSide
from router_node.session_side import counts, pin_store
from router_node.sessions.store import PinStore
from router_node.signals import StopSignals, unless
from router_node.successor import Listening, as_able, until_over
from shared import logging as logs
from shared.notify import notify
from shared.pb.laya.v1 import admin_pb2

log = logs.get("router.supervisor")


async def supervise(options: Options) -> int:
    """Run the workers until a signal; the exit code."""
    config = options.config
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals(asyncio.get_running_loop()))
        private = stack.enter_context(private_socket())
        left = options.inherited
        port = stack.enter_context(hold_port(config.server.host, config.server.port, left.public))
        ports = Ports(config.server.host, port, config.router.workers, left.public)
        stack.callback(ports.close)
        sources = [TeeSource(source) for source in configured_sources(config)]
        nodes = NodeSide(config, sources, worker=config.router.workers)
        routes = RouteSide(config, nodes)
        fleet = Fleet(config, nodes, sources, routes.manager, ports=ports, bridge=private)
        pins = pin_store(config, fleet.take_pins)
        admin = AdminSide(
            config,
            nodes,
            private,
            view=FleetView(nodes, fleet),
            routes=routes,
            collect=lambda: _with_pins(routes.add_to(fleet.snapshot()), pins),
            not_ready=fleet.not_ready,
            leave=Leave(signals.ask, lambda: fleet.workers_total().in_flight),
            trouble=lambda: pins.trouble if pins is not None else "",
            inherited=left.admin,
        )
        fleet.on_change = admin.readiness_changed
        if pins is not None:
            fleet.on_pin = pins.offer
            stack.push_async_callback(pins.close)
            await pins.start()
        for part in (admin, nodes, routes, fleet):  # they end in the opposite order
            stack.push_async_callback(part.close)
            if part is fleet and left.able:
                await nodes.reach()
                if not await as_able(left.able, nodes.not_ready, signals.stop):
                    return OK
            await part.start()
        stop = asyncio.ensure_future(signals.stop.wait())
        stack.callback(stop.cancel)
        code = await fleet.serving(stop)
        if code is not None:
            return code
        if not stop.done():
            await nodes.reach()
            await admin.open()
            announce(options, fleet.address, admin.address)
        replaced = await until_over(signals, lambda: Listening(ports.all, admin.sockets, not nodes.not_ready()))
        logs.event(log, logging.INFO, "router_stopping", drain_timeout=config.server.drain_timeout)
        if replaced:
            admin.replaced()
        else:
            notify("STOPPING=1")
            fleet.draining = True
            admin.readiness_changed()
            await unless(signals.hurry, asyncio.ensure_future(asyncio.sleep(config.server.drain_delay)))
        finished = await fleet.drain(signals.hurry, signals.grace, replaced=replaced)
    logs.event(log, logging.INFO, "router_stopped", finished=finished)
    return OK if finished or not signals.hurry.is_set() else FAILED


def _with_pins(snapshot: Snapshot, pins: PinStore | None) -> Snapshot:
    if pins is not None:
        snapshot.pins = counts(pins)
    return snapshot


class FleetView(LocalView):
    """The supervisor's view, with what the workers have sent to each node added."""

    def __init__(self, nodes: NodeSide, fleet: Fleet) -> None:
        super().__init__(nodes.dispatcher, nodes.membership, nodes.table)
        self._fleet = fleet

    def nodes(self) -> list[admin_pb2.NodeStatus]:
        """Every node, by id."""
        statuses: Sequence[admin_pb2.NodeStatus] = super().nodes()
        sent = {sample.node_id: sample for sample in self._fleet.workers_total().nodes}
        for status in statuses:
            sample = sent.get(status.node_id)
            if sample is not None:
                status.reserved_tokens += sample.reserved_tokens
                status.streams += sample.streams
                status.connections += sample.connections
        return list(statuses)

    def explain(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        """Where a request would go by the nodes' reports; each worker adds what it has sent itself."""
        answer = super().explain(request)
        answer.summary += " (by the nodes' reports; each worker also counts what it has just sent)"
        return answer
