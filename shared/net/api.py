"""The small interface of the network layer: what a stream can do and what it tells its owner.

Everything here is synchronous and runs on the event loop. A connection parses what arrives, calls the owners of the
streams concerned, and flushes every connection that was touched once per batch (see ``flusher.py``): an owner never
flushes. No call here raises for a dead peer: a send on a closed stream is dropped, and the owner has been or will be
told by ``on_closed``, which comes exactly once.

Flow control is end to end. An owner says ``consumed(n)`` when bytes it received have been taken by whoever they were
for; only then does the peer get window for more. ``on_sent(n)`` says that n bytes handed to ``send`` have left for the
socket, so a relay answers ``on_sent`` of one side with ``consumed`` on the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from shared.net.exchange import HttpExchange as HttpExchange

Headers = list[tuple[bytes, bytes]]

# HTTP/2 error codes (RFC 9113, section 7) that owners use.
NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
ENHANCE_YOUR_CALM: Final = 0xB


class ServerSink(Protocol):
    """Owner of a stream that a peer opened on us."""

    __slots__ = ()

    @abstractmethod
    def on_data(self, data: bytes, end: bool) -> None:
        """Request bytes; ``end`` is the half-close. Acknowledge them with ``stream.consumed``."""

    @abstractmethod
    def on_trailers(self, headers: Headers) -> None:
        """Request trailers; they half-close the request."""

    @abstractmethod
    def on_sent(self, n: int) -> None:
        """n bytes given to ``stream.send`` have left for the socket."""

    @abstractmethod
    def on_closed(self, code: int) -> None:
        """The stream is gone: 0 after a complete exchange, else the reset code; 8 (CANCEL) when the connection died."""


class ClientSink(Protocol):
    """Owner of a stream that we opened on a peer."""

    __slots__ = ()

    @abstractmethod
    def on_response(self, headers: Headers, end: bool) -> None:
        """Response headers; ``end`` when nothing follows (a trailers-only gRPC answer)."""

    @abstractmethod
    def on_response_data(self, data: bytes, end: bool) -> None:
        """Response bytes. Acknowledge them with ``stream.consumed``."""

    @abstractmethod
    def on_response_trailers(self, headers: Headers) -> None:
        """Response trailers; the response is complete."""

    @abstractmethod
    def on_request_sent(self, n: int) -> None:
        """n bytes given to ``stream.send`` have left for the socket."""

    @abstractmethod
    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The stream is gone; 0 after a complete exchange, else the reset code.

        ``unprocessed`` is true only when the peer is known not to have seen the request (REFUSED_STREAM from the peer
        itself, or above a GOAWAY's last stream id), so that it may be tried again.
        """


class ServerStream(Protocol):
    """A stream that a peer opened on us."""

    __slots__ = ()

    @abstractmethod
    def respond(self, headers: Headers, end: bool = False) -> None:
        """Send response headers, ``:status`` first."""

    @abstractmethod
    def send(self, data: bytes, end: bool = False) -> None:
        """Queue response bytes; see ``queued`` for back-pressure."""

    @abstractmethod
    def trailers(self, headers: Headers) -> None:
        """Send trailers and end the response. Bytes queued before go out first."""

    @abstractmethod
    def reset(self, code: int) -> None:
        """Abort the stream. A response that was already ended is delivered first (code NO_ERROR then)."""

    def be_patient(self, seconds: float) -> None:
        """A peer that is answered before its request is whole has so many seconds before it is told to stop sending."""

    @abstractmethod
    def consumed(self, n: int) -> None:
        """n received bytes have been taken; the peer may send as many more."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Bytes given to ``send`` that have not left for the socket."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Address of the peer, for logs."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True once ``on_closed`` was called."""


class ClientStream(Protocol):
    """A stream that we opened on a peer."""

    __slots__ = ()

    @abstractmethod
    def send(self, data: bytes, end: bool = False) -> None:
        """Queue request bytes."""

    @abstractmethod
    def trailers(self, headers: Headers) -> None:
        """Send request trailers and half-close."""

    @abstractmethod
    def reset(self, code: int) -> None:
        """Abort the stream; the peer sees the code."""

    @abstractmethod
    def consumed(self, n: int) -> None:
        """n received bytes have been taken; the peer may send as many more."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Bytes given to ``send`` that have not left for the socket."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True once ``on_response_closed`` was called."""


class Upstream(Protocol):
    """Something that opens streams: a pool of connections to one address."""

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        """Open a stream, or None when no connection can take one now (the sink is not called then)."""
        ...


# Called for each new request on an HTTP/2 connection; returns its owner, or None when it has been answered in full.
Acceptor = Callable[[ServerStream, Headers, bool], ServerSink | None]


HttpHandler = Callable[[HttpExchange], None]
