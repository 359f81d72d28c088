"""A listener on a real port, with a handler that answers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from shared.errors import invalid
from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.listener import Listener
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from tests.support.web import until

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class House:
    """A listener and what came in."""

    exchanges: list[HttpExchange] = field(default_factory=list)
    grpc: int = 0
    aborted: int = 0
    answers: bool = True
    flusher: Flusher = field(default_factory=Flusher)
    listener: Listener | None = None

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        self.grpc += 1
        stream.respond([(b":status", b"200"), *invalid("no").grpc_trailers()], end=True)
        return None

    def handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        exchange.on_abort = self.count_abort
        if self.answers:
            exchange.respond(200, [], exchange.method + b" " + exchange.target + b" " + exchange.body)

    def count_abort(self) -> None:
        self.aborted += 1

    def make(self, changes: dict[str, object] | None = None, **options: Any) -> Listener:
        settings = replace(NetSettings(), **(changes or {}))  # type: ignore[arg-type]
        return Listener(self.accept, self.handle, settings, self.flusher, **options)


def kinds_of(data: bytes) -> list[int]:
    """The types of the HTTP/2 frames in what a peer has sent."""
    kinds = []
    while data:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3]) :]
    return kinds


@asynccontextmanager
async def house(changes: dict[str, object] | None = None, **options: Any) -> AsyncIterator[tuple[House, Listener]]:
    made = House()
    listener = made.make(changes, **options)
    await listener.start()
    try:
        yield made, listener
    finally:
        await listener.close()
        assert listener.connections == 0


@asynccontextmanager
async def pool(address: str, made: House, **options: Any) -> AsyncIterator[Pool]:
    opened = Pool(address, NetSettings(), made.flusher, **options)
    opened.start()
    try:
        await until(lambda: opened.connected)
        yield opened
    finally:
        await opened.close()


async def curl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "--max-time",
        "5",
        "-w",
        " %{http_version} %{http_code}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()
