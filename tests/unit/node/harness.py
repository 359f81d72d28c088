"""A whole node in the test's own process, on real sockets, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import msgspec

from inference_node.engines.base import Engine
from inference_node.engines.sim import SimEngine
from inference_node.node import Node
from shared.config.schema import Config, InferenceConfig, RouterConfig, ServerConfig, SimConfig
from shared.net import grpc_client
from shared.net.flusher import Flusher
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.pb.laya.v1 import inference_pb2, node_pb2, openai_pb2

FAST = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=0.2, decode_per_sequence_ms=0.0)
SLOW = SimConfig(prefill_tokens_per_second=1e5, decode_base_ms=20.0, decode_per_sequence_ms=0.0)

_INFERENCE = b"/laya.v1.Inference/"
_METHODS: dict[str, tuple[bytes, Any, bool]] = {
    "generate": (_INFERENCE + b"Generate", inference_pb2.GenerateResponse, True),
    "complete": (_INFERENCE + b"Complete", inference_pb2.CompleteResponse, False),
    "chat": (_INFERENCE + b"Chat", inference_pb2.ChatResponse, True),
    "embed": (_INFERENCE + b"Embed", inference_pb2.EmbedResponse, False),
    "list_models": (_INFERENCE + b"ListModels", inference_pb2.ListModelsResponse, False),
    "openai": (b"/laya.v1.OpenAI/Call", openai_pb2.HttpResponse, True),
    "describe": (b"/laya.v1.Node/Describe", node_pb2.DescribeResponse, False),
    "watch": (b"/laya.v1.Node/Watch", node_pb2.WatchResponse, True),
    "drain": (b"/laya.v1.Node/Drain", node_pb2.DrainResponse, False),
}


def config(sim: SimConfig = FAST, server: dict[str, Any] | None = None, **inference: Any) -> Config:
    """A configuration of a simulated node on loopback."""
    inference.setdefault("model", "demo")
    inference.setdefault("ramp_seconds", 0.0)
    return Config(
        server=ServerConfig(**{"drain_timeout": 5.0, **(server or {})}),
        router=RouterConfig(),
        inference=InferenceConfig(engine="sim", sim=sim, **inference),
    )


class Client:
    """Calls a node's methods by name, as its only router would."""

    def __init__(self, pool: Pool, metadata: Sequence[tuple[bytes, bytes]]) -> None:
        self.pool = pool
        self.metadata = metadata

    async def unary(
        self, name: str, request: Any, metadata: Sequence[tuple[bytes, bytes]] = (), timeout: float = 10.0
    ) -> Any:
        """The one answer."""
        path, kind, _ = _METHODS[name]
        return await grpc_client.unary(self.pool, path, request, kind, [*self.metadata, *metadata], timeout)

    def stream(
        self, name: str, request: Any, metadata: Sequence[tuple[bytes, bytes]] = (), timeout: float = 10.0
    ) -> AsyncGenerator[Any]:
        """The answers; close it to leave."""
        path, kind, _ = _METHODS[name]
        return grpc_client.stream(self.pool, path, request, kind, [*self.metadata, *metadata], timeout)

    async def collect(
        self, name: str, request: Any, metadata: Sequence[tuple[bytes, bytes]] = (), timeout: float = 10.0
    ) -> list[Any]:
        """All answers."""
        async with contextlib.aclosing(self.stream(name, request, metadata, timeout)) as answers:
            return [answer async for answer in answers]

    async def openai(
        self, path: str, body: Any, metadata: Sequence[tuple[bytes, bytes]] = (), method: str = "POST"
    ) -> tuple[int, Any, bytes]:
        """Status, headers and body of a tunnelled request."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        header = openai_pb2.HttpHeader(name="content-type", value="application/json")
        request = openai_pb2.HttpRequest(method=method, target=path, headers=[header], body=raw)
        head, *rest = await self.collect("openai", request, metadata)
        headers = {h.name: h.value for h in head.head.headers}
        return head.head.status, headers, b"".join(part.body for part in rest)


@contextlib.asynccontextmanager
async def running(
    conf: Config | None = None,
    engine: Engine | None = None,
    metadata: Sequence[tuple[bytes, bytes]] = (),
    serve: bool = True,
) -> AsyncIterator[tuple[Node, Client]]:
    """A node that serves (or, without ``serve``, only listens) and a connected client. Ends with nothing left over."""
    conf = conf or config()
    engine = engine or SimEngine(conf.inference)
    node = Node(conf, engine)
    flusher = Flusher(asyncio.get_running_loop())
    up = asyncio.Event()
    try:
        await node.listen()
        if serve:
            node.serve(await engine.start())
        pool = Pool(node.address, NetSettings(), flusher, on_state=lambda is_up: up.set() if is_up else None)
        pool.start()
        try:
            async with asyncio.timeout(5):
                await up.wait()
            yield node, Client(pool, list(metadata))
        finally:
            await pool.close()
    finally:
        await node.close()
        await engine.stop()
    serving = node.state.serving_or_none
    if serving is not None:
        admission = serving.admission
        assert (admission.running, admission.waiting, admission.sequences, admission.prefill_in_flight) == (0, 0, 0, 0)
        assert not node.door.visits and not node.reporter._live
        assert serving.engine.stats().running == 0
