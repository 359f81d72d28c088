"""Connections to one address, dialled ahead and replaced when they end."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
from collections.abc import Callable
from dataclasses import replace

from shared.net.address import Address
from shared.net.api import ClientSink, ClientStream, Headers
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.counters import NetCounters
from shared.net.flusher import Flusher
from shared.net.handover import Handover
from shared.net.settings import NetSettings

log = logging.getLogger(__name__)

_STABLE = 1.0  # a connection that lived so many seconds is replaced without a pause
_SURPLUS_AFTER = 30.0  # seconds of low load before one connection too many is let go


class Pool(ClientOwner):
    """An Upstream. ``address`` is ``host:port``, ``[v6]:port`` or ``unix:/path``.

    ``on_state(up)`` is called when the first connection is ready and when the last one that takes streams is gone; not
    when that said GOAWAY and its successor comes at once: requests wait for that (handover.py).
    ``on_room()`` once after ``open`` returned None, when a stream can be opened again. Both may be called in the
    middle of a batch. ``server_hostname`` is the name to verify in the peer's certificate, the host by default.
    Raises ValueError for an address that makes no sense.
    """

    def __init__(
        self,
        address: str,
        settings: NetSettings,
        flusher: Flusher,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        on_state: Callable[[bool], None] | None = None,
        on_room: Callable[[], None] | None = None,
        counters: NetCounters | None = None,
    ) -> None:
        self.address = address
        self._where = Address.parse(address)
        # The kernel tells at once when the other end of a Unix socket is gone, and a stock gRPC server there would take
        # PINGs on a quiet connection for abuse.
        self.settings = replace(settings, keepalive_time=0.0) if self._where.path else settings
        self.counters = counters if counters is not None else flusher.counters
        self.on_state = on_state
        self.on_room = on_room
        self.last_error = ""  # why the last dial failed; empty once one succeeded
        self._flusher = flusher
        self._tls = tls
        self._hostname = server_hostname
        self._ready: list[H2ClientProtocol] = []
        self._leaving: set[H2ClientProtocol] = set()  # no new streams, transport still there
        self._wanted = settings.connections
        self._failures = 0
        self._starved = False
        self._handover: Handover | None = None  # the last connection is leaving, the next being dialled
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._work = asyncio.Event()  # the keeper should look
        self._quiet = asyncio.Event()  # a connection went

    @property
    def connected(self) -> bool:
        """Whether a connection takes streams."""
        return bool(self._ready)

    @property
    def connections(self) -> int:
        """Connections that take streams."""
        return len(self._ready)

    @property
    def silence(self) -> float:
        """Seconds since any connection brought a byte; inf without one."""
        heard = max((conn.heard for conn in (*self._ready, *self._leaving)), default=-math.inf)
        return self._flusher.loop.time() - heard

    @property
    def streams(self) -> int:
        """Streams in flight, on connections that are ending too."""
        return sum(len(conn.table) for conn in (*self._ready, *self._leaving))

    def start(self) -> None:
        """Begin to dial; needs a running event loop. Again is harmless."""
        if self._keeper is None and not self._closed:
            self._keeper = self._flusher.loop.create_task(self._keep(), name=f"pool {self.address}")

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        """Open a stream on the least loaded connection; None when none can take it now (``on_room`` tells when)."""
        ready = self._ready
        while True:
            best: H2ClientProtocol | None = None
            least = 1 << 30
            for conn in ready:
                load = len(conn.table)
                if load < least and load < conn.limit:
                    best, least = conn, load
            if best is None:
                if self._handover is not None:
                    return self._handover.hold(headers, sink, end)
                self._starve()
                return None
            stream = best.open(headers, sink, end)
            if stream is not None:
                if least >= best.grow_at:
                    self._grow()
                return stream
            # It has just turned out to be leaving, and has told us so; try the others.

    async def close(self, grace: float = 0.0) -> None:
        """Take no new streams, wait up to ``grace`` seconds for those in flight, then close everything."""
        self._closed = True
        self._end_handover(None)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        for conn in list(self._ready):
            conn.retire("")
        await self._until(lambda: not self._leaving, grace)
        for conn in list(self._leaving):
            conn.close()
        await self._until(lambda: not self._leaving, self.settings.close_timeout)
        for conn in list(self._leaving):
            conn.transport.abort()
        await self._until(lambda: not self._leaving, 1.0)

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait for something that a stream's or a connection's end brings about."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            pass

    # What connections tell.

    def on_ready(self, conn: H2ClientProtocol) -> None:
        """Use the connection."""
        if self._closed:
            self._leaving.add(conn)
            conn.retire("")
            return
        self.last_error = ""
        self._ready.append(conn)
        self._work.set()
        if self._handover is not None:
            self._end_handover(conn)
        elif len(self._ready) == 1 and self.on_state is not None:
            self.on_state(True)
        self._feed()

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        """Use it no more, and have it replaced."""
        if conn in self._ready:
            self._ready.remove(conn)
            self._leaving.add(conn)
            if self._flusher.loop.time() - conn.vitals.born >= _STABLE:
                self._failures = 0
            else:
                self._failures += 1
            if not self._ready:
                if conn.dead or self._closed:
                    self._down()
                else:
                    settings = self.settings
                    self._handover = Handover(
                        self._flusher.loop, settings.connect_timeout, settings.max_streams, self._no_successor
                    )
        self._work.set()

    def on_gone(self, conn: H2ClientProtocol) -> None:
        """The transport is gone."""
        self._leaving.discard(conn)
        self._quiet.set()

    # Between the last connection and the next.

    def _end_handover(self, conn: H2ClientProtocol | None) -> None:
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.end(conn)

    def _no_successor(self) -> None:
        """The peer that said GOAWAY is not to be had again."""
        if self._handover is not None:
            self._end_handover(None)
            self._down()

    def _down(self) -> None:
        if self.on_state is not None:
            self.on_state(False)

    # How many connections.

    def _grow(self) -> None:
        """The load nears what the connections may carry."""
        if self._wanted == len(self._ready) < self.settings.max_connections:
            self._wanted += 1
            self._work.set()

    def _starve(self) -> None:
        if self.on_room is not None:
            self._starved = True
            for conn in self._ready:
                conn.after_stream = self._feed
        if self._ready:
            self._grow()

    def _feed(self) -> None:
        """There may be room for those who were sent away."""
        if not self._starved or not any(len(conn.table) < conn.limit for conn in self._ready):
            return
        self._starved = False
        for conn in self._ready:
            conn.after_stream = None
        if self.on_room is not None:
            self.on_room()

    def _shrink(self) -> None:
        """Let one connection go when the others would carry the load with ease."""
        if self._wanted <= self.settings.connections or len(self._ready) < 2:
            return
        spare = min(self._ready, key=lambda conn: len(conn.table))
        room = sum(conn.limit for conn in self._ready if conn is not spare)
        if self.streams < room * self.settings.grow_at / 2:
            self._wanted -= 1
            spare.retire("surplus")

    async def _keep(self) -> None:
        """Dial until there are as many connections as wanted, and whenever there are fewer."""
        while True:
            self._work.clear()
            if len(self._ready) < self._wanted:
                now = self._flusher.loop.time()
                if any(now - conn.vitals.born >= _STABLE for conn in self._ready):
                    self._failures = 0
                if self._failures:
                    await asyncio.sleep(self._pause())
                if not await self._dial():
                    self._failures += 1
                continue
            try:
                async with asyncio.timeout(_SURPLUS_AFTER):
                    await self._work.wait()
            except TimeoutError:
                self._shrink()

    def _pause(self) -> float:
        """Exponential back-off with jitter, in seconds."""
        settings = self.settings
        pause = min(settings.reconnect_max, settings.reconnect_min * 2.0 ** min(self._failures - 1, 32))
        return pause * random.uniform(0.5, 1.0)

    async def _dial(self) -> bool:
        """One try: connect, and wait for the peer's SETTINGS."""
        conn = H2ClientProtocol(self, self.settings, self._flusher, self.counters)
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                await self._connect(conn)
                self._check_alpn(conn)
                while not conn.settled and not conn.dead:
                    await self._work.wait()
                    self._work.clear()
        except (OSError, TimeoutError, ssl.SSLError) as error:
            self._dial_failed(conn, str(error) or f"no answer within {self.settings.connect_timeout:g} s")
            return False
        except asyncio.CancelledError:
            conn.drop()
            raise
        if conn.dead:
            self._dial_failed(conn, "the peer closed the connection before it said anything")
            return False
        self.counters.connections_dialled += 1
        return True

    async def _connect(self, conn: H2ClientProtocol) -> None:
        loop = self._flusher.loop
        where = self._where
        hostname = (self._hostname or where.host or "localhost") if self._tls is not None else None
        if where.path:
            await loop.create_unix_connection(
                lambda: conn.protocol, where.path, ssl=self._tls, server_hostname=hostname
            )
        else:
            await loop.create_connection(
                lambda: conn.protocol, where.host, where.port, ssl=self._tls, server_hostname=hostname
            )

    def _check_alpn(self, conn: H2ClientProtocol) -> None:
        if self._tls is None:
            return
        tls = conn.transport.get_extra_info("ssl_object")
        if tls is None or tls.selected_alpn_protocol() != "h2":
            raise ssl.SSLError("the peer does not speak HTTP/2 (no ALPN h2)")

    def _dial_failed(self, conn: H2ClientProtocol, why: str) -> None:
        conn.drop()
        self._no_successor()
        self.counters.dials_failed += 1
        if why != self.last_error:
            # Said once per cause: a node that stays away would fill the log.
            log.warning("cannot connect to %s: %s; trying again", self.address, why)
        self.last_error = why
