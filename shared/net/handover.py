"""Requests that come between the last connection's GOAWAY and its successor's first SETTINGS.

A peer that says GOAWAY is well: it wants another connection, which is there in a moment. Requests of that moment are
held rather than failed, and sent when there is something to send them on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.net.api import REFUSED_STREAM, ClientSink, ClientStream, Headers

if TYPE_CHECKING:
    from shared.net.client import H2ClientProtocol


class HeldStream(ClientStream):
    """A request that is kept until it can be opened; from then on it stands in for the real stream."""

    __slots__ = ("_chunks", "_closed", "_end", "_handover", "_headers", "_real", "_sink", "_size", "_trailers")

    def __init__(self, handover: Handover, headers: Headers, sink: ClientSink, end: bool) -> None:
        self._handover = handover
        self._headers = headers
        self._sink = sink
        self._end = end
        self._chunks: list[bytes] = []
        self._size = 0
        self._trailers: Headers | None = None
        self._real: ClientStream | None = None
        self._closed = False

    def send(self, data: bytes, end: bool = False) -> None:
        """Keep the bytes: at most a stream's window, as none are reported to have left."""
        if self._real is not None:
            self._real.send(data, end)
        elif not self._end and not self._closed:
            if data:
                self._chunks.append(data)
                self._size += len(data)
            self._end = end

    def trailers(self, headers: Headers) -> None:
        """Keep the trailers."""
        if self._real is not None:
            self._real.trailers(headers)
        elif not self._end and not self._closed:
            self._trailers = headers
            self._end = True

    def reset(self, code: int) -> None:
        """A request that has not been opened never is; its owner is told in the next turn of the loop."""
        if self._real is not None:
            self._real.reset(code)
        elif not self._closed:
            self._handover.drop(self, code)

    def consumed(self, n: int) -> None:
        """As of the real stream; before there is one, nothing has come."""
        if self._real is not None:
            self._real.consumed(n)

    @property
    def queued(self) -> int:
        """Bytes that have not left for the socket."""
        return self._real.queued if self._real is not None else self._size

    @property
    def closed(self) -> bool:
        """Whether the owner has been told of the end."""
        return self._real.closed if self._real is not None else self._closed

    def open(self, conn: H2ClientProtocol) -> bool:
        """Open the request and send what has been kept; False when the connection can take none."""
        chunks, trailers = self._chunks, self._trailers
        real = conn.open(self._headers, self._sink, self._end and not chunks and trailers is None)
        if real is None:
            return False
        self._real = real
        self._chunks = []
        last = len(chunks) - 1
        for i, data in enumerate(chunks):
            real.send(data, self._end and trailers is None and i == last)
        if trailers is not None:
            real.trailers(trailers)
        return True

    def over(self, loop: asyncio.AbstractEventLoop, code: int, unprocessed: bool) -> None:
        """It will not be opened; its owner is told in the next turn of the loop, like that of a real stream."""
        self._closed = True
        self._chunks = []
        loop.call_soon(self._sink.on_response_closed, code, unprocessed)


class Handover:
    """The requests of one such moment, at most ``most``; ``on_timeout`` is called when it takes too long."""

    __slots__ = ("_held", "_loop", "_most", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, most: int, on_timeout: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._most = most
        self._held: dict[HeldStream, None] = {}
        self._timer = loop.call_later(seconds, on_timeout)

    def hold(self, headers: Headers, sink: ClientSink, end: bool) -> ClientStream | None:
        """Keep a request; None when there are too many."""
        if len(self._held) >= self._most:
            return None
        stream = HeldStream(self, headers, sink, end)
        self._held[stream] = None
        return stream

    def drop(self, stream: HeldStream, code: int) -> None:
        """The owner gives the request up."""
        self._held.pop(stream, None)
        stream.over(self._loop, code, False)

    def end(self, conn: H2ClientProtocol | None) -> None:
        """The moment is over: open everything on the new connection, or tell that the peer has not seen it."""
        self._timer.cancel()
        held, self._held = self._held, {}
        for stream in held:
            if conn is None or not stream.open(conn):
                stream.over(self._loop, REFUSED_STREAM, True)
