"""The server side of an HTTP/2 connection: streams that a peer opened on us."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shared.errors import Code, LayaError
from shared.net.align import SURELY_SMALL
from shared.net.api import CANCEL, NO_ERROR, REFUSED_STREAM, Acceptor, Headers, ServerSink
from shared.net.conn import H2Connection
from shared.net.counters import NetCounters
from shared.net.engine import Header
from shared.net.fields import CheckedHeaders, checked, header_list_size
from shared.net.flusher import Flusher
from shared.net.monomorph import own_copies
from shared.net.settings import NetSettings
from shared.net.stream import StreamBase, unheard
from shared.net.turns import Turns

_GOODBYE: Final = b"laya-bye"  # payload of the PING between the two GOAWAYs of a graceful end
_HASTE = 1.0  # seconds from a request to its cancel below which nobody can have wanted an answer
_LAST_CALL = 1.0  # the second GOAWAY comes after so many seconds even if that PING is not answered


class _Nobody:
    """Owner of streams that have none: those answered in full at once, and those that are over."""

    __slots__ = ()

    def on_data(self, data: bytes, end: bool) -> None:
        """Never called: see H2ServerProtocol.on_data."""

    def on_trailers(self, headers: Headers) -> None:
        """Of no interest."""

    def on_sent(self, n: int) -> None:
        """Of no interest."""

    def on_closed(self, code: int) -> None:
        """Of no interest."""


_NOBODY: Final = _Nobody()
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Checked: Final = CheckedHeaders
_unheard: Final = unheard


class H2ServerStream(StreamBase):
    """One request and its answer: a ``ServerStream``."""

    __slots__ = ("born", "patience", "responded", "sink")

    born: float  # loop time at which it was opened
    patience: float
    sink: ServerSink
    responded: bool

    def __init__(self, conn: H2ServerProtocol, stream_id: int, remote_ended: bool) -> None:
        self.conn = conn
        self.id = stream_id
        self.born = conn.heard
        self.patience = 0.0
        self.closed = self.local_ended = self.bulky = self.responded = self.bodyless = False
        self.remote_ended = remote_ended
        self.queued = self.held = self.taken = 0
        self.reset_code = -1
        self.sink = _NOBODY
        self.report_sent = _unheard

    @property
    def peer(self) -> str:
        """Address of the client."""
        return self.conn.peer

    def respond(self, headers: Headers, end: bool = False) -> None:
        """Send response headers; a second call, or one on a closed stream, is dropped."""
        if self.local_ended or self.responded:
            return
        conn = self.conn
        self.responded = True
        try:
            conn.engine.respond(self.id, headers if type(headers) is _Checked else checked(headers), end_stream=end)
        except conn.engine_errors:
            self.local_ended = True  # over in the engine; its end is on the way to us
        else:
            if end:
                self.local_ended = self.bodyless = True
                if not self.remote_ended:
                    self.ended()
        if not conn.touched:
            conn.flusher.touch(conn)

    def reset(self, code: int) -> None:
        """Abort; a response that was already ended is delivered first."""
        if not self.local_ended:
            self.abort(code)

    def ended(self) -> None:
        """The answer is complete before the request: see that the request ends too, once the answer has left."""
        if self.patience:
            self.conn.flusher.loop.call_later(self.patience, self._finish)
        else:
            self.conn.finishing.append(self)

    def be_patient(self, seconds: float) -> None:
        """Let a peer that is answered early read that before it is told to stop sending."""
        self.patience = seconds

    def _finish(self) -> None:
        conn = self.conn
        if not self.closed and not self.remote_ended:
            conn.finishing.append(self)
            if not conn.touched:
                conn.flusher.touch(conn)

    def hold_back(self, data: bytes, end: bool) -> bool:
        """Have the engine take turns frame by frame, as it does not by itself."""
        if not self.bulky:
            self.bulky = True
            with suppress(*self.conn.engine_errors):  # over in the engine; send will find out
                self.conn.engine.share_fairly(self.id)
        return False

    def report_closed(self, code: int, unprocessed: bool) -> None:
        """Tell the owner; a NO_ERROR that came before our answer was complete counts as a cancel."""
        sink = self.sink
        if not code and not self.local_ended:
            code = CANCEL
        self.closed = self.local_ended = self.remote_ended = True
        self.queued = 0
        self.sink = _NOBODY  # no cycle is left for the collector
        self.report_sent = _unheard
        sink.on_closed(code)


class H2ServerProtocol(H2Connection):
    """One client's connection. Give it a transport by ``connection_made``, also one that is already open."""

    __slots__ = (
        "_accept",
        "_blocked",
        "_busy",
        "_busy_at",
        "_leaving_at",
        "_most",
        "_on_close",
    )

    table: dict[int, H2ServerStream]  # type: ignore[assignment]

    def __init__(
        self,
        acceptor: Acceptor,
        settings: NetSettings,
        flusher: Flusher,
        on_close: Callable[[H2ServerProtocol], None] | None = None,
        counters: NetCounters | None = None,
    ) -> None:
        """``on_close`` is called once, when the transport is gone; ``counters`` default to the flusher's."""
        super().__init__("server", settings, flusher, counters)
        self._accept = acceptor
        self._on_close = on_close
        self._most = settings.max_streams + settings.stream_slack // 2
        self._leaving_at = 0.0  # when the first GOAWAY went; negative after the second
        self._busy_at = self.heard
        self._busy = 0  # the last stream seen when the clock was looked at
        self._blocked: dict[int, tuple[StreamBase, float]] = {}  # answers that ended early and have not left
        self.counters.connections_accepted += 1
        self.turns = Turns(self)

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return len(self.table)

    def go_away(self) -> None:
        """Take no new streams (graceful GOAWAY), finish those that run, then close."""
        if self.dead or self._leaving_at:
            return
        self._leaving_at = self._now()
        try:
            self.engine.shutdown_notice()
        except self.engine_errors:
            return  # the connection is ending
        self.counters.goaways_sent += 1
        self.ping(_GOODBYE)
        self.vitals.hurry(_LAST_CALL)

    def close_idle(self) -> None:
        """The peer has been told: it ends by itself."""

    def retire(self, reason: str) -> None:
        """``go_away`` with a counted reason."""
        if not self._leaving_at:
            self.counters.count(reason)
            self.go_away()

    # Events.

    def on_request(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """Admit a stream and find its owner."""
        if self.dead:
            return
        self.last_peer_stream = stream_id
        table = self.table
        if len(table) >= self._most:
            self._refuse(stream_id)
            return
        stream = H2ServerStream(self, stream_id, end)
        table[stream_id] = stream
        self.counters.streams_accepted += 1
        if (len(headers) > SURELY_SMALL or self.align.wordy) and self._too_large(stream, headers):
            return
        sink = self._accept(stream, _Checked(headers), end)
        if sink is not None and not stream.closed:
            stream.sink = sink
            stream.report_sent = sink.on_sent

    def on_response(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """A server hears no responses."""

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        """Request bytes go to the stream's owner."""
        stream = self.table.get(stream_id)
        if stream is None:
            if data:
                self.take_back(stream_id, len(data))
            return
        if end:
            stream.remote_ended = True
        elif not data:
            self.on_oddity()
        sink = stream.sink
        if sink is _NOBODY or stream.reset_code >= 0:
            if data:
                self.take_back(stream_id, len(data))
            return
        stream.held += len(data)
        sink.on_data(data, end)

    def on_trailers(self, stream_id: int, headers: tuple[Header, ...]) -> None:
        """Request trailers go to the stream's owner."""
        stream = self.table.get(stream_id)
        if stream is not None and stream.reset_code < 0:
            stream.remote_ended = True
            stream.sink.on_trailers(_Checked(headers))

    def on_reset_by_peer(self, stream: StreamBase | None) -> None:
        """A storm of cancels would become ours towards the nodes: cut it off here.

        Those that follow their requests at once are the cheapest to send and the dearest to serve.
        """
        now = self._now()
        if not self.budgets.resets.spend(now):
            self.calm("reset_flood")
            return
        hasty = isinstance(stream, H2ServerStream) and not stream.responded and now - stream.born < _HASTE
        if hasty and not self.budgets.hasty_resets.spend(now):
            self.calm("rapid_reset")

    def on_pong(self, payload: bytes) -> None:
        """The client has seen the first GOAWAY: what it sent before has come."""
        super().on_pong(payload)
        if payload == _GOODBYE:
            self._last_goaway()

    def on_window(self, stream_id: int) -> None:
        """A window that opens may let out an answer whose end we wait for."""
        super().on_window(stream_id)
        if self._blocked:
            if stream_id:
                blocked = self._blocked.pop(stream_id, None)
                if blocked is not None:
                    self.finishing.append(blocked[0])
            else:
                self.finishing.extend(stream for stream, _ in self._blocked.values())
                self._blocked.clear()

    def finish(self) -> None:
        """End the requests whose answers have left in full (RFC 9113, section 8.1)."""
        finishing = self.finishing
        self.finishing = []
        for stream in finishing:
            if stream.remote_ended or stream.closed:
                continue
            try:
                left = stream.bodyless or (not stream.queued and self._let_out(stream.id))
                if left:
                    # A reset any earlier would throw the queued answer away.
                    self.engine.reset(stream.id, NO_ERROR)
            except self.engine_errors:
                continue  # over in the engine; its end is on the way to us
            if left:
                stream.reset_code = NO_ERROR
                if not self.touched:
                    self.flusher.touch(self)
            else:
                self._blocked[stream.id] = (stream, self._now())

    def _let_out(self, stream_id: int) -> bool:
        """Whether the peer's windows are open: with one shut, trailers wait behind a body that is already empty."""
        return self.engine.peer_window(stream_id) > 0 and self.engine.peer_window(0) > 0

    def on_tick(self, now: float) -> float:
        """Graceful end in two steps; idle connections; answers nobody takes."""
        settings = self.settings
        due = now + 3600.0
        if self._leaving_at > 0:
            if now - self._leaving_at >= _LAST_CALL:
                self._last_goaway()
            else:
                due = self._leaving_at + _LAST_CALL
        if self.table or self.last_peer_stream != self._busy:
            self._busy_at = now
            self._busy = self.last_peer_stream
        if settings.idle_timeout and not self._leaving_at:
            if now - self._busy_at >= settings.idle_timeout:
                self.retire("idle")
            due = min(due, self._busy_at + settings.idle_timeout)
        for stream, since in list(self._blocked.values()):
            if now - since >= settings.stall_timeout and not stream.closed:
                del self._blocked[stream.id]
                stream.abort(CANCEL)
        return due

    def on_lost(self) -> None:
        """Tell whoever keeps the list of connections."""
        self.finishing = []
        self._blocked = {}
        if self._on_close is not None:
            self._on_close(self)

    # Inner works.

    def _last_goaway(self) -> None:
        if self._leaving_at <= 0:
            return
        self._leaving_at = -1.0
        try:
            self.engine.goaway(NO_ERROR)
        except self.engine_errors:
            return  # the connection is ending
        if not self.touched:
            self.flusher.touch(self)

    def _refuse(self, stream_id: int) -> None:
        self.counters.streams_refused += 1
        with suppress(*self.engine_errors):  # over already
            self.engine.reset(stream_id, REFUSED_STREAM)
        self.on_reset_by_peer(None)  # refusals are as cheap to cause as resets, and as bounded

    def _too_large(self, stream: H2ServerStream, headers: tuple[Header, ...]) -> bool:
        """Answer a header block above the advertised size with an error that says so."""
        most = self.settings.max_header_bytes
        size = header_list_size(headers)
        if size <= most:
            return False
        self.counters.count("headers_too_large")
        error = LayaError(
            Code.RESOURCE_EXHAUSTED,
            "HEADERS_TOO_LARGE",
            f"The request's headers take {size} bytes; at most {most} are accepted here.",
            http_status=431,
        )
        if any(name == b"content-type" and value.startswith(b"application/grpc") for name, value in headers):
            head = [(b":status", b"200"), (b"content-type", b"application/grpc"), *error.grpc_trailers()]
            stream.respond(head, end=True)
        else:
            stream.respond([(b":status", b"431"), (b"content-type", b"application/json")])
            stream.send(error.openai_body(), end=True)
        return True


own_copies(H2ServerStream, "send", "trailers", "consumed", "abort")
own_copies(
    H2ServerProtocol,
    "data_received",
    "flush",
    "report_sent",
    "take_back",
    "on_stream_closed",
    "_report_closed",
    "_report_doomed",
)
