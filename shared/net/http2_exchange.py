"""Plain HTTP requests over HTTP/2: the same HttpExchange as over HTTP/1.1, on a ServerStream."""

from __future__ import annotations

from logging import ERROR
from typing import Final

from shared import logging
from shared.errors import Code, LayaError, invalid
from shared.net.api import INTERNAL_ERROR, Headers, HttpHandler, ServerSink, ServerStream
from shared.net.exchange import HttpExchange, RequestHead
from shared.net.flusher import Flusher
from shared.net.gather import Piece, gather, whole
from shared.net.http1_response import HOP_BY_HOP, NO_CONTENT, HttpDate, error_answer, given_length
from shared.net.settings import NetSettings
from shared.net.uploads import Uploads, crowded_error, stalled_error

_UPLOADING: Final = 0
_FRESH: Final = 1
_STARTED: Final = 2
_ENDED: Final = 3
# Seconds. An answer that a reset follows at once is lost on some clients that still send, such as curl 7.88.
_PATIENCE: Final = 1.0
_DROPPED: Final = HOP_BY_HOP | {b"expect"}

_log = logging.get("http2")


class Http2Front:
    """Makes an exchange of each request and hands it to the handler once its body is whole."""

    __slots__ = ("_handler", "date", "flusher", "max_body", "uploads")

    def __init__(
        self,
        handler: HttpHandler,
        settings: NetSettings,
        flusher: Flusher,
        uploads: Uploads,
        date: HttpDate | None = None,
    ) -> None:
        self._handler = handler
        self.flusher = flusher
        self.max_body = settings.max_body_bytes
        self.date = date if date is not None else HttpDate()
        self.uploads = uploads

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        """An Acceptor."""
        exchange = Http2Exchange(self, stream)
        exchange.open(headers, end)
        return exchange

    def dispatch(self, exchange: Http2Exchange) -> None:
        """Hand a whole request to the handler; what it raises is logged, and answered where that is possible."""
        try:
            self._handler(exchange)
        except Exception:
            logging.event(_log, ERROR, "http_handler_failed", exc_info=True, target=exchange.target.decode("latin-1"))
            exchange.fail()


