"""The client side of an HTTP/2 connection: streams that we open on a peer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final, cast

from mypy_extensions import mypyc_attr

from shared.net.api import CANCEL, ClientSink, Headers
from shared.net.backlog import Backlog
from shared.net.conn import H2Connection
from shared.net.counters import NetCounters
from shared.net.engine import Header
from shared.net.fields import CheckedHeaders, checked
from shared.net.flusher import Flusher
from shared.net.monomorph import own_copies
from shared.net.settings import NetSettings
from shared.net.stream import StreamBase, unheard

_LAST_ID = 1 << 30  # half of the ids there are; a connection is replaced here, long before they run out


class _Nobody:
    """Owner of streams that are over."""

    __slots__ = ()

    def on_response(self, headers: Headers, end: bool) -> None:
        """Of no interest."""

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Never called: see H2ClientProtocol.on_data."""

    def on_response_trailers(self, headers: Headers) -> None:
        """Of no interest."""

    def on_request_sent(self, n: int) -> None:
        """Of no interest."""

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """Of no interest."""


_NOBODY: Final = _Nobody()
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Checked: Final = CheckedHeaders
_unheard: Final = unheard


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientOwner(ABC):
    """Whoever keeps client connections: a pool."""

    @abstractmethod
    def on_ready(self, conn: H2ClientProtocol) -> None:
        """The peer's SETTINGS have come: streams may be opened."""

    @abstractmethod
    def on_leaving(self, conn: H2ClientProtocol) -> None:
        """No new stream may be opened; those that run go on. Called once, also for a connection that just died."""

    @abstractmethod
    def on_gone(self, conn: H2ClientProtocol) -> None:
        """The transport is gone. Called once."""


class H2ClientStream(StreamBase):
    """One request of ours and its answer: a ``ClientStream``."""

    __slots__ = ("_behind", "sink")

    sink: ClientSink
    _behind: Backlog | None

    def __init__(self, conn: H2ClientProtocol, stream_id: int, sink: ClientSink, local_ended: bool) -> None:
        self.conn = conn
        self.id = stream_id
        self.closed = self.remote_ended = self.bulky = False
        self._behind = None
        self.local_ended = self.bodyless = local_ended
        self.queued = self.held = self.taken = 0
        self.reset_code = -1
        self.sink = sink
        self.report_sent = sink.on_request_sent

    def reset(self, code: int) -> None:
        """Abort; without effect when the stream is over, or reset, already."""
        if not self.closed and self.reset_code < 0 and not (self.local_ended and self.remote_ended):
            self.abort(code)

    def hold_back(self, data: bytes, end: bool) -> bool:
        """A client's engine empties one stream before the next: give it no more than a frame where that matters."""
        behind = self._behind
        if behind is None:
            conn = self.conn
            if not conn.paused and conn.engine.queued() + len(data) <= conn.settings.write_high:
                return False  # all of it leaves with the next flush
            self._behind = behind = Backlog(self)
        behind.add(data, end)
        return True

    def trailers(self, headers: Headers) -> None:
        """Queue trailers and end our half."""
        if self._behind is not None and not self.local_ended:
            self._behind.end(headers if type(headers) is _Checked else checked(headers))
        else:
            super().trailers(headers)

    def backlog_done(self) -> None:
        """All of it is in the engine."""
        self._behind = None

    def report_closed(self, code: int, unprocessed: bool) -> None:
        """Tell the owner; a NO_ERROR that came before the response was complete counts as a cancel."""
        sink = self.sink
        if not code and not self.remote_ended:
            code = CANCEL
        self.closed = self.local_ended = self.remote_ended = True
        self.queued = 0
        self.sink = _NOBODY  # no cycle is left for the collector
        self._behind = None
        self.report_sent = _unheard
        sink.on_response_closed(code, unprocessed)


