"""A gRPC server on a real listener, with methods that show what a server can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from google.protobuf.wrappers_pb2 import BytesValue, StringValue, UInt32Value

from shared.errors import exhausted
from shared.net.api import HttpExchange
from shared.net.flusher import Flusher
from shared.net.grpc_server import GrpcServer, Method, ServerCall
from shared.net.listener import Listener
from shared.net.settings import NetSettings


def path(name: str) -> str:
    return f"/test.Test/{name}"


class GrpcSite:
    """The server, and what its handlers saw."""

    def __init__(self, **options: Any) -> None:
        self.flusher = Flusher()
        self.calls: list[ServerCall] = []
        self.cancelled = 0
        self.running = asyncio.Event()
        self.error: Exception = exhausted("The queue is full. ", "QUEUE_FULL", 1.5)
        handlers = {
            "Echo": Method(self.echo, BytesValue),
            "Raw": Method(self.raw, bytes),
            "Count": Method(self.count, UInt32Value, stream=True),
            "Fail": Method(self.fail, StringValue),
            "FailLate": Method(self.fail_late, StringValue, stream=True),
            "Hang": Method(self.hang, StringValue),
            "HangLate": Method(self.hang_late, StringValue, stream=True),
            "Flood": Method(self.flood, UInt32Value, stream=True),
        }
        routes = {path(name).encode(): method for name, method in handlers.items()}
        self.server = GrpcServer(routes, counters=self.flusher.counters, **options)
        self.listener = Listener(
            self.server.accept, self._no_http, replace(NetSettings(), max_body_bytes=64 << 20), self.flusher
        )

    def _no_http(self, exchange: HttpExchange) -> None:
        exchange.respond(404, [], b"")

    def _note(self, call: ServerCall) -> None:
        self.calls.append(call)
        self.running.set()

    async def echo(self, request: BytesValue, call: ServerCall) -> BytesValue:
        self._note(call)
        call.initial_metadata.append((b"x-first", b"1"))
        call.trailing_metadata.append((b"x-last-bin", b"AAEC"))
        return request

    async def raw(self, request: bytes, call: ServerCall) -> bytes:
        return request[::-1]

    async def count(self, request: UInt32Value, call: ServerCall) -> None:
        self._note(call)
        for i in range(request.value):
            await call.send(UInt32Value(value=i))

    async def fail(self, request: StringValue, call: ServerCall) -> StringValue:
        raise self.error

    async def fail_late(self, request: StringValue, call: ServerCall) -> None:
        await call.send(StringValue(value="first"))
        raise self.error

    async def hang(self, request: StringValue, call: ServerCall) -> StringValue:
        self._note(call)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def hang_late(self, request: StringValue, call: ServerCall) -> None:
        await call.send(StringValue(value="first"))
        await self.hang(request, call)

    async def flood(self, request: UInt32Value, call: ServerCall) -> None:
        self._note(call)
        for _ in range(request.value):
            await call.send(BytesValue(value=bytes(10_000)))


@asynccontextmanager
async def grpc_site(**options: Any) -> AsyncIterator[GrpcSite]:
    site = GrpcSite(**options)
    await site.listener.start()
    try:
        yield site
    finally:
        await site.listener.close()
        await site.server.close()
        assert site.server.calls == 0
        assert len(site.server.uploads) == site.server.uploads.held == 0
