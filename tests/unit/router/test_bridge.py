"""The bridge passes calls on to the private socket, so many at once and no more."""

from __future__ import annotations

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from router_node.admin.bridge import Bridge
from router_node.admin.server import AdminServer, Leave, private_socket
from router_node.admin.view import ClusterView
from shared.errors import LayaError
from shared.net.flusher import Flusher
from shared.net.grpc_client import stream, unary
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import admin_pb2, node_pb2
from tests.support.ports import until
from tests.support.routes import no_routes

CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"


class NoView(ClusterView):
    def nodes(self) -> list[admin_pb2.NodeStatus]:
        raise RuntimeError("a secret of the inside")

    def routes(self) -> list[admin_pb2.RouteStatus]:
        return []

    def explain(self, request: admin_pb2.ExplainRequest) -> admin_pb2.ExplainResponse:
        return admin_pb2.ExplainResponse()

    async def drain(self, request: admin_pb2.DrainNodeRequest) -> node_pb2.DrainResponse:
        return node_pb2.DrainResponse()


async def test_a_socket_that_nobody_serves_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_node.admin.bridge._TIMEOUT", 0.2)
    with private_socket() as address:
        bridge = Bridge(address, NetSettings(), Flusher())
        with pytest.raises(OSError, match="does not answer"):
            await bridge.start()
        await bridge.close()


async def test_calls_beyond_the_most_find_no_room_and_others_are_not_disturbed() -> None:
    with private_socket() as address:
        server = AdminServer(address, NoView(), no_routes(), lambda: True, Leave(lambda grace: None, lambda: 0))
        await server.start()
        narrow, wide = (Bridge(address, NetSettings(), Flusher(), most) for most in (2, 10))
        await narrow.start()
        await wide.start()
        request = health_pb2.HealthCheckRequest()
        watches = [stream(narrow, WATCH, request, health_pb2.HealthCheckResponse) for _ in range(2)]
        for watch in watches:
            await anext(watch)
        with pytest.raises(LayaError, match="no connection"):
            await unary(narrow, CHECK, request, health_pb2.HealthCheckResponse, timeout=5)
        assert (await unary(wide, CHECK, request, health_pb2.HealthCheckResponse, timeout=5)).status == 1
        for watch in watches:
            await watch.aclose()
        await until(lambda: narrow.free > 0, "the ended watches made room")
        assert (await unary(narrow, CHECK, request, health_pb2.HealthCheckResponse, timeout=5)).status == 1
        await narrow.close()
        await wide.close()
        await server.close()


async def test_a_failure_of_our_own_tells_a_client_nothing() -> None:
    with private_socket() as address:
        server = AdminServer(address, NoView(), no_routes(), lambda: True, Leave(lambda grace: None, lambda: 0))
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(
                "/laya.v1.Admin/ListNodes", request_serializer=bytes, response_deserializer=bytes
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value)
        await server.close()
