"""The parts of one node and how they hang together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from inference_node.auth import ClusterAuth
from inference_node.consul_register import ConsulRegistrar
from inference_node.door import Door
from inference_node.drain import Drainer
from inference_node.engines.base import Engine, EngineInfo
from inference_node.http_front import HttpFront
from inference_node.keeper import Keeper, machine_watch, open_admission
from inference_node.metrics import NodeMetrics
from inference_node.node_service import NodeService
from inference_node.rare import RareBridge, RareServices
from inference_node.register import Registrar, advertised
from inference_node.report import Reporter
from inference_node.routes import routes
from inference_node.service import InferenceService
from inference_node.state import NodeState, Serving
from inference_node.tracing import Tracing
from inference_node.tunnel import OpenAIFront, Tunnel
from router_node.discovery.address import is_loopback
from router_node.discovery.registration import valid_node_id
from shared import ids
from shared import logging as logs
from shared.config.schema import Config, ConfigError
from shared.net.flusher import Flusher
from shared.net.grpc_server import GrpcServer
from shared.net.listener import Listener
from shared.net.settings import Budget, NetSettings
from shared.net.tls_watch import CertificateWatch

# Whoever sends these has shown the cluster token: a router whose own clients cancel in a storm must not be cut off.
_ROUTER_RESETS = Budget(burst=20_000, rate=5000)

log = logs.get("node")


class Node:
    """Everything in a node but its engine. Build it in a running event loop."""

    def __init__(self, config: Config, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        server, inference = config.server, config.inference
        net = replace(
            NetSettings.from_config(server),
            resets=_ROUTER_RESETS,
            hasty_resets=_ROUTER_RESETS,
            engine=config.router.http2_engine,
        )
        flusher = Flusher(loop)
        self._engine = engine
        self._clock = loop.time
        self.state = NodeState(config, inference.node_id)
        self.reporter = Reporter(self.state, loop.time)
        self.metrics = NodeMetrics(self.state, self.reporter, flusher.counters)
        self.auth = ClusterAuth(server.cluster_token)
        self._tracing = Tracing(config, inference.node_id) if config.tracing.endpoint else None
        self.door = Door(self.state, self.reporter, self.metrics, time.monotonic, self._tracing)
        self.drainer = Drainer(self.state, self.door, log)
        self._bridge = RareBridge(RareServices(self.state), self.auth, net, flusher, log)
        front = OpenAIFront(self.state, self.door, log)
        self._http = HttpFront(self.state, front, self.auth, self.metrics, log)
        self._grpc = GrpcServer(
            routes(
                InferenceService(self.state, self.door),
                Tunnel(front),
                NodeService(self.state, self.reporter, self.drainer),
            ),
            max_message=server.max_body_bytes,
            body_timeout=server.body_timeout,
            fallback=self._bridge.accept,
            check=lambda call: self.auth.check(call.metadata),
            counters=flusher.counters,
        )
        self._certificates = CertificateWatch()
        self._listener = Listener(
            self._grpc.accept,
            self._http.handle,
            net,
            flusher,
            host=inference.host,
            port=inference.port,
            tls=self._certificates.server(server.tls) if wants_tls(config) else None,
        )
        self._registrar: Registrar | None = None
        self._consul: ConsulRegistrar | None = None
        self._reports: asyncio.Task[None] | None = None
        self._keeper: Keeper | None = None
        self.state.on_change.append(self.reporter.poke)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

    async def listen(self) -> None:
        """Bind the port; requests are refused as NOT_READY until ``serve``. Raises ListenError or ConfigError."""
        await self._listener.start()
        self._certificates.start()
        if self._tracing is not None:
            self._tracing.exporter.start()
            self.metrics.follow_spans(self._tracing.exporter.counts)
        state = self.state
        state.node_id = state.node_id or ids.default_node_id(self._listener.port)
        if not valid_node_id(state.node_id):
            raise ConfigError(
                f"inference.node_id: {state.node_id[:160]!r} must be 1 to 128 letters, digits and . _ : -, "
                "beginning with a letter or digit"
            )
        where = advertised(state.config, self._listener.address, self._listener.port)
        if state.config.server.redis:
            self._registrar = Registrar(state, where, log)
        if state.config.server.consul.address:
            self._consul = ConsulRegistrar(state, where, log)
        self._reports = asyncio.get_running_loop().create_task(self.reporter.run(), name="reports")

    def serve(self, info: EngineInfo) -> None:
        """The engine is up and warm: take requests, and let routers know."""
        config = self.state.config.inference
        rates = self.reporter.rates
        admission = open_admission(
            config, self._engine, info, lambda: rates.prefill, self._clock, log, lambda: rates.prefix_hit_rate
        )
        admission.on_change = self.reporter.poke
        self._keeper = Keeper(admission, config, machine_watch(info), log)
        self.state.start_serving(Serving(self._engine, info, admission, self._keeper))
        self._keeper.start()
        if info.tells_evictions:
            self._engine.follow_cache(self.reporter.evicted)
        if self._registrar is not None:
            self._registrar.start(info.revision)
        if self._consul is not None:
            self._consul.start(info.revision)
        self._bridge.start()

    async def close(self) -> None:
        """Leave the store, end what runs, close the port. Call it after a drain, so that little runs."""
        if self._registrar is not None:
            await self._registrar.close()
        if self._consul is not None:
            await self._consul.close()
        await self.drainer.close()
        await self._http.close()
        await self._grpc.close()
        await self._listener.close(0.5)
        await self._certificates.close()
        await self._bridge.close()
        if self._tracing is not None:
            await self._tracing.exporter.close()
        if self._keeper is not None:
            await self._keeper.close()
        if self._reports is not None:
            self._reports.cancel()
            await asyncio.gather(self._reports, return_exceptions=True)


def wants_tls(config: Config) -> bool:
    """TLS beyond loopback wherever a certificate is configured; on loopback only when routers are told to expect it."""
    node_tls = config.router.node_tls
    return not is_loopback(config.inference.host) or bool(node_tls.ca_file or node_tls.cert_file)
