"""What a client has sent and nobody has begun to answer: whole requests, and bytes that are not parsed yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from shared.errors import LayaError
from shared.net.exchange import RequestHead
from shared.net.http1_exchange import Http1Exchange
from shared.net.http1_known import KnownHeads
from shared.net.http1_parser import Refusal, RequestParser

if TYPE_CHECKING:
    from shared.net.http1 import Http1Protocol
    from shared.net.settings import NetSettings
    from shared.net.uploads import Uploads

_AHEAD: Final = 64 << 10  # bytes held before the connection should stop reading


class RequestQueue:
    """The requests of one connection in order. Bytes are parsed only when a request is asked for."""

    __slots__ = ("_at", "_conn", "_data", "_held", "_parser", "_pieces", "_ready", "refusal")

    __deletable__ = ("_conn",)

    def __init__(
        self, conn: Http1Protocol, settings: NetSettings, uploads: Uploads, heads: KnownHeads | None = None
    ) -> None:
        self._conn = conn
        self._parser = RequestParser(
            self._on_request, settings.max_header_bytes, settings.max_body_bytes, uploads.refusal, heads
        )
        self._ready: deque[Http1Exchange] = deque()
        self._data = b""  # bytes that are being parsed, those before ``_at`` have been
        self._at = 0
        self._pieces: deque[bytes] = deque()  # what follows them
        self._held = 0
        self.refusal: LayaError | None = None  # why nothing follows the requests that are ready

    @property
    def parser(self) -> RequestParser:
        """How far the next request has come."""
        return self._parser

    @property
    def full(self) -> bool:
        """Whether to stop reading until more has been answered."""
        return self._held > _AHEAD

    @property
    def more(self) -> bool:
        """Some of what has arrived is not answered, and may be a whole request."""
        return self._held > 0 or bool(self._ready)

    @property
    def empty(self) -> bool:
        """Nothing has arrived that is not answered, not even a part of a request."""
        return not self._held and not self._ready and self._parser.idle

    def put(self, data: bytes) -> None:
        """Bytes from the client."""
        if self.refusal is None:
            if self._data:
                self._pieces.append(data)
            else:
                self._data = data
            self._held += len(data)

    def next(self) -> Http1Exchange | None:
        """The next whole request; None when it has not arrived, or never will because of ``refusal``."""
        ready = self._ready
        while not ready and self._held:
            self._feed()
        return ready.popleft() if ready else None

    def give_up(self, error: LayaError) -> None:
        """Refuse the request that is arriving, and let go of what has come of it."""
        self.clear()
        self._parser.drop()
        self.refusal = error

    def clear(self) -> None:
        """Drop all of it."""
        self._ready.clear()
        self._forget()

    def release(self) -> None:
        """Drop all of it for good: the connection is gone, and let go of."""
        self.clear()
        self._parser.release()
        del self._conn

    def _forget(self) -> None:
        self._pieces.clear()
        self._data = b""
        self._at = self._held = 0

    def _feed(self) -> None:
        data, at = self._data, self._at
        try:
            stop = self._parser.take(data, at)
        except Refusal as refusal:
            self._forget()
            self._parser.drop()
            self.refusal = refusal.error
            self._conn.flusher.counters.count("http_" + refusal.reason)
            return
        if stop < len(data):
            self._at = stop
        else:
            self._data = self._pieces.popleft() if self._pieces else b""
            self._at = 0
        self._held -= stop - at

    def _on_request(self, head: RequestHead, body: bytes) -> None:
        self._ready.append(Http1Exchange(self._conn, head, body))
