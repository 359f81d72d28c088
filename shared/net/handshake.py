"""A port that speaks TLS: its connections are counted from the first packet on, not from the end of a handshake."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from shared.net.flusher import Flusher

_AT_ONCE: Final = 64  # connections accepted before others have their turn
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE: Final = 0.5  # seconds without accepting when the system has no room for one more connection


class Handshake:
    """One that is going on; ``Served``, as what the connection becomes after it."""

    __slots__ = ("_sock", "_task", "settled")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._task: asyncio.Task[None] | None = None
        self.settled = False  # somebody else has the connection

    @property
    def streams(self) -> int:
        """None yet."""
        return 0

    def go_away(self) -> None:
        """Its first request may be on its way."""

    def close_idle(self) -> None:
        """It has had its time."""
        self.close()

    def close(self) -> None:
        """Close now."""
        if self._task is not None:
            self._task.cancel()

    def start(self, task: asyncio.Task[None]) -> None:
        """``task`` sees it through."""
        self._task = task

    def over(self) -> None:
        """Close the socket unless somebody else has it."""
        self._task = None
        if not self.settled:
            self._sock.close()


class TlsPort:
    """Accepts on sockets that listen.

    ``admit`` may refuse a connection by returning False. One that is admitted is told of once more, when it is
    settled (``settle``, for what speaks over it, then ``connection_made`` there) or when it is gone (``gone``).
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        limit: float,
        flusher: Flusher,
        admit: Callable[[Handshake], bool],
        settle: Callable[[Handshake], asyncio.Protocol],
        gone: Callable[[Handshake], None],
    ) -> None:
        """``limit`` bounds a handshake, in seconds."""
        self._context = context
        self._limit = limit
        self._loop = flusher.loop
        self._count = flusher.counters.count
        self._admit = admit
        self._settle = settle
        self._gone = gone
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, sock: socket.socket, backlog: int) -> None:
        """Accept from ``sock`` until ``close``, which closes it."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._sockets.append(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Accept no more; handshakes go on."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            pause = self._pauses.pop(sock, None)
            if pause is not None:
                pause.cancel()
            self._loop.remove_reader(sock)
            sock.close()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                conn, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(sock)
                    return
                continue  # it is gone already
            self._begin(conn)

    def _begin(self, conn: socket.socket) -> None:
        handshake = Handshake(conn)
        if not self._admit(handshake):
            conn.close()
            return
        conn.setblocking(False)
        task = self._loop.create_task(self._shake(handshake, conn))
        handshake.start(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._over(handshake))

    async def _shake(self, handshake: Handshake, conn: socket.socket) -> None:
        def settle() -> asyncio.Protocol:
            return _Settled(handshake, self._settle)

        try:
            await self._loop.connect_accepted_socket(settle, conn, ssl=self._context, ssl_handshake_timeout=self._limit)
        except ssl.SSLError:
            self._count("tls_failed")
        except ConnectionAbortedError:
            self._count("tls_timeout")
        except OSError:
            pass  # gone before it was over
        # Cancelled by ``Handshake.close``: it ends as such.

    def _over(self, handshake: Handshake) -> None:
        if not handshake.settled:
            self._gone(handshake)
        handshake.over()

    def _pause(self, sock: socket.socket) -> None:
        self._count("no_open_files")
        self._loop.remove_reader(sock)
        self._pauses[sock] = self._loop.call_later(_PAUSE, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        self._pauses.pop(sock, None)
        with contextlib.suppress(OSError):
            self._loop.add_reader(sock, self._accept, sock)


class _Settled(asyncio.Protocol):
    """Stands for the protocol to come, which is not asked for before TLS is settled."""

    __slots__ = ("_handshake", "_settle")

    def __init__(self, handshake: Handshake, settle: Callable[[Handshake], asyncio.Protocol]) -> None:
        self._handshake = handshake
        self._settle = settle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        self._handshake.settled = True
        protocol = self._settle(self._handshake)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
