"""A relay of two connections in memory, a raw client before it and raw nodes behind it."""

from __future__ import annotations

from typing import Any, cast

from ngh2 import Role

from shared.net.api import (
    ClientSink,
    ClientStream,
    Headers,
    ServerStream,
)
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.splice import Splice
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    Link,
    ManualLoop,
    Raw,
    Seen,
    net_settings,
    pump,
)

HEAD = [*RESPONSE, (b"x-hook", b"1")]  # what a client sees of RESPONSE


class Owner(ClientOwner):
    def on_ready(self, conn: H2ClientProtocol) -> None:
        pass

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        pass

    def on_gone(self, conn: H2ClientProtocol) -> None:
        pass


class Relay(Splice):
    """A splice that writes down which hooks were called."""

    __slots__ = ("hooks", "rig")

    def __init__(self, down: ServerStream, rig: Rig) -> None:
        super().__init__(down)
        self.rig = rig
        self.hooks: list[Any] = []

    def filter_response(self, headers: Headers) -> Headers:
        self.hooks.append("response")
        headers.append((b"x-hook", b"1"))
        return headers

    def filter_trailers(self, headers: Headers) -> Headers:
        self.hooks.append("trailers")
        return headers

    def first_byte(self) -> None:
        self.hooks.append("first_byte")

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        self.hooks.append(("lost", code, unprocessed))
        if self.rig.retry and self.can_replay and self.join(self.rig, REQUEST):
            return
        super().upstream_lost(code, unprocessed)

    def upstream_closed(self) -> None:
        self.hooks.append("upstream_closed")

    def finished(self, code: int) -> None:
        self.hooks.append(("finished", code))


class Rig:
    """A raw client, a relay of two connections, and two raw nodes; an upstream that opens on the first that can."""

    def __init__(
        self,
        client: dict[int, int] | None = None,
        node: dict[int, int] | None = None,
        client_raw: dict[str, Any] | None = None,
        node_raw: dict[str, Any] | None = None,
        late: bool = False,
        **changes: Any,
    ) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.late = late
        self.retry = False
        self.relays: list[Relay] = []
        config = net_settings(**changes)
        self.ups = [H2ClientProtocol(Owner(), config, self.flusher) for _ in range(2)]
        self.down = H2ServerProtocol(self.accept, config, self.flusher)
        self.nodes = [Link(self.loop, up, Raw(Role.SERVER, node, **(node_raw or {}))) for up in self.ups]
        self.front = Link(self.loop, self.down, Raw(Role.CLIENT, client, **(client_raw or {})))
        self.client = self.front.raw
        self.node = self.nodes[0].raw
        self.pump()

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> Relay:
        relay = Relay(stream, self)
        self.relays.append(relay)
        if not self.late:
            assert relay.join(self, headers, end)
        return relay

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        for up in self.ups:
            stream = up.open(headers, sink, end)
            if stream is not None:
                return stream
        return None

    def pump(self) -> None:
        pump(self.front, *self.nodes)

    def call(self, body: bytes | None = b"ask", end: bool = True) -> Relay:
        self.client.request(REQUEST, body, end)
        self.pump()
        return self.relays[-1]

    @property
    def seen(self) -> Seen:
        return self.client.streams[max(self.client.streams)]

    def empty(self) -> bool:
        return not any(conn.table for conn in (self.down, *self.ups))
