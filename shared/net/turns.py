"""Turns: one client that sends a thousand requests at once does not make all others wait for every one of them.

What a client sends is handled a few frames at a time. When that has taken a turn's time, the rest waits, with reading
stopped, until the event loop has been round the other connections. A peer that sends little never gets here.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shared.net.conn import H2Connection

SLICE: Final = 2048  # bytes of frames handled between two looks at the clock; a longer frame is handled whole
AT_ONCE: Final = 3072  # a read of at most this many bytes is no more than a turn, nearly always
TURN = 0.002  # seconds


class Turns:
    """What one connection has received and not been given time for: at most what one read delivers."""

    __slots__ = ("_conn", "rest")

    def __init__(self, conn: H2Connection) -> None:
        self._conn = conn
        self.rest = b""

    def take(self, data: bytes) -> None:
        """Handle as much as fits into a turn."""
        if self.rest:
            self.rest += data  # was on its way when reading stopped
            return
        conn = self._conn
        align, flusher = conn.align, conn.flusher
        until = perf_counter() + TURN
        left = memoryview(data)
        batch = flusher.enter()
        try:
            while left:
                cut = align.cut(left, SLICE)
                try:
                    align.feed(left[:cut])
                except conn.engine_errors as error:
                    conn.broken(error)
                    return
                conn.engine.dispatch(conn)
                if conn.dead:
                    return
                left = left[cut:]
                if left and perf_counter() > until:
                    self._wait_with(bytes(left))
                    return
        finally:
            if batch:
                flusher.leave(conn)
            elif not conn.touched:
                flusher.touch(conn)

    def _wait_with(self, data: bytes) -> None:
        conn = self._conn
        self.rest = data
        conn.counters.turns_over += 1
        if not conn.transport.is_closing():
            conn.transport.pause_reading()
        conn.flusher.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        conn = self._conn
        data, self.rest = self.rest, b""
        if conn.dead:
            return
        conn.heard = conn.flusher.loop.time()
        self.take(data)
        if not self.rest and not conn.dead and not conn.transport.is_closing():
            conn.transport.resume_reading()
