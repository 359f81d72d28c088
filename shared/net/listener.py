"""One address that serves gRPC, HTTP/2 and HTTP/1.1, in clear or over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence

from shared.net.ages import Ages
from shared.net.api import Acceptor, HttpHandler
from shared.net.bind import BACKLOG, ListenError, shown, tcp_sockets, unix_socket
from shared.net.flusher import Flusher
from shared.net.fork import Fork
from shared.net.handshake import Handshake, TlsPort
from shared.net.http1 import Http1Protocol
from shared.net.http1_known import KnownHeads
from shared.net.http1_response import HttpDate
from shared.net.http2_exchange import Http2Front
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.net.sniff import Served, Sniffer
from shared.net.uploads import Gate, Uploads, upload_limit

__all__ = ["ListenError", "Listener"]

LAST_REQUEST = 2.0  # seconds that an idle HTTP/1.1 connection has for one more request before it is closed
_CUT_TIME = 2.0  # seconds for connections that were cut off to be gone


class Listener:
    """Accepts connections, finds out what each speaks, and keeps the list of them.

    ``path`` (a Unix socket) takes the place of host and port. ``reuse_port`` lets several processes share the port.
    ``inherited`` are sockets that listen already: those of this address are used in place of new ones.
    ``gate`` may refuse a plain HTTP request before its body is taken in, where that is large or of unknown length.
    gRPC requests go to ``acceptor``, all others to ``http_handler``. ``header_timeout`` bounds a TLS handshake.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        http_handler: HttpHandler,
        settings: NetSettings,
        flusher: Flusher,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "",
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        inherited: Sequence[socket.socket] = (),
        gate: Gate | None = None,
    ) -> None:
        self._http_handler = http_handler
        self._settings = settings
        self._flusher = flusher
        self._host = host
        self._path = path
        self._tls = tls
        self._reuse_port = reuse_port
        self._inherited = inherited
        self._date = HttpDate()
        self._heads = KnownHeads()
        self._uploads = Uploads(flusher.loop, settings.body_timeout, upload_limit(settings.max_body_bytes))
        self._uploads.gate = gate
        http2 = Http2Front(http_handler, settings, flusher, self._uploads, self._date)
        self._accept = Fork(acceptor, http2.accept).accept
        self._ages = Ages(
            flusher.loop, flusher.counters, settings.max_connection_age, settings.max_connection_age_grace
        )
        self._servers: list[asyncio.Server | TlsPort] = []
        self._served: set[Served] = set()
        self._emptied = asyncio.Event()
        self._draining = self._closing = False
        self.cut_off = 0  # requests that had not ended when ``close`` ran out of time
        self.sockets: list[socket.socket] = []  # those that listen
        self.port = port  # the real one once started
        self.address = ""  # host:port, [v6]:port or unix:/path, once started

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._served)

    @property
    def streams(self) -> int:
        """Requests that are being answered."""
        return sum(conn.streams for conn in self._served)

    async def start(self) -> None:
        """Bind and accept. Raises ListenError."""
        loop = asyncio.get_running_loop()
        if self._path:
            self.sockets = [unix_socket(self._path)]
        else:
            self.sockets, self.port = await tcp_sockets(
                self._host, self.port, reuse_port=self._reuse_port, inherited=self._inherited
            )
        if self._tls is not None:
            limit = self._settings.header_timeout
            port = TlsPort(self._tls, limit, self._flusher, self._opened, self._shaken, self._gone)
            for sock in self.sockets:
                port.listen(sock, BACKLOG)
            self._servers.append(port)
        else:
            for sock in self.sockets:
                self._servers.append(await loop.create_server(self._sniffer, sock=sock, backlog=BACKLOG))
        self.address = f"unix:{self._path}" if self._path else shown(self._host, self.port)

    def retire(self) -> None:
        """Accept no more, and tell whoever is connected to ask elsewhere next; until then requests are answered."""
        self._draining = True
        servers, self._servers = self._servers, []
        self.sockets = []
        for server in servers:
            server.close()
        if self._path and servers:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        for conn in list(self._served):
            conn.go_away()

    async def close(self, grace: float = 0.0, last_request: float = LAST_REQUEST) -> None:
        """Accept no more, let running requests end for up to ``grace`` seconds, then cut off the rest.

        A request may be on its way over a connection that is idle. HTTP/2 can tell; HTTP/1.1 cannot, so it has
        ``last_request`` seconds (``grace`` at most) to come. Its answer says that it was the last.
        """
        loop = self._flusher.loop
        until = loop.time() + grace
        self.retire()
        await self._wait_until_empty(min(grace, last_request))
        for conn in list(self._served):
            conn.close_idle()
        await self._wait_until_empty(until - loop.time())
        self._closing = True
        self.cut_off += self.streams
        for conn in list(self._served):
            conn.close()
        await self._wait_until_empty(_CUT_TIME)
        self._uploads.close()

    async def _wait_until_empty(self, seconds: float) -> None:
        if self._served and seconds > 0:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    # Connections.

    def _sniffer(self) -> Sniffer:
        return Sniffer(self._settings, self._flusher, self._opened, self._decided, self._gone)

    def _shaken(self, handshake: Handshake) -> Sniffer:
        self._served.discard(handshake)
        return self._sniffer()

    def _opened(self, conn: Served) -> bool:
        counters = self._flusher.counters
        if self._closing or len(self._served) >= self._settings.max_connections_served:
            counters.count("closing" if self._closing else "max_connections")
            return False
        self._served.add(conn)
        return True

    def _decided(self, sniffer: Sniffer, http2: bool) -> asyncio.Protocol:
        self._served.discard(sniffer)
        conn: H2ServerProtocol | Http1Protocol
        if http2:
            conn = H2ServerProtocol(self._accept, self._settings, self._flusher, self._gone)
            self._ages.add(conn, conn.go_away)
            if self._draining:
                self._flusher.loop.call_soon(conn.go_away)  # once it has read what has come
        else:
            conn = Http1Protocol(
                self._http_handler,
                self._settings,
                self._flusher,
                self._uploads,
                self._gone,
                self._date,
                self._heads,
            )
            conn.draining = self._draining
            self._ages.add(conn, conn.go_away)
        self._served.add(conn)
        return conn.protocol

    def _gone(self, conn: Served) -> None:
        self._served.discard(conn)
        self._ages.discard(conn)
        if not self._served:
            self._emptied.set()
