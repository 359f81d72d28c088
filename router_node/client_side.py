"""The parts between clients and the router: keys, the public port, the relay and the HTTP gateway."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from router_node.admin.counters import RouterMetrics
from router_node.admin.lag import LoopLag
from router_node.admin.metrics import Snapshot
from router_node.gateway.gateway import Gateway
from router_node.middleware.access_log import AccessLog
from router_node.middleware.key_watch import KeyWatch
from router_node.middleware.keys import Authorizer, KeyRecord, KeyStore
from router_node.node_side import NodeSide
from router_node.relay.core import RelayCore
from router_node.relay.front import RelayFront
from router_node.relay.settings import RelaySettings
from router_node.signals import unless
from router_node.tracing import Tracing
from shared.config import Config
from shared.net.api import Upstream
from shared.net.listener import LAST_REQUEST, Listener, ListenError

LAST_WHEN_REPLACED: Final = 10.0  # seconds that idle HTTP/1.1 connections have for one more request, then


class ClientSide:
    """Made once in each process that serves the public port.

    ``keys`` is None where every caller is accepted. ``bridge`` leads to the services on the private socket. With
    ``shared_port`` other processes may listen on the same port. ``inherited`` are sockets that listen on it already.
    """

    def __init__(
        self,
        config: Config,
        nodes: NodeSide,
        keys: Sequence[KeyRecord] | None,
        bridge: Upstream,
        *,
        shared_port: bool = False,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        self.draining = False
        self._config = config
        self._nodes = nodes
        self._metrics = RouterMetrics()
        self._authorizer = Authorizer(keys)
        self._key_watch = KeyWatch(KeyStore(config.server.keys_file), self._authorizer) if keys is not None else None
        self._access_log = (
            AccessLog(stream=sys.stdout, style=config.server.log_format, capacity=config.router.access_log_size)
            if config.server.access_log
            else None
        )
        self._tracing = Tracing(config) if config.tracing.endpoint else None
        self._lag = LoopLag()
        self._core = RelayCore(
            dispatcher=nodes.dispatcher,
            authorizer=self._authorizer,
            table=nodes.table,
            metrics=self._metrics,
            access_log=self._access_log,
            settings=RelaySettings.from_config(config),
            loop=asyncio.get_running_loop(),
            tracer=self._tracing.tracer if self._tracing is not None else None,
            stood_still=self._lag.stood_still,
        )
        front = RelayFront(self._core, bridge)
        gateway = Gateway(self._core, ready=lambda: not self.not_ready())
        self._listener = Listener(
            acceptor=front.accept,
            http_handler=gateway.handle,
            settings=nodes.net,
            flusher=nodes.flusher,
            host=config.server.host,
            port=config.server.port,
            tls=nodes.certificates.server(config.server.tls),
            reuse_port=shared_port,
            inherited=inherited,
            gate=gateway.gate,
        )

    @property
    def address(self) -> str:
        """host:port of the public listener, once it is started."""
        return self._listener.address

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return self._listener.sockets

    async def start(self) -> None:
        """Open the public port. Raises OSError when it cannot be had."""
        self._lag.start()
        if self._access_log is not None:
            self._access_log.start()
        if self._tracing is not None:
            self._tracing.exporter.start()
        if self._key_watch is not None:
            self._key_watch.start()
        try:
            await self._listener.start()
        except ListenError as error:
            raise OSError(f"server.port: {error}") from None

    @property
    def live(self) -> int:
        """Requests in the router now, waiting ones too."""
        return self._core.live

    async def drain(self, hurry: asyncio.Event, grace: float = 0.0, *, replaced: bool = False) -> bool:
        """Take no new request and let those in the router finish, up to ``grace`` seconds or until ``hurry``.

        A grace of 0 takes ``drain_timeout``. True when all of them finished. Where a successor has ``replaced`` this
        process nobody waits for its end, nor need anyone be told that it leaves: who asks again is the successor's.
        """
        self.draining = not replaced
        limit = grace or self._config.server.drain_timeout
        work = asyncio.ensure_future(self._listener.close(limit, LAST_WHEN_REPLACED if replaced else LAST_REQUEST))
        return await unless(hurry, work) and not self._listener.cut_off and self._core.live == 0

    async def close(self) -> None:
        """Cut what is left and release everything."""
        self.draining = True
        await self._listener.close(0.0)
        self._core.close()
        if self._key_watch is not None:
            await self._key_watch.close()
        if self._access_log is not None:
            await self._access_log.close()
        if self._tracing is not None:
            await self._tracing.exporter.close()
        await self._lag.close()

    def not_ready(self) -> str:
        """Why no request can be taken now, in one sentence, or ""."""
        return "the router is draining" if self.draining else self._nodes.not_ready()

    def snapshot(self) -> Snapshot:
        """Everything this process has counted."""
        snapshot = self._metrics.snapshot()
        self._nodes.add_to(snapshot)
        snapshot.ready = not self.not_ready()
        snapshot.access_log_dropped = self._access_log.dropped if self._access_log is not None else 0
        snapshot.keys_refused = self._authorizer.refused
        snapshot.key_file_errors = self._key_watch.errors if self._key_watch is not None else 0
        snapshot.spans = self._tracing.exporter.counts() if self._tracing is not None else {}
        snapshot.loop_lag = self._lag.worst
        snapshot.cpu_seconds = time.process_time()
        if self._core.busy_poll is not None:
            snapshot.busy_poll_turns = self._core.busy_poll.turns
        snapshot.tasks = len(asyncio.all_tasks())
        return snapshot
