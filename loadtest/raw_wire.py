"""Both ends of a measured hop on the HTTP/2 engine itself: what they cost must not hide what lies between them.

Their streams know enough of ``shared.net.api`` for the canned node and the load client. Neither has flow control of its
own, limits, keep-alive or time-outs (the engine acknowledges what it receives), so neither is fit for anything else.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from ngh2 import (
    Configuration,
    Connection,
    DataReceived,
    NGH2Error,
    RequestReceived,
    ResponseReceived,
    Role,
    Setting,
    StreamClosed,
    StreamReset,
    TrailersReceived,
)

from shared.net.api import Acceptor, ClientSink, Headers, ServerSink

MAX_STREAMS: Final = 4096
_STREAM_WINDOW: Final = 1 << 20
_CONNECTION_WINDOW: Final = 1 << 30
_OK: Final = (b"grpc-status", b"0")
_NO_LIMIT: Final = (10**9, 10**9)  # of resets: a router's cancels are not what is measured


class RawConnection(asyncio.Protocol):
    """What both sides share: the transport, the engine, and a write for each turn of the event loop."""

    def __init__(self, role: Role) -> None:
        self.engine = Connection(
            role, Configuration(peer_max_concurrent_streams=MAX_STREAMS, stream_reset_rate_limit=_NO_LIMIT)
        )
        self.transport: asyncio.Transport | None = None
        self._paused = False
        self._due = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the settings."""
        self.transport = cast(asyncio.Transport, transport)
        settings = {Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW}
        if self.engine.role is Role.SERVER:
            settings[Setting.MAX_CONCURRENT_STREAMS] = MAX_STREAMS
        self.engine.initiate_connection(settings)
        self.engine.set_local_window_size(_CONNECTION_WINDOW)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing is written any more."""
        self.transport = None

    def close(self) -> None:
        """Hang up."""
        if self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        """The socket is full: what there is to send stays in the engine."""
        self._paused = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._paused = False
        self.flush()

    def flush(self) -> None:
        """Write what there is to write, now."""
        if self.transport is not None and not self._paused:
            data = self.engine.data_to_send()
            if data:
                self.transport.write(data)

    def later(self) -> None:
        """Write in the next turn of the event loop, once for all who ask in this one."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._due = False
        self.flush()


class RawStream:
    """A call at either end: what ``shared.net.api`` asks of both of its streams."""

    __slots__ = ("_conn", "_id")

    def __init__(self, conn: RawConnection, stream_id: int) -> None:
        self._conn = conn
        self._id = stream_id

    def send(self, data: bytes, end: bool = False) -> None:
        """Bytes; dropped when the call is over."""
        try:
            self._conn.engine.send_data(self._id, data, end_stream=end)
        except NGH2Error:
            return
        self._conn.later()

    def trailers(self, headers: Headers) -> None:
        """End our half."""
        try:
            self._conn.engine.send_trailers(self._id, headers)
        except NGH2Error:
            return
        self._conn.later()

    def reset(self, code: int) -> None:
        """Abort the call."""
        self._conn.engine.reset_stream(self._id, code)
        self._conn.later()

    def consumed(self, n: int) -> None:
        """The engine has acknowledged them."""

    @property
    def queued(self) -> int:
        """Bytes not yet taken by the peer."""
        return self._conn.engine.queued_body_size(self._id)

    @property
    def closed(self) -> bool:
        """True when nothing can be sent to anybody."""
        return self._conn.transport is None


class NodeStream(RawStream):
    """A call at the node; see ``shared.net.api.ServerStream``."""

    __slots__ = ()

    def respond(self, headers: Headers, end: bool = False) -> None:
        """Response headers."""
        self._conn.engine.send_response(self._id, headers, end_stream=end)
        self._conn.later()

    def be_patient(self, seconds: float) -> None:
        """Nobody goes on sending to a canned node."""

    @property
    def peer(self) -> str:
        """Not looked at."""
        return ""


