"""A node's control service on grpc.aio, for tests of discovery: another implementation than the router's own.

It describes itself, reports what it is told to, and can fall silent. It runs no model.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.pb.laya.v1 import inference_pb2, node_pb2, node_pb2_grpc


class GrpcNode(node_pb2_grpc.NodeServicer):
    """One node; ``say`` changes what it reports, ``what`` what it describes."""

    def __init__(self, node_id: str = "n1", model: str = "m", token: str = "", boot_id: str = "b1") -> None:
        self.what = node_pb2.DescribeResponse(
            node_id=node_id,
            boot_id=boot_id,
            version="0.1.0",
            protocol=1,
            model=node_pb2.ModelSpec(name=model, aliases=[f"{model}-alias"], max_seq_len=4096, engine="sim"),
            kv_capacity_tokens=65_536,
            kv_block_tokens=16,
            max_num_seqs=64,
            default_max_tokens=128,
            ready=True,
        )
        self.report = node_pb2.WatchResponse(
            boot_id=boot_id,
            kv_capacity_tokens=65_536,
            headroom_tokens=65_536,
            prefill_tokens_per_second=8000,
            decode_tokens_per_second=100,
            ready=True,
        )
        self.token = token
        self.credentials: grpc.ServerCredentials | None = None  # TLS, where they are set before ``start``
        self.watchers: list[str] = []  # ids of all watches that were opened, in order
        self.watching = 0
        self.drains: list[node_pb2.DrainRequest] = []
        self.silent = False  # no report is sent and no call is answered
        self.port = 0
        self.called_with: list[dict[str, str]] = []  # metadata of each Generate
        self.chunks = asyncio.Queue[str]()  # what Generate streams; "" ends it
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self._health: Any = None

    @property
    def address(self) -> str:
        """host:port it serves on."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> GrpcNode:
        """Serve, on the same port as before when it was started before."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        node_pb2_grpc.add_NodeServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        generate = grpc.unary_stream_rpc_method_handler(
            self._generate,
            request_deserializer=inference_pb2.GenerateRequest.FromString,
            response_serializer=inference_pb2.GenerateResponse.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler("laya.v1.Inference", {"Generate": generate})
        server.add_generic_rpc_handlers((handlers,))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        place = f"127.0.0.1:{self.port}"
        secure = self.credentials
        self.port = server.add_secure_port(place, secure) if secure is not None else server.add_insecure_port(place)
        await server.start()
        self._server = server
        return self

    async def stop(self) -> None:
        """Cut everything."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def say_health(self, serving: bool) -> None:
        """What its health service says of requests; before the first time it knows nothing of them."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("laya.v1.Inference", status.SERVING if serving else status.NOT_SERVING)

    async def say(self, **changes: Any) -> None:
        """Report this from now on, to everyone who watches."""
        async with self._changed:
            for name, value in changes.items():
                setattr(self.report, name, value)
            self._changed.notify_all()

    async def _check(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("laya-cluster-token", "")
        if given != self.token:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the cluster token is not ours")
        while self.silent:
            async with self._changed:
                await self._changed.wait()

    async def Describe(self, request: node_pb2.DescribeRequest, context: Any) -> node_pb2.DescribeResponse:
        await self._check(context)
        return self.what

    async def Watch(self, request: node_pb2.WatchRequest, context: Any) -> None:
        await self._check(context)
        self.watchers.append(request.watcher_id)
        self.watching += 1
        sequence = 0
        try:
            while True:
                if not self.silent:
                    sequence += 1
                    report = node_pb2.WatchResponse()
                    report.CopyFrom(self.report)
                    report.sequence = sequence
                    report.full = sequence == 1
                    await context.write(report)
                async with self._changed:
                    try:
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
        finally:
            self.watching -= 1

    async def Drain(self, request: node_pb2.DrainRequest, context: Any) -> node_pb2.DrainResponse:
        await self._check(context)
        self.drains.append(request)
        await self.say(draining=not request.undo)
        return node_pb2.DrainResponse(draining=not request.undo, running=self.report.running)

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:
        self.called_with.append({key: str(value) for key, value in context.invocation_metadata()})
        while chunk := await self.chunks.get():
            await context.write(inference_pb2.GenerateResponse(text=chunk))
