"""The parts that operators see: the private listener, and the services behind the private socket."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable, Sequence

from router_node.admin.bridge import Bridge
from router_node.admin.metrics import Snapshot
from router_node.admin.page import MetricsPage
from router_node.admin.private import PrivateFront
from router_node.admin.routes_view import RoutesView
from router_node.admin.server import AdminServer, Leave
from router_node.admin.view import ClusterView
from router_node.discovery.address import is_loopback
from router_node.node_side import NodeSide
from router_node.route_side import RouteSide
from shared.config import Config
from shared.net.listener import LAST_REQUEST, Listener, ListenError


class AdminSide:
    """Made once in each router, in the supervisor where there are workers.

    ``socket`` is the private socket's address, on which this side serves. ``trouble`` is what is wrong though requests
    are served. ``inherited`` are the private listener's sockets where this router succeeds another one.
    """

    def __init__(
        self,
        config: Config,
        nodes: NodeSide,
        socket: str,
        *,
        view: ClusterView,
        routes: RouteSide,
        collect: Callable[[], Snapshot],
        not_ready: Callable[[], str],
        leave: Leave,
        trouble: Callable[[], str] = str,
        inherited: Sequence[sockets.socket] = (),
    ) -> None:
        self._heir = bool(inherited)
        self._replaced = False
        self._why = not_ready
        router = config.router
        self._bridge = Bridge(socket, nodes.net, nodes.flusher)
        shown = RoutesView(nodes.table, routes.manager, routes.desk, routes.kept)
        self._server = AdminServer(socket, view, shown, lambda: not self._not_ready(), leave)
        token = "" if is_loopback(router.admin_host) else config.server.cluster_token
        page = MetricsPage(collect, router.workers).render
        front = PrivateFront(
            self._bridge, page, self._not_ready, token, lambda: "; ".join(filter(None, (routes.trouble(), trouble())))
        )
        self._listener = Listener(
            acceptor=front.accept,
            http_handler=front.handle,
            settings=nodes.net,
            flusher=nodes.flusher,
            host=router.admin_host,
            port=router.admin_port,
            inherited=inherited,
        )
        nodes.membership.on_change.append(self.readiness_changed)

    @property
    def address(self) -> str:
        """host:port of the private listener, once it is started."""
        return self._listener.address

    def readiness_changed(self) -> None:
        """Have the health service look again."""
        self._server.readiness_changed()

    @property
    def sockets(self) -> list[sockets.socket]:
        """Those that listen."""
        return self._listener.sockets

    async def start(self) -> None:
        """Serve, but for what ``open`` has to wait with. Raises OSError when the socket or the port cannot be had."""
        await self._server.start()
        await self._bridge.start()
        if not self._heir:
            await self._open()

    async def open(self) -> None:
        """The router serves. One that succeeds another answers only now: that one was ready all the time."""
        if self._heir:
            await self._open()

    def replaced(self) -> None:
        """A successor answers from now on; whoever has connected to this one yet is told that the router is ready."""
        self._replaced = True
        self._listener.retire()

    def _not_ready(self) -> str:
        return "" if self._replaced else self._why()

    async def _open(self) -> None:
        try:
            await self._listener.start()
        except ListenError as error:
            raise OSError(f"router.admin_port: {error}") from None

    async def close(self) -> None:
        """Stop; the last of a router's parts, so that its metrics can be read while it drains."""
        # A probe may have connected here just before the successor answered: its request is still to come.
        await self._listener.close(LAST_REQUEST if self._replaced else 0.0)
        await self._bridge.close()
        await self._server.close()
