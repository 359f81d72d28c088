"""The slow clock of a connection: is the peer alive, is the window whole, is it time to go?

One timer a connection, armed for the next moment at which something can be due; bytes that arrive only move a number.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from shared.net.api import CANCEL
from shared.net.untaken import untaken

if TYPE_CHECKING:
    from shared.net.conn import H2Connection

KEEPALIVE: Final = b"laya-kal"  # payload of a keep-alive PING
_LONGEST = 30.0  # seconds between two looks
_SOONEST = 0.005
_LOOKS = 10  # at a full transport, in the time after which its peer is given up


class Vitals:
    """Keep-alive, stall limits and window watchdog of one connection."""

    __slots__ = (
        "_closing",
        "_conn",
        "_due",
        "_handle",
        "_kept",
        "_kept_at",
        "_left",
        "_lingering",
        "_loop",
        "_over",
        "_paused_at",
        "_pinged",
        "_stalled",
        "_taken_at",
        "born",
    )

    __deletable__ = ("_conn",)

    def __init__(self, conn: H2Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._conn = conn
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next look is
        self.born = loop.time()
        self._pinged = 0.0  # when we asked; 0: no answer is awaited
        self._paused_at = 0.0
        self._left = -1  # bytes that the peer of a full transport had still to take at the last look; -1: it had room
        self._taken_at = 0.0  # when such a peer took some of them
        self._kept = 0  # which unfinished frame was seen last
        self._kept_at = 0.0  # and since when
        self._lingering: set[int] = set()
        self._stalled: dict[int, tuple[int, float]] = {}  # streams whose bytes wait: how many, and since when so many
        self._closing = False
        self._over = False

    def start(self) -> None:
        """The connection has a transport."""
        self.stop()
        self._arm(min(self._conn.settings.header_timeout, self._conn.settings.keepalive_time or _LONGEST))

    def stop(self) -> None:
        """The transport is gone."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        """The connection is over: lets go of it, so that both are freed now and not when the collector comes by."""
        if not self._over:
            self._over = self._closing = True
            self.stop()
            del self._conn

    def hurry(self, delay: float) -> None:
        """Look again in so many seconds, and decide then when to look next."""
        if not self._closing:
            self.stop()
            self._arm(delay)

    def on_pong(self) -> None:
        """The peer lives; its next silence counts from now."""
        if self._pinged:
            self._pinged = 0.0
            self.hurry(self._conn.settings.keepalive_time)

    def on_pause(self) -> None:
        """The transport is full since now."""
        if self._closing:
            return
        self._paused_at = now = self._loop.time()
        soon = self._silence() / _LOOKS
        if now + soon < self._due:  # else not put off: a transport may be full again and again
            self.hurry(soon)

    def on_close(self) -> None:
        """The transport is closing; see that it ends."""
        self._closing = True
        self.stop()
        self._arm(self._conn.settings.close_timeout)

    def _arm(self, delay: float) -> None:
        self._due = self._loop.time() + delay
        self._handle = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._handle = None
        conn = self._conn
        if self._closing:
            conn.transport.abort()
            return
        now = self._loop.time()
        self._watch_taken(now)
        reason = self._overdue(now)
        if reason:
            conn.abort(reason)
            return
        self._watch_window()
        due = min(self._next(now), conn.on_tick(now), self._watch_stalled(now))
        self._arm_again(min(max(due - now, _SOONEST), _LONGEST))

    def _arm_again(self, delay: float) -> None:
        """Unless that has been done while others were called."""
        if not self._closing and self._handle is None:
            self._arm(delay)

    def _overdue(self, now: float) -> str:
        """Why the connection must be dropped, or ''."""
        conn = self._conn
        settings = conn.settings
        if not conn.settled and now - self.born >= settings.header_timeout:
            return "no_settings"
        if conn.paused:
            return "write_stalled" if now >= self._given_up() else ""
        if conn.align.holding:
            if conn.align.kept != self._kept:
                self._kept, self._kept_at = conn.align.kept, now
            elif now - self._kept_at >= settings.header_timeout:
                return "slow_frame"
        if self._pinged:
            if conn.heard >= self._pinged:
                self._pinged = 0.0
            elif now - self._pinged >= settings.keepalive_timeout:
                return "keepalive_timeout"
        return ""

    def _next(self, now: float) -> float:
        """When something can be due; asks the peer for a sign of life when it is time."""
        conn = self._conn
        settings = conn.settings
        due = now + _LONGEST
        if not conn.settled:
            due = min(due, self.born + settings.header_timeout)
        if conn.paused:
            return min(due, self._given_up(), now + self._silence() / _LOOKS)
        if conn.align.holding:
            due = min(due, self._kept_at + settings.header_timeout)
        if not settings.keepalive_time or not conn.settled:
            return due
        if not self._pinged and now - conn.heard >= settings.keepalive_time:
            self._pinged = now
            conn.ping(KEEPALIVE)
        if self._pinged:
            return min(due, self._pinged + settings.keepalive_timeout)
        return min(due, conn.heard + settings.keepalive_time)

    def _silence(self) -> float:
        """How long a peer may give no sign of life."""
        settings = self._conn.settings
        if not settings.keepalive_time:
            return settings.stall_timeout
        return min(settings.keepalive_time + settings.keepalive_timeout, settings.stall_timeout)

    def _given_up(self) -> float:
        """When the peer of a full transport is given up, if nothing more is seen of it.

        A PING would wait behind what it does not take, so none is sent; but bytes that it takes, or sends, are signs of
        life as good as an answer.
        """
        conn = self._conn
        limit = conn.settings.stall_timeout
        stalled = max(self._paused_at, self._taken_at) + limit
        silence = self._silence()
        if silence >= limit:
            return stalled
        return min(stalled, max(conn.heard, self._taken_at) + silence)

    def _watch_taken(self, now: float) -> None:
        """Note whether the peer has taken bytes of a full transport since the last look."""
        conn = self._conn
        before = self._left
        self._left = left = untaken(conn.transport) if conn.paused else -1
        if before < 0 or left == before:
            return
        # At the last look at the earliest. Not at that look itself, which may be long past if the loop was held up.
        self._taken_at = now - self._silence() / _LOOKS
        if self._pinged:
            self._pinged = now  # the answer is behind these bytes

    def _watch_stalled(self, now: float) -> float:
        """Reset streams whose peer opens no window for what waits here; when to look again.

        The connection lives, so nothing else would ever end them, and each holds up to a stream's window of bytes.
        """
        conn = self._conn
        limit = conn.settings.stall_timeout
        due = now + _LONGEST
        seen: dict[int, tuple[int, float]] = {}
        for stream in list(conn.stalled.values()):
            queued, since = self._stalled.get(stream.id, (-1, now))
            if queued != stream.queued:
                since = now
            if now - since < limit:
                seen[stream.id] = (stream.queued, since)
                due = min(due, since + limit)
            elif stream.reset_code < 0 and not stream.closed:
                conn.counters.count("window_stalled")
                stream.abort(CANCEL)
        self._stalled = seen
        return due

    def _watch_window(self) -> None:
        """Have the connection replaced when bytes of its window are lost for good, and forget streams that are."""
        conn = self._conn
        held = 0
        lingering = set()
        for stream in list(conn.table.values()):
            held += stream.held
            if stream.closed:
                # Reset by us, and the engine has still not said that it is over: it will not (a request that the
                # engine had to queue, cancelled there).
                if stream.id in self._lingering:
                    del conn.table[stream.id]
                else:
                    lingering.add(stream.id)
        # While paused a reset cannot leave, so its stream may linger rightly.
        self._lingering = set() if conn.paused else lingering
        if conn.window_left() + held < conn.settings.connection_window // 2:
            conn.retire("window_lost")
