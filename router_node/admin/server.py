"""The rare services: Admin, gRPC health and reflection, on grpc.aio behind a private Unix socket.

Nothing here is fast and nothing needs to be: the relay and the private listener reach it as one more upstream. The
socket lies in a folder that only this user can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from router_node.admin.routes_view import RoutesView
from router_node.admin.view import ClusterView, check_grace
from shared.errors import LayaError
from shared.logging import get
from shared.pb.laya.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, openai_pb2

log = get("admin")

T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]

READINESS: Final = "laya.v1.Inference"  # the health service that says whether requests are taken
_SOCKET: Final = "admin.sock"
_MAX_PATH: Final = 100  # a Unix socket's path holds 107 bytes
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Connections to this server come from our own pools, which ask for signs of life as often as they like. (The widely
# copied "min_recv_ping_interval_without_data_ms" is not a key that exists.)
_OPTIONS: Final = (
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


@contextlib.contextmanager
def private_socket() -> Iterator[str]:
    """An address ``unix:/path`` in a new folder with mode 0700, which is removed in the end."""
    folder = tempfile.mkdtemp(prefix="laya-")
    if len(os.fsencode(folder)) > _MAX_PATH - len(_SOCKET):
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="laya-", dir="/tmp")
    try:
        yield f"unix:{folder}/{_SOCKET}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Leave:
    """How a router is asked to end: ``ask(grace)``, in seconds, and how many requests ``live`` in it."""

    ask: Callable[[float], None]
    live: Callable[[], int]


class AdminServer:
    """Serves on ``address``. ``ready`` says whether requests are taken now."""

    def __init__(
        self, address: str, view: ClusterView, routes: RoutesView, ready: Callable[[], bool], leave: Leave
    ) -> None:
        self._leave = leave
        self._address = address
        self._view = view
        self._routes = routes
        self._ready = ready
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve. Raises OSError when the socket cannot be made."""
        server = grpc.aio.server(options=_OPTIONS)  # what comes in is bounded by the bridges
        service = AdminService(self._view, self._routes, self._leave)
        admin_pb2_grpc.add_AdminServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [
            *(module.DESCRIPTOR.services_by_name[name].full_name for module, name in _REFLECTED),
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        ]
        reflection.enable_server_reflection(names, server)
        try:
            bound = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"the private socket {self._address} cannot be made: {error}") from None
        if not bound:
            raise OSError(f"the private socket {self._address} cannot be made")
        await self._tell_health()
        await server.start()
        self._server = server
        self._follower = asyncio.create_task(self._follow(), name="admin-health")

    def readiness_changed(self) -> None:
        """Look at ``ready`` again and tell whoever watches."""
        self._changed.set()

    async def close(self, grace: float = 0.5) -> None:
        """Stop within about ``grace`` seconds."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._tell_health()

    async def _tell_health(self) -> None:
        await self._health.set(READINESS, _SERVING if self._ready() else _NOT_SERVING)


_REFLECTED = ((admin_pb2, "Admin"), (inference_pb2, "Inference"), (openai_pb2, "OpenAI"))


class AdminService(admin_pb2_grpc.AdminServicer):
    """``laya.v1.Admin`` over two views."""

    def __init__(self, view: ClusterView, routes: RoutesView, leave: Leave) -> None:
        self._leave = leave
        self._view = view
        self._routes = routes

    async def ListNodes(self, request: admin_pb2.ListNodesRequest, context: _Context) -> admin_pb2.ListNodesResponse:
        return await _answer(context, lambda: _now(admin_pb2.ListNodesResponse(nodes=self._view.nodes())))

    async def ListRoutes(self, request: admin_pb2.ListRoutesRequest, context: _Context) -> admin_pb2.ListRoutesResponse:
        return await _answer(context, lambda: _now(admin_pb2.ListRoutesResponse(routes=self._view.routes())))

    async def DrainNode(self, request: admin_pb2.DrainNodeRequest, context: _Context) -> admin_pb2.DrainNodeResponse:
        async def drain() -> admin_pb2.DrainNodeResponse:
            return admin_pb2.DrainNodeResponse(drain=await self._view.drain(request))

        return await _answer(context, drain)

    async def DrainRouter(
        self, request: admin_pb2.DrainRouterRequest, context: _Context
    ) -> admin_pb2.DrainRouterResponse:
        async def drain() -> admin_pb2.DrainRouterResponse:
            check_grace(request.grace_seconds)
            self._leave.ask(request.grace_seconds)
            return admin_pb2.DrainRouterResponse(in_flight=self._leave.live())

        return await _answer(context, drain)

    async def Explain(self, request: admin_pb2.ExplainRequest, context: _Context) -> admin_pb2.ExplainResponse:
        return await _answer(context, lambda: _now(self._routes.explain(request, self._view.explain)))

    async def GetRoutes(self, request: admin_pb2.GetRoutesRequest, context: _Context) -> admin_pb2.GetRoutesResponse:
        return await _answer(context, lambda: _now(self._routes.get(request)))

    async def ChangeRoutes(
        self, request: admin_pb2.ChangeRoutesRequest, context: _Context
    ) -> admin_pb2.ChangeRoutesResponse:
        return await _answer(context, lambda: self._routes.change(request))

    async def RollBackRoutes(
        self, request: admin_pb2.RollBackRoutesRequest, context: _Context
    ) -> admin_pb2.RollBackRoutesResponse:
        return await _answer(context, lambda: self._routes.roll_back(request))

    async def RouteHistory(
        self, request: admin_pb2.RouteHistoryRequest, context: _Context
    ) -> admin_pb2.RouteHistoryResponse:
        return await _answer(context, lambda: _now(self._routes.history(request)))


async def _now(value: T) -> T:
    return value


async def _answer(context: _Context, make: Callable[[], Awaitable[T]]) -> T:
    """Run a handler and turn a LayaError into a status with its details; anything else is ours and stays private."""
    try:
        return await make()
    except LayaError as error:
        await context.abort(
            _CODES[int(error.code)], error.message, (("grpc-status-details-bin", error.status_proto()),)
        )
    except Exception:
        log.exception("admin_failed")
        await context.abort(grpc.StatusCode.INTERNAL, "The router failed to answer; its log says why.")
    raise AssertionError("abort() returned")  # pragma: no cover


_CODES = {status.value[0]: status for status in grpc.StatusCode}