class Http2Exchange(HttpExchange):
    """An HttpExchange over HTTP/2, a ``ServerSink``. Calls after the end, or after the client is gone, do nothing.

    ``on_drain`` is not called after ``finish``; ``on_abort`` is not called for the owner's own ``abort``.
    """

    __slots__ = ("_front", "_got", "_length", "_parts", "_state", "_stream")

    def __init__(self, front: Http2Front, stream: ServerStream) -> None:
        self._front = front
        self._stream = stream
        self._state = _UPLOADING
        self._parts: list[Piece] = []
        self._got = 0
        self._length: int | None = None
        self.method = self.target = self.body = b""
        self.headers = []
        self.on_abort = None
        self.on_drain = None

    def open(self, headers: Headers, end: bool) -> None:
        """Take the request's headers; ``end`` when there is no body."""
        kept = self.headers
        authority: bytes | None = None
        for name, value in headers:
            if name[0] == 0x3A:  # a pseudo-header
                if name == b":method":
                    self.method = value
                elif name == b":path":
                    self.target = value
                elif name == b":authority":
                    authority = value
            elif name == b"content-length":
                if not value.isdigit():
                    self._refuse("framing", invalid("The content-length is not a number."))
                    return
                self._length = int(value)
            elif name not in _DROPPED:
                kept.append((name, value))
        if authority is not None:
            # As over HTTP/1.1; where both are sent, the authority decides (RFC 9113, section 8.3.1).
            kept[:] = [pair for pair in kept if pair[0] != b"host"]
            kept.append((b"host", authority))
        if not self.target:
            text = "CONNECT is not supported: this server is not a proxy."
            self._refuse("target", LayaError(Code.UNIMPLEMENTED, "INVALID_REQUEST", text))
        elif self._length is not None and self._length > self._front.max_body:
            self._refuse_body()
        elif end:
            self._whole()
        elif (error := self._front.uploads.refusal(self.method, self.target, kept, self._length)) is not None:
            self._refuse("refused_early", error)
        else:
            self._front.uploads.progress(self, 0)

    @property
    def queued(self) -> int:
        """Bytes given to ``write`` that have not left for the socket."""
        return self._stream.queued

    @property
    def peer(self) -> str:
        """Address of the client, for logs."""
        return self._stream.peer

    # The answer.

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer at once."""
        if self._state != _FRESH:
            return
        self._over()
        bare = self.method == b"HEAD" or status in NO_CONTENT
        length: bytes | None = b"%d" % len(body)
        if bare:
            length = None if status in NO_CONTENT else given_length(headers) or length
        head = self._head(status, headers, length)
        if bare or not body:
            self._stream.respond(head, end=True)
        else:
            self._stream.respond(head)
            self._stream.send(body, end=True)

    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer of unknown length."""
        if self._state != _FRESH:
            return
        self._state = _STARTED
        length = given_length(headers) if self.method == b"HEAD" else None
        self._stream.respond(self._head(status, headers, length))

    def write(self, data: bytes) -> None:
        """Queue a part of the body; it goes out with this batch."""
        if self._state != _STARTED or not data:
            return
        if self.method != b"HEAD":
            self._stream.send(data)
        elif self.on_drain is not None:
            self.on_drain(len(data))

    def finish(self) -> None:
        """End the body."""
        if self._state == _STARTED:
            self._over()
            self._stream.send(b"", end=True)

    def abort(self) -> None:
        """Cut the answer off: the client sees a reset."""
        if self._state != _ENDED:
            self._over()
            self._stream.reset(INTERNAL_ERROR)

    def fail(self) -> None:
        """The owner raised: 500 where nothing was sent yet, else cut off."""
        if self._state == _FRESH:
            error = LayaError(Code.INTERNAL, "INTERNAL", "The server failed on this request; its log says why.")
            self.respond(error.http_status, *error_answer(error))
        else:
            self.abort()

    # The stream.

    def on_data(self, data: bytes, end: bool) -> None:
        """More of the body; it is held here, so the peer may go on."""
        if data:
            self._stream.consumed(len(data))
        if self._state != _UPLOADING:
            return
        self._got += len(data)
        if self._got > self._front.max_body:
            self._refuse_body()
            return
        gather(self._parts, data)
        if end:
            self._whole()
        else:
            self._front.uploads.progress(self, self._got)

    def on_trailers(self, headers: Headers) -> None:
        """The body is over; nobody reads request trailers."""
        if self._state == _UPLOADING:
            self._whole()

    def on_sent(self, n: int) -> None:
        """Bytes have left for the socket."""
        if self._state == _STARTED and self.on_drain is not None:
            self.on_drain(n)

    def on_closed(self, code: int) -> None:
        """The stream is gone; where the answer was not complete, so is the client."""
        state, gone = self._state, self.on_abort
        self._over()
        self._parts = []
        if state == _UPLOADING:
            self._front.uploads.end(self)
        elif state != _ENDED:
            self._front.flusher.counters.count("http_client_gone")
            if gone is not None:
                gone()

    def stalled(self) -> None:
        """The body did not go on in time."""
        self._refuse("body_timeout", stalled_error())

    def crowded_out(self) -> None:
        """All bodies together are too much, and this is the largest."""
        self._refuse("crowded_out", crowded_error())

    # Inside.

    def _over(self) -> None:
        """The owner is told nothing more, and let go of: it has this exchange, and would only go with the collector."""
        self._state = _ENDED
        self.on_abort = self.on_drain = None

    def _whole(self) -> None:
        self._front.uploads.end(self)
        if self._length is not None and self._length != self._got:
            text = f"The content-length is {self._length}, but {self._got} bytes were sent."
            self._refuse("framing", invalid(text))
            return
        parts, self._parts = self._parts, []
        self.body = whole(parts)
        self.head = RequestHead(self.method, self.target, self.headers)
        self._state = _FRESH
        self._front.dispatch(self)

    def _refuse_body(self) -> None:
        text = f"The request body is limited to {self._front.max_body} bytes: send less."
        self._refuse("body_too_large", LayaError(Code.INVALID_ARGUMENT, "BODY_TOO_LARGE", text, http_status=413))

    def _refuse(self, reason: str, error: LayaError) -> None:
        self._front.uploads.end(self)
        self._parts = []
        self._front.flusher.counters.count("http_" + reason)
        self._state = _FRESH
        self._stream.be_patient(_PATIENCE)
        self.respond(error.http_status, *error_answer(error))

    def _head(self, status: int, headers: Headers, length: bytes | None) -> Headers:
        date = self._front.date
        date.refresh()
        head = [(b":status", b"%d" % status), (b"date", date.value)]
        if length is not None:
            head.append((b"content-length", length))
        head.extend(pair for pair in headers if pair[0] not in HOP_BY_HOP)
        return head