class H2ClientProtocol(H2Connection):
    """One connection of a pool."""

    __slots__ = ("_owner", "grow_at", "leaving", "limit")

    table: dict[int, H2ClientStream]  # type: ignore[assignment]

    def __init__(
        self,
        owner: ClientOwner,
        settings: NetSettings,
        flusher: Flusher,
        counters: NetCounters | None = None,
    ) -> None:
        """``counters`` default to the flusher's."""
        super().__init__("client", settings, flusher, counters)
        self._owner = owner
        self.grow_at = 0.0  # streams from which on a pool dials one more connection
        self.limit = 0  # streams that may be open at once; 0 before the peer's SETTINGS
        self.leaving = False  # opens no more streams

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return len(self.table)

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> H2ClientStream | None:
        """Open a stream; None when the connection can take none (the sink is not called then)."""
        table = self.table
        if self.leaving or len(table) >= self.limit:
            # The engine would queue the request without a word, and forget it on a cancel.
            return None
        try:
            stream_id = self.engine.request(headers if type(headers) is _Checked else checked(headers), end_stream=end)
        except self.engine_errors:
            self._leave()
            return None
        table[stream_id] = stream = H2ClientStream(self, stream_id, sink, end)
        self.fresh.append(stream)
        self.counters.streams_opened += 1
        if stream_id >= _LAST_ID:
            self.retire("ids_used_up")
        if not self.touched:
            self.flusher.touch(self)
        return stream

    def retire(self, reason: str) -> None:
        """Take no new streams, finish those that run, then close; ``reason`` is counted unless it is empty."""
        if self.leaving:
            return
        if reason:
            self.counters.count(reason)
        self._leave()
        self._close_if_idle()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a transport, unless the connection was given up while it was dialled."""
        if self.dead:
            cast(asyncio.Transport, transport).abort()
        else:
            super().connection_made(transport)

    def drop(self) -> None:
        """Give up a connection that is not ready, if it exists at all by now."""
        self.dead = self.leaving = True
        self.vitals.end()
        if hasattr(self, "transport"):
            self.transport.abort()

    # Events.

    def on_request(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """Push is off: no peer opens a stream here."""

    def on_response(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """Response headers go to the stream's owner."""
        stream = self.table.get(stream_id)
        if stream is not None and stream.reset_code < 0:
            if end:
                stream.remote_ended = True
            stream.sink.on_response(_Checked(headers), end)

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        """Response bytes go to the stream's owner."""
        stream = self.table.get(stream_id)
        if stream is None or stream.reset_code >= 0:
            if data:
                self.take_back(stream_id, len(data))
            return
        if end:
            stream.remote_ended = True
        elif not data:
            self.on_oddity()
        stream.held += len(data)
        stream.sink.on_response_data(data, end)

    def on_trailers(self, stream_id: int, headers: tuple[Header, ...]) -> None:
        """Response trailers go to the stream's owner."""
        stream = self.table.get(stream_id)
        if stream is not None and stream.reset_code < 0:
            stream.remote_ended = True
            stream.sink.on_response_trailers(_Checked(headers))

    def on_settings(self) -> None:
        """Learn how many streams the peer allows; the first SETTINGS make the connection ready."""
        first = not self.settled
        super().on_settings()
        if self.dead:
            return
        self.limit = min(self.settings.max_streams, self.engine.peer_max_streams())
        self.grow_at = self.limit * self.settings.grow_at
        if first:
            self._owner.on_ready(self)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """Have the connection replaced; streams that the peer did not take come back as unprocessed."""
        super().on_goaway(last_stream_id, code)
        self._leave()

    def on_dead(self) -> None:
        """No new streams, and none of the old ones."""
        self._leave()

    def on_lost(self) -> None:
        """The transport is gone."""
        self._owner.on_gone(self)

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self._owner.on_leaving(self)
            self.after_stream = self._close_if_idle  # the last stream closes the connection

    def _close_if_idle(self) -> None:
        if not self.table and not self.dead:
            self.flusher.loop.call_soon(self._close_idle)

    def _close_idle(self) -> None:
        # Not at once: this may be the middle of a batch, with acknowledgements of ours still to be written.
        if not self.table:
            self.close()


own_copies(H2ClientStream, "send", "trailers", "consumed", "abort")
own_copies(
    H2ClientProtocol,
    "data_received",
    "flush",
    "report_sent",
    "on_stream_closed",
    "take_back",
    "_report_closed",
    "_report_doomed",
)
