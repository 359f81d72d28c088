"""A server connection in memory, with a raw client at its other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ngh2 import Role

from shared.net.api import Headers, ServerStream
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from tests.support.h2_rig import (
    REQUEST,
    Heard,
    Link,
    ManualLoop,
    Raw,
    net_settings,
)


class Served:
    """A server connection, the owners of its streams, and a raw client."""

    def __init__(
        self,
        owner: Callable[[ServerStream, Headers, bool], Any] | None = None,
        client: dict[int, int] | None = None,
        raw: dict[str, Any] | None = None,
        takes: bool = True,
        **changes: Any,
    ) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.counters = self.flusher.counters
        self.heard: list[Heard] = []
        self.gone: list[H2ServerProtocol] = []

        def accept(stream: ServerStream, headers: Headers, end: bool) -> Heard:
            heard = Heard(stream, headers, end, takes)
            self.heard.append(heard)
            return heard

        self.conn = H2ServerProtocol(owner or accept, net_settings(**changes), self.flusher, self.gone.append)
        self.link = Link(self.loop, self.conn, Raw(Role.CLIENT, client, **(raw or {})))
        self.raw = self.link.raw
        self.link.pump()

    def open(self, body: bytes | None = None, end: bool = True, headers: Headers = REQUEST) -> Heard:
        self.raw.request(headers, body, end)
        self.link.pump()
        return self.heard[-1]
