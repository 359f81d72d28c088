"""One request over HTTP/1.1 and its answer: which framing it takes, and what becomes of the connection after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.errors import Code, LayaError
from shared.net.exchange import HttpExchange, RequestHead
from shared.net.http1_response import CHUNKED, CLOSE, KEEP_ALIVE, NO_CONTENT, error_answer, given_length, head

if TYPE_CHECKING:
    from shared.net.api import Headers
    from shared.net.http1 import Http1Protocol

_FRESH: Final = 0
_STARTED: Final = 1
_ENDED: Final = 2
_JOIN: Final = 32 << 10  # a body up to this leaves in one piece with its head

# How the body is marked off.
_BY_CHUNKS: Final = 0
_BY_CLOSE: Final = 1
_NO_BODY: Final = 2
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Http1Exchange(HttpExchange):
    """An HttpExchange over HTTP/1.1. Calls after the end, or after the client is gone, do nothing.

    ``on_drain`` is not called after ``finish``; ``on_abort`` is not called for the owner's own ``abort``.
    """

    __slots__ = ("_conn", "_framing", "_keep", "_modern", "_state")

    def __init__(self, conn: Http1Protocol, head: RequestHead, body: bytes) -> None:
        self.head = head
        self.method = head.method
        self.target = head.target
        self.headers = head.headers
        self.body = body
        self.on_abort = None
        self.on_drain = None
        self._conn = conn
        self._keep = head.keep
        self._modern = head.modern
        self._state = _FRESH
        self._framing = _BY_CHUNKS

    @property
    def queued(self) -> int:
        """Bytes given to ``write`` that have not left for the socket."""
        return self._conn.queued(self)

    @property
    def peer(self) -> str:
        """Address of the client, for logs."""
        return self._conn.peer

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer at once."""
        if self._state:
            return
        self._over()
        conn = self._conn
        keep = self._keep and not conn.draining
        if self.method == b"HEAD":
            length = given_length(headers) or b"%d" % len(body)
            framing = b"content-length: %b\r\n" % length
            body = b""
        elif status in NO_CONTENT:
            framing = body = b""
        else:
            framing = b"content-length: %d\r\n" % len(body)
        conn.date.refresh()
        start = head(status, headers, framing + self._persistence(keep), conn.date.line)
        if len(body) <= _JOIN:
            conn.emit(start + body if body else start)
        else:
            conn.emit(start)
            conn.emit(body)
        conn.ended(keep)

    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer of unknown length: chunked, or up to the close for an HTTP/1.0 client."""
        if self._state:
            return
        self._state = _STARTED
        conn = self._conn
        framing = b""
        if self.method == b"HEAD" or status in NO_CONTENT:
            self._framing = _NO_BODY
            length = given_length(headers)
            if length is not None and status not in NO_CONTENT:
                framing = b"content-length: %b\r\n" % length
        elif self._modern:
            framing = CHUNKED
        else:
            self._framing = _BY_CLOSE
            self._keep = False
        self._keep = self._keep and not conn.draining
        conn.date.refresh()
        conn.queue(head(status, headers, framing + self._persistence(self._keep), conn.date.line), 0)

    def write(self, data: bytes) -> None:
        """Queue a part of the body; it goes out with this batch."""
        if self._state != _STARTED or not data:
            return
        size = len(data)
        if self._framing == _BY_CHUNKS:
            self._conn.queue(b"%x\r\n%b\r\n" % (size, data), size)
        else:
            self._conn.queue(data if self._framing == _BY_CLOSE else b"", size)

    def finish(self) -> None:
        """End the body."""
        if self._state != _STARTED:
            return
        self._over()
        if self._framing == _BY_CHUNKS:
            self._conn.queue(_LAST_CHUNK, 0)
        self._conn.ended(self._keep)

    def abort(self) -> None:
        """Cut the answer off: the connection closes without the last chunk, or with a reset."""
        if self._state == _ENDED:
            return
        delimited = self._framing == _BY_CHUNKS or self._state == _FRESH
        self._over()
        self._conn.cut(delimited)

    def fail(self) -> None:
        """The owner raised: 500 where nothing was sent yet, else cut off."""
        if self._state == _FRESH:
            error = LayaError(Code.INTERNAL, "INTERNAL", "The server failed on this request; its log says why.")
            self.respond(error.http_status, *error_answer(error))
        else:
            self.abort()

    def lost(self) -> None:
        """The client is gone."""
        if self._state != _ENDED:
            gone = self.on_abort
            self._over()
            if gone is not None:
                gone()

    def _over(self) -> None:
        """The owner is told nothing more, and let go of: it has this exchange, and would only go with the collector."""
        self._state = _ENDED
        self.on_abort = self.on_drain = None

    def _persistence(self, keep: bool) -> bytes:
        """The connection header: each version's default goes without saying."""
        if keep:
            return b"" if self._modern else KEEP_ALIVE
        return CLOSE
