"""What is rare on a node: gRPC health and reflection, on grpc.aio behind a private Unix socket.

The node's own port hands such calls over as they come, bytes and all (``RareBridge.accept`` is the fallback of the
node's ``GrpcServer``). gRPC's library is loaded in a thread, a while after the node serves or with the first call, so
that neither the start of this and other nodes nor a running stream waits for it; calls that come before wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from typing import TYPE_CHECKING, Final

from inference_node.auth import ClusterAuth
from inference_node.state import NodeState
from shared import headers as names
from shared.errors import Code, LayaError, unavailable
from shared.logging import event
from shared.net.api import Headers, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.net.splice import Splice

if TYPE_CHECKING:
    import grpc.aio

    from inference_node.health import HealthService

HEALTH: Final = b"/grpc.health.v1.Health/"
REFLECTION: Final = b"/grpc.reflection."
MAX_WAITING = 256  # calls that may wait for the library to load
START_DELAY = 2.0  # seconds after the node's start; the first call does not wait for it
START_TIME = 10.0  # seconds that they wait

_PASSED = frozenset(
    (b":method", b":scheme", b":path", b"te", b"content-type", b"grpc-encoding", b"grpc-accept-encoding")
) | {b"grpc-timeout", b"user-agent", names.REQUEST_ID}
# Our own pool asks for signs of life as often as it likes; the default server calls that too many pings.
_OPTIONS: Final = (
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


class RareServices:
    """Health and reflection on a socket in a folder that only this user can enter."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._folder = tempfile.TemporaryDirectory(prefix="laya-node-", ignore_cleanup_errors=True)
        self._server: grpc.aio.Server | None = None
        self._health: HealthService | None = None
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self.address = f"unix:{self._folder.name}/rare.sock"
        state.on_change.append(self._changed.set)

    async def start(self) -> None:
        """Load gRPC and serve."""
        await asyncio.to_thread(_load)
        import grpc.aio
        from grpc_health.v1 import health, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        from inference_node.health import HealthService
        from shared.pb.laya.v1 import inference_pb2, node_pb2, openai_pb2

        self._health = told = HealthService(self._state)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=256)
        health_pb2_grpc.add_HealthServicer_to_server(told, server)
        services = [
            service.full_name
            for module in (inference_pb2, node_pb2, openai_pb2)
            for service in module.DESCRIPTOR.services_by_name.values()
        ]
        services += [health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(services, server)
        server.add_insecure_port(self.address)
        await told.tell()
        await server.start()
        self._server = server
        self._follower = asyncio.get_running_loop().create_task(self._follow(told), name="node-health")

    async def close(self) -> None:
        """Say NOT_SERVING, stop, and remove the socket."""
        try:
            if self._follower is not None:
                self._follower.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._follower
            if self._server is not None and self._health is not None:
                await self._health.enter_graceful_shutdown()
                await self._server.stop(0.2)
        finally:
            self._folder.cleanup()

    async def _follow(self, told: HealthService) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await told.tell()


class RareBridge:
    """Leads calls of the node's port to ``RareServices``."""

    def __init__(
        self, rare: RareServices, auth: ClusterAuth, settings: NetSettings, flusher: Flusher, log: logging.Logger
    ) -> None:
        self._rare = rare
        self._auth = auth
        self._log = log
        self._loop = flusher.loop
        self._pool = Pool(rare.address, settings, flusher, on_state=self._on_state)
        self._waiting: list[tuple[_Rare, Headers, bool]] = []
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def start(self) -> None:
        """Bring the services up in the background."""
        self._task = self._loop.create_task(self._start(), name="rare-services")

    async def close(self) -> None:
        """Take the services down."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refuse_waiting()
        await self._pool.close()
        await self._rare.close()

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """An Acceptor for paths that the node's port does not serve itself.

        Health is open to probes, which can send no token; reflection wants it like every other method.
        """
        fields = dict(headers)
        path = fields.get(b":path", b"")
        rare = _Rare(stream)
        if not path.startswith((HEALTH, REFLECTION)):
            return rare.refuse(_unknown(path), end)
        if not path.startswith(HEALTH):
            try:
                self._auth.check(fields)
            except LayaError as e:
                return rare.refuse(e, end)
        passed = [(b":authority", b"node"), *(pair for pair in headers if pair[0] in _PASSED)]
        if not rare.join(self._pool, passed, end):
            if len(self._waiting) >= MAX_WAITING:
                rare.fail(_not_up())
                return None
            self._waiting.append((rare, passed, end))
            self._wanted.set()
        return rare

    async def _start(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_DELAY):
                await self._wanted.wait()
        try:
            async with asyncio.timeout(START_TIME):
                await self._rare.start()
        except Exception as e:
            event(self._log, logging.ERROR, "rare_services_failed", exc_info=e)
            self._refuse_waiting()
            return
        self._pool.start()

    def _on_state(self, up: bool) -> None:
        if up:
            waiting, self._waiting = self._waiting, []
            for rare, headers, end in waiting:
                if rare.can_replay and not rare.join(self._pool, headers, end):
                    rare.fail(_not_up())

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rare, _, _ in waiting:
            rare.fail(_not_up())


class _Rare(Splice):
    """One call on its way, or one that is refused as soon as its first bytes are there.

    gRPC's own client takes an answer that overtakes its first message for an error of its own.
    """

    __slots__ = ("_refusal",)

    def __init__(self, down: ServerStream) -> None:
        super().__init__(down)
        self._refusal: LayaError | None = None

    def refuse(self, error: LayaError, end: bool) -> ServerSink | None:
        """What ``accept`` returns for a refused call; ``end``: it has no message to wait for."""
        if end:
            self.fail(error)
            return None
        self._refusal = error
        return self

    def on_data(self, data: bytes, end: bool) -> None:
        super().on_data(data, end)
        if self._refusal is not None:
            self.fail(self._refusal)


def _load() -> None:
    import grpc_reflection.v1alpha.reflection  # noqa: F401 - loaded here, used in start()


def _not_up() -> LayaError:
    return unavailable("This node's health service is not up yet; try again.", "NOT_READY", 0.5)


def _unknown(path: bytes) -> LayaError:
    shown = path[:200].decode("ascii", "replace")
    return LayaError(Code.UNIMPLEMENTED, "METHOD_UNKNOWN", f"There is no method {shown} here.")
