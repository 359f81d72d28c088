"""One HTTP/2 connection over a transport, what server and client have in common.

The connection owns its engine and its table of streams. Rules that hold here and nowhere else:

* whole frames in (align.py); the engine's events are handled in full before anything is flushed (flusher.py);
* ``take`` is never called while the transport is paused, and events are dispatched after each ``take``;
* bytes given to ``send`` are reported to their owner once the engine has given them to the transport;
* every stream's owner hears of its end exactly once, also when the connection fails inside a batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from shared.net.address import peer_name
from shared.net.align import FrameAligner
from shared.net.api import CANCEL, ENHANCE_YOUR_CALM, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM
from shared.net.budget import Budgets
from shared.net.engine import Role, goaway_frame, make_engine
from shared.net.metered import Metered
from shared.net.turns import AT_ONCE, Turns
from shared.net.vitals import Vitals

if TYPE_CHECKING:
    from shared.net.counters import NetCounters
    from shared.net.flusher import Flusher
    from shared.net.settings import NetSettings
    from shared.net.stream import StreamBase

log = logging.getLogger(__name__)

_PREFACE = 24


class H2Connection(Metered):
    """Base of ``H2ServerProtocol`` and ``H2ClientProtocol``: an ``asyncio.Protocol`` by its methods.

    Not by descent, because a class that is compiled can have no base that is not.
    """

    __slots__ = (
        "_cut",
        "_feed",
        "_sent",
        "after_stream",
        "align",
        "dead",
        "doomed",
        "engine_errors",
        "engine_send",
        "finishing",
        "flusher",
        "fresh",
        "heard",
        "last_peer_stream",
        "late_resets",
        "peer",
        "role",
        "settings",
        "settled",
        "table",
        "touched",
        "transport",
        "turns",
    )

    def __init__(self, role: Role, settings: NetSettings, flusher: Flusher, counters: NetCounters | None) -> None:
        super().__init__()
        self.role = role
        self.settings = settings
        self.flusher = flusher
        self.counters = counters if counters is not None else flusher.counters
        self.table: dict[int, StreamBase] = {}
        self.doomed: list[StreamBase] = []  # streams we have reset, whose owners have yet to hear of it
        # Resets made while the transport was full: in the engine they would count as open streams all the while.
        self.late_resets: list[tuple[int, int]] = []
        self.finishing: list[StreamBase] = []  # streams whose answers ended before their requests
        self.fresh: list[StreamBase] = []  # streams we have opened of which nothing can have left yet
        self.after_stream: Callable[[], None] | None = None  # called whenever a stream has ended
        self.touched = False
        self.dead = False  # nothing goes in or out any more
        self.parting = False  # the peer said GOAWAY
        self.settled = False  # the peer's first SETTINGS have come
        self.last_peer_stream = self.pings_out = 0
        self.peer = ""
        self.turns: Turns | None = None
        self.transport: asyncio.Transport
        self._cut = False  # the last bytes written may end inside a frame
        self._sent = 0
        self._now = flusher.loop.time
        self.heard = now = self._now()
        self.budgets = Budgets(settings, now)
        self.engine = engine = make_engine(role, settings)
        self.align = FrameAligner(engine.receive, _PREFACE if role == "server" else 0)
        self._feed = self.align.feed
        self.engine_send = engine.send
        self.engine_errors = engine.errors
        self.vitals = Vitals(self, flusher.loop)

    @property
    def protocol(self) -> asyncio.Protocol:
        """The connection as what a transport takes."""
        return cast(asyncio.Protocol, self)

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a transport; our SETTINGS go out at once."""
        self.transport = cast(asyncio.Transport, transport)
        self.peer = peer_name(transport)
        self.transport.set_write_buffer_limits(high=self.settings.write_high)
        self.transport.write(self.engine.hello)
        self.vitals.start()

    def data_received(self, data: bytes) -> None:
        """Handle everything that the bytes cause, here and on other connections."""
        if self.dead:
            return
        self.heard = self._now()
        turns = self.turns
        if turns is not None and (turns.rest or len(data) > AT_ONCE):
            turns.take(data)
            return
        flusher = self.flusher
        batch = flusher.enter()
        try:
            try:
                self._feed(data)
            except self.engine_errors as error:
                self.broken(error)
                return
            self.engine.dispatch(self)
        finally:
            if batch:
                flusher.leave(self)
            elif not self.touched:
                flusher.touch(self)

    def eof_received(self) -> bool:
        """The peer sends no more: nothing can be answered for long, so the transport is closed."""
        return False

    def pause_writing(self) -> None:
        """The transport is full."""
        self.paused = True
        self.vitals.on_pause()

    def resume_writing(self) -> None:
        """The transport has room."""
        self.paused = False
        if not self.touched:
            self.flusher.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone: every owner that has not heard hears now."""
        batch = self.flusher.enter()
        try:
            if not self.dead:
                self.dead = True
                self.on_dead()
                self.engine.dispatch(self)
            self._sweep()
        finally:
            self.vitals.end()
            self.turns = None
            self.counters.connections_closed += 1
            self.on_lost()
            if batch:
                self.flusher.leave()

    # What the sides add.

    def on_dead(self) -> None:
        """Nothing goes in or out any more; owners are about to be told. Called once, before ``on_lost``."""

    def on_lost(self) -> None:
        """The connection is over and its table empty; called once."""

    def on_tick(self, now: float) -> float:
        """Time for whatever the side has to do now and then; returns when it is due again at the latest."""
        return now + 3600.0

    def retire(self, reason: str) -> None:
        """Take no new streams, finish those that run, then close; ``reason`` is counted."""
        raise NotImplementedError

    def flush(self) -> None:
        """Give the transport what the engine has, and tell owners what has left."""
        due = self.touched or bool(self.waiting) or self.squeezed or bool(self.finishing)
        self.touched = False
        if self.doomed:
            self._report_doomed()
        if self.paused | self.dead:  # not "or": mypy would take both for settled until the end
            return
        engine = self.engine
        most = self.settings.flush_bytes
        while True:
            try:
                if self.late_resets:
                    due = self._submit_resets()
                if not due and not engine.wants_write():
                    return  # the own flush after a read that left nothing to say
                out = engine.take(most)
            except self.engine_errors as error:
                self.fail("engine_error", str(error))
                return
            size = len(out)
            if size:
                if self.fresh:
                    self.fresh = []
                self._sent += size
                self._cut = size >= most
                self.transport.write(out)
            if engine.dispatch(self) and self.dead:
                return
            if self.waiting or self.squeezed:
                self.report_sent(size >= most)
            if size < most:
                break
            if self.paused:
                return
        if self.finishing and not self.paused:
            self.finish()  # for the same reason as ``late_resets``

    def finish(self) -> None:
        """The engine has nothing left that it may send now, and ``finishing`` is not empty."""

    def _submit_resets(self) -> bool:
        resets = self.late_resets
        self.late_resets = []
        for stream_id, code in resets:
            if stream_id in self.table:
                self.engine.reset(stream_id, code)
        return True

    def _report_doomed(self) -> None:
        doomed = self.doomed
        self.doomed = []
        for stream in doomed:
            if not stream.closed:
                if stream.held:
                    held, stream.held = stream.held, 0
                    self.take_back(stream.id, held)
                self._report_closed(stream, stream.reset_code, False)

    # The engine's events that are the same on both sides.

    def on_stream_closed(self, stream_id: int, code: int, local: bool) -> None:
        """Settle a stream's account and tell its owner."""
        stream = self.table.pop(stream_id, None)
        if stream is None:
            return
        if self.stalled:
            self.stalled.pop(stream_id, None)
        held = stream.held
        if held:
            # Its owner acknowledges no more; the connection's window needs these bytes back.
            stream.held = 0
            self.take_back(stream_id, held)
        if code and stream.reset_code < 0 and not local:
            self.counters.streams_reset += 1
            self.on_reset_by_peer(stream)
        if not stream.closed:
            # A local refusal is final (a header block too large to send), unless it is for the peer's GOAWAY.
            unprocessed = code == REFUSED_STREAM and stream.reset_code < 0 and (not local or self.parting)
            stream.report_closed(code, unprocessed)
        if self.after_stream is not None:
            self.after_stream()

    def on_window(self, stream_id: int) -> None:
        """Have those who may go on looked at by the coming flush."""
        if stream_id and self.stalled:
            self.unstall(stream_id)
        windows = self.budgets.windows
        if not windows.spend(self._now()):
            windows.earn(self._sent / 256)
            self._sent = 0
            if not windows.spend(self._now()):
                self.calm("window_update_flood")

    def on_settings(self) -> None:
        """New settings may open windows; look at every stalled stream once."""
        self.settled = True
        self.unstall_all()
        if not self.budgets.settings.spend(self._now()):
            self.calm("settings_flood")

    def on_end(self, code: int) -> None:
        """The engine is done with this connection: what it gave has been written, so close."""
        if not self.dead:
            if code:
                self.counters.count("flood" if code == ENHANCE_YOUR_CALM else "protocol_error")
                log.info("connection with %s ends: HTTP/2 error %d", self.peer, code)
            self._shut(None)

    def on_fault(self, stream_id: int, error: Exception) -> None:
        """An owner's bug costs its own stream, not the connection."""
        self.counters.count("owner_fault")
        log.error("stream %d of %s: its owner failed; the stream is reset", stream_id, self.peer, exc_info=error)
        stream = self.table.get(stream_id)
        if stream is not None and stream.reset_code < 0 and not self.dead:
            stream.abort(INTERNAL_ERROR)

    def ping(self, payload: bytes) -> None:
        """Ask for a sign of life; eight bytes, which come back in ``on_pong``."""
        try:
            self.engine.ping(payload)
        except self.engine_errors:
            return  # the connection is ending
        self.counters.pings_sent += 1
        self.pings_out += 1
        if not self.touched:
            self.flusher.touch(self)

    def window_left(self) -> int:
        """Bytes the peer may still send on the connection."""
        try:
            return self.engine.local_window()
        except self.engine_errors:
            return self.settings.connection_window  # the connection is ending

    def take_back(self, stream_id: int, n: int) -> None:
        """Acknowledge received bytes that nobody wants."""
        try:  # noqa: SIM105 - suppress() costs more than the call
            self.engine.acknowledge(n, stream_id)
        except self.engine_errors:
            pass  # the connection is ending

    def _report_closed(self, stream: StreamBase, code: int, unprocessed: bool) -> None:
        try:
            stream.report_closed(code, unprocessed)
        except Exception as error:
            self.counters.count("owner_fault")
            log.error("stream %d of %s: its owner failed while it was closed", stream.id, self.peer, exc_info=error)

    # The end.

    def calm(self, reason: str) -> None:
        """Cut off a peer that asks too much."""
        self.fail(reason, "the peer exceeds its budget", ENHANCE_YOUR_CALM)

    def broken(self, error: Exception) -> None:
        """The engine takes no more of what the peer sends."""
        if isinstance(error, self.engine.floods):
            self.fail("flood", str(error), ENHANCE_YOUR_CALM)
        else:
            self.fail("protocol_error", str(error))

    def fail(self, reason: str, detail: str, code: int = INTERNAL_ERROR) -> None:
        """Say GOAWAY by hand, close, and tell every owner; ``reason`` is counted, ``detail`` is for the log."""
        if self.dead:
            return
        self.counters.count(reason)
        log.info("connection with %s ends: %s (%s)", self.peer, reason, detail)
        self._shut(code)

    def close(self) -> None:
        """Close now. What the transport holds is still sent, for ``close_timeout`` at most."""
        if not self.dead:
            self._shut(NO_ERROR)

    def abort(self, reason: str) -> None:
        """Drop a connection whose peer is not there any more."""
        if not self.dead:
            self.counters.count(reason)
            self.dead = True
            self.on_dead()
        self.transport.abort()

    def _shut(self, code: int | None) -> None:
        self.dead = True
        self.on_dead()
        transport = self.transport
        batch = self.flusher.enter()
        try:
            # Events that came before the failure are still true, and some may close streams in a better way.
            self.engine.dispatch(self)
            if not transport.is_closing():
                if code is not None and not self._cut:
                    transport.write(goaway_frame(self.last_peer_stream, code))
                    self.counters.goaways_sent += 1
                transport.close()
            self.vitals.on_close()
            self._sweep()
        finally:
            if batch:
                self.flusher.leave()

    def _sweep(self) -> None:
        table = self.table
        self.table = {}
        self.forget_all()
        self.doomed = []
        fresh = self.fresh
        self.fresh = []
        for stream in table.values():
            if not stream.closed:
                self._report_closed(stream, CANCEL, stream in fresh and stream.reset_code < 0)
