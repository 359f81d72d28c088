"""What an HTTP/1.1 connection waits for, and how long it may take. One timer serves all the limits of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.net.deadline import Deadline
from shared.net.http1_response import CONTINUE
from shared.net.untaken import untaken
from shared.net.uploads import late_head_error

if TYPE_CHECKING:
    import asyncio

    from shared.net.http1 import Http1Protocol
    from shared.net.http1_parser import RequestParser
    from shared.net.settings import NetSettings
    from shared.net.uploads import Uploads

# A body is waited for in ``uploads``, all others by the timer.
_NOTHING: Final = 0
_IDLE: Final = 1
_HEAD: Final = 2
_BODY: Final = 3
_STALL: Final = 4
_CLOSE: Final = 5
_LINGER: Final = 6


class Waits:
    """One connection's. ``transport`` is set while there is one."""

    __slots__ = ("_conn", "_deadline", "_left", "_parser", "_phase", "_settings", "_uploads", "transport")

    __deletable__ = ("_conn",)

    def __init__(self, conn: Http1Protocol, settings: NetSettings, uploads: Uploads, parser: RequestParser) -> None:
        self._conn = conn
        self._settings = settings
        self._uploads = uploads
        self._parser = parser
        self._deadline = Deadline(conn.flusher.loop, self._expired)
        self._phase = _NOTHING
        self._left = 0  # bytes that a client had still to take when it was last looked at
        self.transport: asyncio.Transport | None = None

    @property
    def closing(self) -> bool:
        """The end of the connection is waited for."""
        return self._phase == _CLOSE or self._phase == _LINGER

    def request(self, paused: bool) -> None:
        """No answer is running: the client has the next step, to take what was sent if that is ``paused``."""
        settings = self._settings
        parser = self._parser
        if paused:
            if self._phase != _STALL:
                self._watch(_STALL, settings.stall_timeout)
        elif parser.idle:
            if settings.idle_timeout and self._phase != _IDLE:
                self._watch(_IDLE, settings.idle_timeout)
        elif parser.in_head:
            if self._phase != _HEAD:
                self._watch(_HEAD, settings.header_timeout)
        else:
            if parser.expecting:
                parser.continued()
                self._conn.emit(CONTINUE)
            self._phase = _BODY
            self._uploads.progress(self._conn, parser.held)

    def nothing(self) -> None:
        """What was waited for has come, or is not wanted any more."""
        if self._phase == _BODY:
            self._uploads.end(self._conn)
        self._phase = _NOTHING

    def room(self) -> None:
        """The client takes less than is sent."""
        if self._phase == _NOTHING or self._phase == _IDLE:
            self._watch(_STALL, self._settings.stall_timeout)

    def has_room(self) -> None:
        """The client has taken most of it."""
        if self._phase == _STALL:
            self._phase = _NOTHING

    def close(self) -> None:
        """The transport is closing."""
        self._watch(_CLOSE, self._settings.close_timeout)

    def linger(self) -> None:
        """The client may still read the last answer."""
        self._watch(_LINGER, self._settings.close_timeout)

    def stop(self) -> None:
        """The transport is gone. Nothing more is waited for, and the connection is let go of."""
        self.transport = None
        self._phase = _NOTHING
        self._deadline.stop()
        del self._conn

    def _watch(self, phase: int, seconds: float) -> None:
        if self._phase == _BODY:
            self._uploads.end(self._conn)
        self._phase = phase
        transport = self.transport
        if transport is not None and phase in (_STALL, _CLOSE):
            self._left = untaken(transport)
        self._deadline.set(seconds)

    def _expired(self) -> None:
        phase = self._phase
        transport = self.transport
        if phase in (_NOTHING, _BODY) or transport is None:
            return
        self._phase = _NOTHING
        conn, settings = self._conn, self._settings
        count = conn.flusher.counters.count
        if phase == _IDLE:
            count("http_idle")
            conn.end()
        elif phase == _HEAD:
            conn.give_up("http_header_timeout", late_head_error(settings.header_timeout))
        elif phase == _LINGER:
            transport.close()
            self.close()
        elif untaken(transport) != self._left:  # fewer: some are taken; more: what was on its way, which has an end
            self._watch(phase, settings.stall_timeout if phase == _STALL else settings.close_timeout)
        else:
            count("http_write_stalled")
            conn.close()
