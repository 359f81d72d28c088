"""The way from the network layer to the services on the private socket: one more upstream."""

from __future__ import annotations

import asyncio

from shared.net.api import ClientSink, ClientStream, Headers, Upstream
from shared.net.flusher import Flusher
from shared.net.pool import Pool
from shared.net.settings import NetSettings

_TIMEOUT = 5.0  # seconds; the socket is on this machine


class Bridge(Upstream):
    """Connections to the private socket at ``address``; made again whenever they end.

    At most ``most`` calls pass at once. The public port's bridge and the private listener's are two, so that whoever
    watches the health of a public port a thousand times keeps no operator out.
    """

    def __init__(self, address: str, settings: NetSettings, flusher: Flusher, most: int = 128) -> None:
        self._address = address
        self._most = most
        self._up = asyncio.Event()
        self._pool = Pool(address, settings, flusher, on_state=self._on_state)

    def _on_state(self, up: bool) -> None:
        if up:
            self._up.set()
        else:
            self._up.clear()

    @property
    def free(self) -> int:
        """How many more calls may pass now."""
        return self._most - self._pool.streams

    async def start(self) -> None:
        """Dial and wait for the connection. Raises OSError when there is none in time."""
        self._pool.start()
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._up.wait()
        except TimeoutError:
            raise OSError(f"the private socket {self._address} does not answer") from None

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        """As ``Upstream``."""
        if self.free <= 0:
            return None
        return self._pool.open(headers, sink, end)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()
