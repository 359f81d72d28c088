"""What a stream of either side does: send with back-pressure, acknowledge, end, reset."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shared.net.fields import CheckedHeaders, checked
from shared.net.settings import MAX_FRAME

if TYPE_CHECKING:
    from shared.net.api import Headers
    from shared.net.conn import H2Connection

# Acknowledgements are given to the engine in lumps of at least this: it sends window at half of a stream's 64 KiB, so
# a small message costs an addition instead of two calls and a flush.
ACK_LUMP: Final = 8192
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Checked: Final = CheckedHeaders


def unheard(n: int) -> None:
    """Nobody wants to know what left."""


class StreamBase:
    """State that server and client streams share. Slots are read by the connection, and set by the subclasses."""

    __slots__ = (
        "bodyless",
        "bulky",
        "closed",
        "conn",
        "held",
        "id",
        "local_ended",
        "queued",
        "remote_ended",
        "report_sent",
        "reset_code",
        "taken",
    )

    conn: H2Connection
    id: int
    bulky: bool  # more than a frame was queued at once; see hold_back
    bodyless: bool  # the headers were all we sent
    closed: bool  # the owner has been told of the end
    local_ended: bool  # nothing more can be sent: ended, reset or closed
    remote_ended: bool  # the peer's half is over
    queued: int  # bytes given to ``send`` that have not left the engine
    held: int  # bytes received and not acknowledged to the engine
    taken: int  # of these, bytes the owner has taken
    report_sent: Callable[[int], None]  # the owner's ear for bytes that left
    reset_code: int  # code we reset it with, or -1

    def report_closed(self, code: int, unprocessed: bool) -> None:
        """Tell the owner of the end, once, and let go of it. ``unprocessed``: the peer never saw the request."""
        raise NotImplementedError

    def send(self, data: bytes, end: bool = False) -> None:
        """Queue bytes; dropped when our half is over already."""
        if self.local_ended:
            return
        conn = self.conn
        queued = self.queued + len(data)
        if (queued > MAX_FRAME or self.bulky) and self.hold_back(data, end):
            return
        try:
            conn.engine_send(self.id, data, end_stream=end)
        except conn.engine_errors:
            self.local_ended = True  # over in the engine; its end is on the way to us
        else:
            if data:
                if not self.queued:
                    conn.waiting.append(self)
                self.queued = queued
            if end:
                self.local_ended = True
                if not self.remote_ended:
                    self.ended()
        if not conn.touched:
            conn.flusher.touch(conn)

    def trailers(self, headers: Headers) -> None:
        """Queue trailers and end our half."""
        if self.local_ended:
            return
        conn = self.conn
        self.local_ended = True
        try:
            conn.engine.trailers(self.id, headers if type(headers) is _Checked else checked(headers))
        except conn.engine_errors:
            pass  # as in send
        else:
            if not self.remote_ended:
                self.ended()
        if not conn.touched:
            conn.flusher.touch(conn)

    def consumed(self, n: int) -> None:
        """The owner has taken n of the bytes it was given."""
        taken = self.taken + n
        if taken < ACK_LUMP:
            self.taken = taken
            return
        if self.closed:
            return  # what was held has been acknowledged
        conn = self.conn
        self.taken = 0
        if taken > self.held:
            taken = self.held
        self.held -= taken
        conn.take_back(self.id, taken)
        if not conn.touched:
            conn.flusher.touch(conn)

    def abort(self, code: int) -> None:
        """Reset; the owner is told at the end of the batch."""
        conn = self.conn
        self.local_ended = self.remote_ended = True
        self.reset_code = code
        if conn.paused:
            conn.late_resets.append((self.id, code))
        else:
            with suppress(*conn.engine_errors):  # over in the engine already
                conn.engine.reset(self.id, code)
        conn.doomed.append(self)
        if not conn.touched:
            conn.flusher.touch(conn)

    def ended(self) -> None:
        """Our half has just been ended in the engine, before the peer's."""

    def hold_back(self, data: bytes, end: bool) -> bool:
        """More than a frame is queued: see that others get their turns. True when the bytes have been dealt with."""
        raise NotImplementedError
