"""Connections to one address, dialled ahead and replaced when they end."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from shared.net.api import ClientSink, ClientStream, Headers
from shared.net.flusher import Flusher
from shared.net.settings import NetSettings


class Pool:
    """An Upstream. ``address`` is ``host:port``, ``[v6]:port`` or ``unix:/path``.

    ``on_state(up)`` is called when the first connection is ready and when the last one is gone;
    ``on_room()`` when a stream can be opened again after ``open`` returned None.
    """

    def __init__(
        self,
        address: str,
        settings: NetSettings,
        flusher: Flusher,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        on_state: Callable[[bool], None] | None = None,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether a connection is ready."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """Connections that are ready."""
        raise NotImplementedError

    @property
    def streams(self) -> int:
        """Streams in flight, on connections that are ending too."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to dial; needs a running event loop."""
        raise NotImplementedError

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        """Open a stream on the least loaded connection; None when none can take it now."""
        raise NotImplementedError

    async def close(self, grace: float = 0.0) -> None:
        """Take no new streams, wait up to ``grace`` seconds for those in flight, then close everything."""
        raise NotImplementedError
