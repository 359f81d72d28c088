"""An HTTP/1.1 client's connection: requests in, answers out, in order, with back-pressure both ways.

One answer runs at a time; requests that a client sends ahead wait for their turn, a few of them parsed, the rest in
the socket. Nothing is read while more waits here than fits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import ERROR
from time import perf_counter
from typing import cast

from shared import logging
from shared.errors import LayaError
from shared.net.address import peer_name, tear
from shared.net.api import HttpHandler
from shared.net.flusher import Flusher
from shared.net.http1_exchange import Http1Exchange
from shared.net.http1_known import KnownHeads
from shared.net.http1_queue import RequestQueue
from shared.net.http1_response import HttpDate, last_answer
from shared.net.http1_waits import Waits
from shared.net.settings import NetSettings
from shared.net.turns import TURN
from shared.net.uploads import Uploads, crowded_error, stalled_error

_log = logging.get("http1")


class Http1Protocol:
    """One client's connection, an ``asyncio.Protocol`` by its methods (see ``conn``).

    Give it a transport by ``connection_made``, also one that is already open.
    """

    __slots__ = (
        "_current",
        "_ending",
        "_handler",
        "_last",
        "_on_close",
        "_out",
        "_owed",
        "_paused",
        "_queue",
        "_reading",
        "_running",
        "_settings",
        "_transport",
        "_uploads",
        "_waits",
        "date",
        "draining",
        "flusher",
        "peer",
        "touched",
    )

    def __init__(
        self,
        handler: HttpHandler,
        settings: NetSettings,
        flusher: Flusher,
        uploads: Uploads,
        on_close: Callable[[Http1Protocol], None] | None = None,
        date: HttpDate | None = None,
        heads: KnownHeads | None = None,
    ) -> None:
        """``date`` and ``heads`` are shared with other connections."""
        self.touched = False
        self.peer = ""  # address of the client, for logs
        self.draining = False  # the next answer to begin is the last, and says so
        self.flusher = flusher
        self.date = date if date is not None else HttpDate()
        self._handler = handler
        self._settings = settings
        self._uploads = uploads
        self._on_close = on_close
        self._queue = RequestQueue(self, settings, uploads, heads)
        self._waits = Waits(self, settings, uploads, self._queue.parser)
        self._transport: asyncio.Transport | None = None
        self._current: Http1Exchange | None = None
        self._out: list[bytes] = []
        self._owed = 0
        self._paused = self._running = self._ending = self._last = False
        self._reading = True

    @property
    def protocol(self) -> asyncio.Protocol:
        """The connection as what a transport takes."""
        return cast(asyncio.Protocol, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is open."""
        self._transport = self._waits.transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_high)
        self.peer = peer_name(transport)
        self.flusher.counters.connections_accepted += 1
        self._waits.request(False)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._ending:
            return
        flusher = self.flusher
        queue = self._queue
        until = perf_counter() + TURN
        outer = flusher.enter()
        try:
            queue.put(data)
            if self._current is None:
                self._run()
            if queue.full:
                self._read(False)
            elif perf_counter() > until:  # a body in tiny chunks, say: the kernel's next read waits for others
                self._read(False)
                flusher.loop.call_soon(self._go_on)
        finally:
            if outer:
                flusher.defer(self)

    def eof_received(self) -> None:
        """The client is gone: nobody waits for answers that are not complete. The transport closes by itself."""
        self._ending = True
        self._abandon()
        self._waits.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        self._ending = True
        self._transport = None
        self._waits.stop()
        self._abandon()
        self._out.clear()
        self._queue.release()
        self.flusher.counters.connections_closed += 1
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        """The client takes less than we send."""
        self._paused = True
        self._waits.room()

    def resume_writing(self) -> None:
        """The client has taken most of what was sent."""
        self._paused = False
        self._waits.has_room()
        self._go_on()

    def flush(self) -> None:
        """Hand what was queued to the transport in one write; the Flusher calls it."""
        self.touched = False
        transport = self._transport
        if transport is None or self._paused:
            return
        out = self._out
        if out:
            self._out = []
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._owed:
            self._drained()
        if self._ending and not self._out:
            self._shut()

    @property
    def streams(self) -> int:
        """Answers that are running: one at most."""
        return int(self._current is not None)

    def go_away(self) -> None:
        """Have the next answer to begin be the last, and say so: a close while idle could cross a request."""
        self.draining = True

    def close_idle(self) -> None:
        """Close after the answer that is running or the request that is arriving; now when there is neither."""
        self.draining = self._last = True
        if self._current is None and self._queue.empty:
            self.end()

    def close(self) -> None:
        """Close now; running answers are cut off and their owners told."""
        self._ending = True
        self._abandon()
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    # Called by the running exchange.

    def emit(self, data: bytes) -> None:
        """Send bytes of a complete answer, behind what is queued."""
        if self._out:
            self._out.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def queue(self, data: bytes, counted: int) -> None:
        """Send bytes with this batch; ``counted`` of them are reported to ``on_drain``."""
        if self._transport is None:
            return
        if data:
            self._out.append(data)
        self._owed += counted
        if not self.touched:
            self.flusher.touch(self)

    def queued(self, exchange: Http1Exchange) -> int:
        """Body bytes of an exchange that are not in the transport yet."""
        return self._owed if self._current is exchange else 0

    def ended(self, keep: bool) -> None:
        """The running answer is complete; ``keep`` lets the connection serve another request."""
        self._current = None
        self._owed = 0
        if not keep or self._last:
            self.end()
        else:
            self._run()

    def end(self) -> None:
        """Take no more input; close once all that is queued has been sent."""
        self._ending = True
        self._queue.clear()
        if not self._out:
            self._shut()
        elif not self.touched:
            self.flusher.touch(self)

    def cut(self, delimited: bool) -> None:
        """End an incomplete answer; when it is not ``delimited`` only a TCP reset tells the client that it is."""
        self._current = None
        transport = self._transport
        self.end()
        if delimited or transport is None:
            return
        self._out.clear()
        tear(transport)

    def _run(self) -> None:
        """Answer the requests that are here, one by one, until one has to be waited for or the turn is over."""
        if self._running:
            return
        self._running = True
        queue = self._queue
        until = 0.0
        try:
            while self._free():
                exchange = queue.next()
                if exchange is not None:
                    self._dispatch(exchange)
                    if queue.more and self._free():
                        now = perf_counter()
                        if not until:
                            until = now + TURN
                        if now > until:
                            self.flusher.counters.turns_over += 1
                            self.flusher.loop.call_soon(self._go_on)
                            break
                elif queue.refusal is not None:
                    self._refuse(queue.refusal)
                else:
                    break
        finally:
            self._running = False
        if self._current is None and not self._ending:
            self._waits.request(self._paused)
        if not (self._reading or queue.full):
            self._read(True)

    def _free(self) -> bool:
        """A request can be answered now."""
        return self._current is None and not (self._paused or self._ending)

    def _go_on(self) -> None:
        outer = self.flusher.enter()
        try:
            self.flush()
            if self._current is None:
                self._run()
            elif not (self._reading or self._queue.full):
                self._read(True)
        finally:
            if outer:
                self.flusher.leave()

    def _dispatch(self, exchange: Http1Exchange) -> None:
        self._current = exchange
        self._waits.nothing()
        try:
            self._handler(exchange)
        except Exception:
            logging.event(_log, ERROR, "http_handler_failed", exc_info=True, target=exchange.target.decode("latin-1"))
            exchange.fail()

    def _refuse(self, error: LayaError) -> None:
        """Say why, and close so that the answer is not lost: a reset follows a close with input unread."""
        self.date.refresh()
        self.emit(last_answer(error, self.date.line))
        self._ending = True
        self._waits.linger()
        self.flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        self._read(True)

    def _abandon(self) -> None:
        """The client is gone: tell the owner of an answer that is not complete, once."""
        self._uploads.end(self)
        self._queue.clear()
        exchange = self._current
        if exchange is None:
            return
        self._current = None
        self.flusher.counters.count("http_client_gone")
        outer = self.flusher.enter()
        try:
            exchange.lost()
        except Exception:
            logging.event(_log, ERROR, "http_owner_failed", exc_info=True)
        finally:
            if outer:
                self.flusher.leave()

    def _drained(self) -> None:
        owed, self._owed = self._owed, 0
        current = self._current
        if current is None or current.on_drain is None:
            return
        try:
            current.on_drain(owed)
        except Exception:
            logging.event(_log, ERROR, "http_owner_failed", exc_info=True)

    def _shut(self) -> None:
        if self._transport is not None and not self._waits.closing:
            self._transport.close()
            self._waits.close()

    def _read(self, on: bool) -> None:
        transport = self._transport
        if on != self._reading and transport is not None and not transport.is_closing():
            self._reading = on
            (transport.resume_reading if on else transport.pause_reading)()

    def stalled(self) -> None:
        """The body did not go on in time."""
        self.give_up("http_body_timeout", stalled_error())

    def crowded_out(self) -> None:
        """All bodies together are too much, and this is the largest."""
        self.give_up("http_crowded_out", crowded_error())

    def give_up(self, reason: str, error: LayaError) -> None:
        """Refuse the request that is arriving; ``reason`` is counted."""
        self.flusher.counters.count(reason)
        self._waits.nothing()
        self._queue.give_up(error)
        self._run()