class NodeConnection(RawConnection):
    """The node's side of one connection; ``accept`` names the owner of each call."""

    def __init__(self, accept: Acceptor) -> None:
        super().__init__(Role.SERVER)
        self._accept = accept
        self._sinks: dict[int, ServerSink] = {}

    def data_received(self, data: bytes) -> None:
        """Hand events to their owners, then write."""
        engine = self.engine
        try:
            engine.receive_data(data)
        except NGH2Error:
            self.close()
            return
        sinks = self._sinks
        for event in engine.events():
            if type(event) is RequestReceived:
                headers = cast(Headers, event.headers)
                sink = self._accept(NodeStream(self, event.stream_id), headers, event.end_stream)
                if sink is not None:
                    sinks[event.stream_id] = sink
            elif type(event) is DataReceived:
                if (owner := sinks.get(event.stream_id)) is not None:
                    owner.on_data(event.data, event.end_stream)
            elif type(event) is TrailersReceived:
                if (owner := sinks.get(event.stream_id)) is not None:
                    owner.on_trailers(cast(Headers, event.headers))
            elif type(event) is StreamClosed and (owner := sinks.pop(event.stream_id, None)) is not None:
                owner.on_closed(int(event.error_code))
        self.flush()
        # A stream that this write has completed closes only now.
        for event in engine.events():
            if type(event) is StreamClosed and (owner := sinks.pop(event.stream_id, None)) is not None:
                owner.on_closed(int(event.error_code))

    def connection_lost(self, error: Exception | None) -> None:
        """Every call is over."""
        super().connection_lost(error)
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_closed(8)


class ClientConnection(RawConnection):
    """The load client's side of one connection."""

    def __init__(self) -> None:
        super().__init__(Role.CLIENT)
        self._sinks: dict[int, ClientSink] = {}
        self._asked: dict[int, asyncio.Future[bool]] = {}

    def open(self, headers: Headers, body: bytes, sink: ClientSink) -> RawStream | None:
        """Begin a call with its whole request; None when the connection takes none."""
        stream_id = self._begun(headers, body)
        if not stream_id:
            return None
        self._sinks[stream_id] = sink
        self.flush()  # the event loop joins what is written in one turn
        return RawStream(self, stream_id)

    def ask(self, headers: Headers, body: bytes) -> asyncio.Future[bool] | None:
        """A unary call at the least cost: whether its status was OK. None when the connection takes none."""
        stream_id = self._begun(headers, body)
        if not stream_id:
            return None
        answer = self._asked[stream_id] = self._loop.create_future()
        self.flush()
        return answer

    def _begun(self, headers: Headers, body: bytes) -> int:
        """The id of a stream with a whole request, not flushed yet; 0 when the connection takes none."""
        if self.transport is None or len(self._sinks) + len(self._asked) >= MAX_STREAMS:
            return 0
        try:
            stream_id: int = self.engine.send_request(headers)
            self.engine.send_data(stream_id, body, end_stream=True)
        except NGH2Error:
            return 0
        return stream_id

    def _answered(self, stream_id: int, fine: bool) -> None:
        answer = self._asked.pop(stream_id, None)
        if answer is not None and not answer.done():
            answer.set_result(fine)

    def data_received(self, data: bytes) -> None:
        """Hand events to their owners, then write what they lead to."""
        engine = self.engine
        try:
            engine.receive_data(data)
        except NGH2Error:
            self.close()
            return
        sinks = self._sinks
        if not sinks and self._asked:
            for event in engine.events():
                if type(event) is TrailersReceived:
                    self._answered(event.stream_id, _OK in event.headers)
                elif type(event) is StreamClosed:
                    self._answered(event.stream_id, False)  # without trailers
            self.flush()
            return
        for event in engine.events():
            if type(event) is DataReceived:
                if (owner := sinks.get(event.stream_id)) is not None:
                    owner.on_response_data(event.data, event.end_stream)
            elif type(event) is ResponseReceived:
                if (owner := sinks.get(event.stream_id)) is not None:
                    owner.on_response(cast(Headers, event.headers), event.end_stream)
            elif type(event) is TrailersReceived:
                if (owner := sinks.get(event.stream_id)) is not None:
                    owner.on_response_trailers(cast(Headers, event.headers))
                else:
                    self._answered(event.stream_id, _OK in event.headers)
            elif type(event) is StreamClosed:
                if (owner := sinks.pop(event.stream_id, None)) is not None:
                    owner.on_response_closed(int(event.error_code), False)
                else:
                    self._answered(event.stream_id, False)
            elif type(event) is StreamReset and (owner := sinks.pop(event.stream_id, None)) is not None:
                owner.on_response_closed(int(event.error_code) or 8, False)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Every call is over."""
        super().connection_lost(error)
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_response_closed(8, False)
        for stream_id in list(self._asked):
            self._answered(stream_id, False)
