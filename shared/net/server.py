"""The server side of an HTTP/2 connection: streams that a peer opened on us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.net.api import Acceptor
from shared.net.flusher import Flusher
from shared.net.settings import NetSettings


class H2ServerProtocol(asyncio.Protocol):
    """One client's connection. Give it a transport by ``connection_made``, also one that is already open."""

    def __init__(
        self,
        acceptor: Acceptor,
        settings: NetSettings,
        flusher: Flusher,
        on_close: Callable[[H2ServerProtocol], None] | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def streams(self) -> int:
        """Streams that are open."""
        raise NotImplementedError

    def go_away(self) -> None:
        """Take no new streams (graceful GOAWAY), finish those that run, then close."""
        raise NotImplementedError

    def close(self) -> None:
        """Close now: owners are told CANCEL; what the transport holds is still sent, for a short time."""
        raise NotImplementedError
