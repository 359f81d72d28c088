"""The network layer as a plain relay: whatever gRPC call comes is joined to the one upstream, with no policy at all."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Final

from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.listener import Listener
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.net.splice import Splice, lost_error

_CONNECT_LIMIT: Final = 10.0  # seconds


class SpliceRelay:
    """Listens on 127.0.0.1 and relays to ``upstream``; connected once entered."""

    def __init__(self, upstream: str, settings: NetSettings, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.flusher = Flusher(loop)
        self.counters = self.flusher.counters
        self._up = asyncio.Event()
        self.pool = Pool(upstream, settings, self.flusher, on_state=lambda up: self._up.set() if up else None)
        self.listener = Listener(self.accept, self.refuse, settings, self.flusher, tls=tls)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.listener.address

    async def __aenter__(self) -> SpliceRelay:
        self.pool.start()
        await self.listener.start()
        async with asyncio.timeout(_CONNECT_LIMIT):
            await self._up.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.listener.close()
        await self.pool.close()

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink:
        """Join a call to the upstream."""
        splice = Splice(stream)
        if not splice.join(self.pool, headers, end):
            splice.fail(lost_error(0, True))
        return splice

    def refuse(self, exchange: HttpExchange) -> None:
        """Nothing but gRPC is relayed."""
        exchange.respond(415, [], b"")
