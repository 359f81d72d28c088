"""A real router process, nodes that a test controls, and the ways in which operators and clients reach them."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from typing import Any

import grpc.aio

from shared.pb.laya.v1 import admin_pb2_grpc, inference_pb2_grpc
from tests.support.grpc_node import GrpcNode
from tests.support.ports import eventually
from tests.support.processes import Proc, metric


class Router:
    """A router process and ways to talk to it."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        self.proc = Proc("router", ["router_node.main", "--port", "0", "--admin-port", "0", *flags], env)
        self._channels: list[grpc.aio.Channel] = []

    async def start(self) -> Router:
        await asyncio.to_thread(lambda: self.proc.ready)
        return self

    @property
    def public(self) -> str:
        """host:port for clients."""
        return self.proc.address

    @property
    def private(self) -> str:
        """host:port for operators."""
        return str(self.proc.ready["admin"])

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel of its own, with a connection of its own."""
        channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._channels.append(channel)
        return channel

    @property
    def admin(self) -> Any:
        """A stub of the Admin service."""
        return admin_pb2_grpc.AdminStub(self.channel(self.private))  # type: ignore[no-untyped-call]

    @property
    def inference(self) -> Any:
        """A stub of the Inference service."""
        return inference_pb2_grpc.InferenceStub(self.channel(self.public))  # type: ignore[no-untyped-call]

    async def get(
        self, path: str, address: str = "", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an HTTP request, to the private listener by default."""

        def fetch() -> tuple[int, dict[str, str], bytes]:
            url = f"http://{address or self.private}{path}"
            request = urllib.request.Request(url, method=method, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as error:
                return error.code, dict(error.headers), error.read()

        return await asyncio.to_thread(fetch)

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that carry these labels."""
        return metric((await self.get("/metrics"))[2].decode(), name, **labels)

    async def ready(self, nodes: int = 1) -> Router:
        """Wait for ready nodes."""
        await self.metric_is("laya_router_nodes", nodes, state="ready")
        return self

    async def metric_is(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has a value."""

        async def look() -> bool:
            return await self.metric(name, **labels) == value

        await eventually(look, f"{name} is {value}")

    async def stop(self) -> int:
        for channel in self._channels:
            await channel.close(None)
        return await asyncio.to_thread(self.proc.stop)


class RouterWorld:
    """Nodes and routers of one test; ``close`` ends them all."""

    def __init__(self) -> None:
        self.nodes: list[GrpcNode] = []
        self.routers: list[Router] = []

    async def node(self, node_id: str = "n1", model: str = "m", **more: str) -> GrpcNode:
        node = await GrpcNode(node_id, model, **more).start()
        self.nodes.append(node)
        return node

    async def router(self, *flags: str, env: dict[str, str] | None = None) -> Router:
        router = Router(*flags, env=env)
        self.routers.append(router)
        return await router.start()

    async def __aenter__(self) -> RouterWorld:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for router in self.routers:
            await router.stop()
        for node in self.nodes:
            await node.stop()
