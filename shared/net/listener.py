"""One address that serves gRPC, HTTP/2 and HTTP/1.1, in clear or over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from functools import partial

from shared.net.ages import Ages
from shared.net.api import Acceptor, HttpHandler
from shared.net.flusher import Flusher
from shared.net.fork import Fork
from shared.net.http1 import Http1Protocol
from shared.net.http1_known import KnownHeads
from shared.net.http1_response import HttpDate
from shared.net.http2_exchange import Http2Front
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.net.sniff import Served, Sniffer
from shared.net.uploads import Gate, Uploads, upload_limit

_BACKLOG = 1024
_CUT_TIME = 2.0  # seconds for connections that were cut off to be gone
# A peer that vanished without a word is found by the kernel: seconds of silence, between probes, and probes.
_PROBES = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class ListenError(Exception):
    """An address that cannot be listened on: one sentence with the address and what to do."""


class Listener:
    """Accepts connections, finds out what each speaks, and keeps the list of them.

    ``path`` (a Unix socket) takes the place of host and port. ``reuse_port`` lets several processes share the port.
    ``gate`` may refuse a plain HTTP request before its body is taken in, where that is large or of unknown length.
    gRPC requests go to ``acceptor``, all others to ``http_handler``. During a TLS handshake a connection is not in the
    list yet; ``header_timeout`` bounds that.
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
        gate: Gate | None = None,
    ) -> None:
        self._http_handler = http_handler
        self._settings = settings
        self._flusher = flusher
        self._host = host
        self._path = path
        self._tls = tls
        self._reuse_port = reuse_port
        self._date = HttpDate()
        self._heads = KnownHeads()
        self._uploads = Uploads(flusher.loop, settings.body_timeout, upload_limit(settings.max_body_bytes))
        self._uploads.gate = gate
        http2 = Http2Front(http_handler, settings, flusher, self._uploads, self._date)
        self._accept = Fork(acceptor, http2.accept).accept
        self._ages = Ages(
            flusher.loop, flusher.counters, settings.max_connection_age, settings.max_connection_age_grace
        )
        self._servers: list[asyncio.Server] = []
        self._served: set[Served] = set()
        self._emptied = asyncio.Event()
        self._closing = False
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
        sockets = [_unix_socket(self._path)] if self._path else await self._tcp_sockets(loop)
        handshake = self._settings.header_timeout if self._tls is not None else None
        for sock in sockets:
            server = await loop.create_server(
                self._sniffer, sock=sock, backlog=_BACKLOG, ssl=self._tls, ssl_handshake_timeout=handshake
            )
            self._servers.append(server)
        self.address = f"unix:{self._path}" if self._path else _shown(self._host, self.port)

    async def close(self, grace: float = 0.0) -> None:
        """Accept no more, let running requests end for up to ``grace`` seconds, then cut off the rest."""
        self._closing = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._path and servers:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        for conn in list(self._served):
            conn.go_away()
        await self._wait_until_empty(grace)
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

    def _opened(self, sniffer: Sniffer) -> bool:
        counters = self._flusher.counters
        if self._closing or len(self._served) >= self._settings.max_connections_served:
            counters.count("closing" if self._closing else "max_connections")
            return False
        self._served.add(sniffer)
        return True

    def _decided(self, sniffer: Sniffer, http2: bool) -> asyncio.Protocol:
        self._served.discard(sniffer)
        conn: H2ServerProtocol | Http1Protocol
        if http2:
            conn = H2ServerProtocol(self._accept, self._settings, self._flusher, self._gone)
            self._ages.add(conn, conn.go_away)
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
            # Its next answer says that it is the last: closed while idle, it could cross a request.
            self._ages.add(conn, partial(setattr, conn, "draining", True))
        self._served.add(conn)
        return conn.protocol

    def _gone(self, conn: Served) -> None:
        self._served.discard(conn)
        self._ages.discard(conn)
        if not self._served:
            self._emptied.set()

    # Sockets.

    async def _tcp_sockets(self, loop: asyncio.AbstractEventLoop) -> list[socket.socket]:
        """One bound socket for each address of the host (``localhost`` may have two), all on one port."""
        try:
            found = await loop.getaddrinfo(
                self._host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ListenError(f"{self._host} is not an address of this machine ({error.strerror}).") from None
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    sock = self._bound(family, kind, protocol, (address[0], self.port, *address[2:]))
                except OSError as error:
                    # A name may stand for an address family that this machine does not have.
                    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(found) > 1:
                        continue
                    raise ListenError(_sentence(error, _shown(self._host, self.port))) from None
                sockets.append(sock)
                self.port = sock.getsockname()[1]
            if not sockets:
                raise ListenError(f"{self._host} is not an address of this machine: bind another one.")
        except ListenError:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    def _bound(self, family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Accepted sockets inherit these.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.bind(address)
            # Now rather than in the event loop: a taken port may show only here.
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return sock


def _unix_socket(path: str) -> socket.socket:
    """A bound socket that only our own user may connect to; a file that a dead process left behind makes way."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _clear_stale(path)
        sock.setblocking(False)
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(_sentence(error, f"unix:{path}")) from None
    except ListenError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _clear_stale(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket: choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ListenError(f"unix:{path} is in use by another process: stop it or choose another path.")


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"


def _sentence(error: OSError, address: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another process: stop it or choose another port."
    if error.errno == errno.EACCES:
        return f"{address} may not be bound by this user: choose a port from 1024 up, or a path you may write."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine: bind one that is, or 127.0.0.1."
    return f"{address} cannot be listened on: {error.strerror}."
