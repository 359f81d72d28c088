"""A server of HTTP/1.1 whose handler keeps the exchanges it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from shared.net.api import HttpExchange, HttpHandler
from shared.net.flusher import Flusher
from shared.net.http1 import Http1Protocol
from shared.net.settings import NetSettings
from shared.net.uploads import Uploads, upload_limit
from tests.support.h2_rig import ManualLoop, Wire
from tests.support.web import until

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, target: bytes = b"/p") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (target, len(body), body)


@dataclass
class Site:
    """A server whose handler keeps the exchanges it was given."""

    handler: HttpHandler | None = None
    exchanges: list[HttpExchange] = field(default_factory=list)
    protocols: list[Http1Protocol] = field(default_factory=list)
    flusher: Flusher = field(default_factory=Flusher)
    port: int = 0
    open: int = 0
    aborted: int = 0

    def handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        exchange.on_abort = self._count_abort
        if self.handler is not None:
            self.handler(exchange)

    def _count_abort(self) -> None:
        self.aborted += 1

    def make(self, settings: NetSettings) -> Http1Protocol:
        def closed(_: Http1Protocol) -> None:
            self.open -= 1

        self.open += 1
        protocol = Http1Protocol(self.handle, settings, self.flusher, self.uploads(settings), closed)
        self.protocols.append(protocol)
        return protocol

    def uploads(self, settings: NetSettings) -> Uploads:
        return Uploads(self.flusher.loop, settings.body_timeout, upload_limit(settings.max_body_bytes))

    def reasons(self) -> dict[str, int]:
        return self.flusher.counters.reasons

    async def nth(self, n: int) -> HttpExchange:
        await until(lambda: len(self.exchanges) >= n)
        return self.exchanges[n - 1]


@asynccontextmanager
async def site(handler: HttpHandler | None = None, **changes: object) -> AsyncIterator[Site]:
    made = Site(handler)
    settings = replace(NetSettings(), **changes)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: made.make(settings).protocol, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for protocol in made.protocols:
            protocol.close()
        await until(lambda: made.open == 0)


def echo(exchange: HttpExchange) -> None:
    exchange.respond(200, [(b"x-target", exchange.target)], exchange.body)


class OneWay(Wire):
    """A transport in memory that can also end its own half and stop reading."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing more will be written."""

    def pause_reading(self) -> None:
        """The test goes on sending all the same."""

    def resume_reading(self) -> None:
        """As before."""


class Bench:
    """A connection in memory, with a clock that the test moves."""

    def __init__(self, handler: HttpHandler, **changes: object) -> None:
        self.handler = handler
        self.exchanges: list[HttpExchange] = []
        self.loop = ManualLoop()
        self.flusher = Flusher(self.loop)  # type: ignore[arg-type]
        self.lost = False
        settings = replace(NetSettings(), **changes)  # type: ignore[arg-type]
        self.uploads = Uploads(self.flusher.loop, settings.body_timeout, upload_limit(settings.max_body_bytes))
        self.protocol = Http1Protocol(self._handle, settings, self.flusher, self.uploads, self._closed)
        self.wire = OneWay(self.loop)
        self.wire.attach(self.protocol)
        self.reasons = self.flusher.counters.reasons

    def _handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        self.handler(exchange)

    def _closed(self, _: Http1Protocol) -> None:
        self.lost = True

    def say(self, data: bytes) -> None:
        """Bytes from the client; dropped when the connection is closed."""
        if not self.wire.closing:
            self.protocol.data_received(data)
            self.loop.run()  # a slow machine ends turns early

    def hear(self) -> bytes:
        """What was written since the last look."""
        return self.wire.take()
