"""TLS in front of a store that has none: a port that takes TLS and passes on what was in it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from tests.support.certs import Authority

_TLS = 0x16  # the first byte of a handshake


class TlsFront:
    """Clients' TLS ends here. Without ``only`` plain connections are passed on too, as among replicas and sentinels."""

    def __init__(self, behind: int, authority: Authority, *, only: bool = True, clients: bool = False) -> None:
        pair = authority.pair(f"store-{behind}")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.cert, pair.key)
        if clients:
            self._context.load_verify_locations(authority.file)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._behind = behind
        self._only = only
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.tls = 0
        """Connections that used TLS."""
        self.refused = 0
        """Connections that did not come to be."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to take connections."""
        self._go(self._accept())

    async def close(self) -> None:
        """End it, with all its connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            taken, _ = await loop.sock_accept(self._socket)
            self._go(self._serve(taken))

    async def _serve(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        taken.setblocking(False)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with contextlib.suppress(OSError, ssl.SSLError):
            async with asyncio.timeout(10):
                tls = await _begins_with_tls(taken)
                if self._only and not tls:
                    self.refused += 1
                    taken.close()
                    return
                try:
                    transport, _ = await loop.connect_accepted_socket(
                        lambda: protocol, taken, ssl=self._context if tls else None
                    )
                except (OSError, ssl.SSLError):
                    self.refused += 1
                    raise
            self.tls += tls
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                there, back = await asyncio.open_connection("127.0.0.1", self._behind)
                try:
                    await _either(_copy(reader, back), _copy(there, writer))
                finally:
                    back.close()
            finally:
                writer.close()


async def _begins_with_tls(taken: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(taken.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(taken.fileno())
    return taken.recv(1, socket.MSG_PEEK) == bytes([_TLS])


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()


async def _either(*ways: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends; so do the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
