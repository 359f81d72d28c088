"""Bytes of a request that wait outside the engine, so that other requests on the connection get their turns.

A client's engine sends what it has stream by stream: a message queued behind ten bulk uploads would wait for all that
they have queued. So when bytes cannot leave at once, a stream has at most a frame's worth in the engine; the rest
follows as that leaves, behind whatever the others have queued in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.net.gather import Piece, gather
from shared.net.settings import MAX_FRAME

if TYPE_CHECKING:
    from shared.net.client import H2ClientStream
    from shared.net.fields import CheckedHeaders


class Backlog:
    """One stream's bytes that follow later. It listens in place of the stream's owner to what has left."""

    __slots__ = ("_chunks", "_ended", "_size", "_stream", "_tell", "_trailers")

    def __init__(self, stream: H2ClientStream) -> None:
        self._stream = stream
        self._chunks: deque[Piece] = deque()
        self._size = 0
        self._ended = False
        self._trailers: CheckedHeaders | None = None
        self._tell: Callable[[int], None] = stream.report_sent
        stream.report_sent = self._left
        stream.bulky = True

    def add(self, data: bytes, end: bool) -> None:
        """Queue bytes behind those that are here."""
        stream = self._stream
        if data:
            gather(self._chunks, data)
            self._size += len(data)
            stream.queued += len(data)
        if end:
            self._ended = stream.local_ended = True
        if stream.queued == self._size:
            self._feed()  # the engine has nothing whose leaving would tell us to go on

    def end(self, trailers: CheckedHeaders) -> None:
        """Trailers end the request behind everything else."""
        self._trailers = trailers
        self.add(b"", True)

    def _left(self, n: int) -> None:
        """The engine's part of ``queued`` shrank; ``n`` counts what waits here as if it had left too."""
        stream = self._stream
        waiting = self._size
        in_engine = stream.queued
        stream.queued = in_engine + waiting
        tell = self._tell
        if not in_engine:
            self._feed()
        if n > waiting:
            tell(n - waiting)

    def _feed(self) -> None:
        stream = self._stream
        if stream.reset_code >= 0 or stream.closed:
            return
        conn = stream.conn
        chunks = self._chunks
        room = MAX_FRAME
        fed = 0
        try:
            while chunks and room:
                data = chunks.popleft()
                if len(data) > room:
                    # A view: copying the rest for each frame would cost a large body the square of its length.
                    data = memoryview(data)
                    chunks.appendleft(data[room:])
                    data = data[:room]
                room -= len(data)
                fed += len(data)
                last = self._ended and not chunks and self._trailers is None
                conn.engine.send(stream.id, bytes(data), end_stream=last)
            if not chunks:
                if self._trailers is not None:
                    conn.engine.trailers(stream.id, self._trailers)
                elif self._ended and not fed:
                    conn.engine.send(stream.id, b"", end_stream=True)
                stream.report_sent = self._tell
                stream.bulky = False
                stream.backlog_done()
        except conn.engine_errors:
            stream.local_ended = True  # over in the engine; its end is on the way to us
        self._size -= fed
        if fed:
            conn.waiting.append(stream)
        if not conn.touched:
            conn.flusher.touch(conn)
