"""A gRPC client that uploads as fast as HTTP/2's windows let it, and keeps to them."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.attack import (
    COMPLETE,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST,
    SETTINGS,
    WINDOW,
    call,
    frame,
    settings,
)

PIECE = 16_000
WINDOW_AT_FIRST = 65_535  # of a stream and of a connection, until the other side says otherwise
_ACK = 1
_INITIAL_WINDOW = 4


class Uploader:
    """One call with a message of ``size`` bytes, on a connection of its own.

    ``sent`` are the bytes of it that have been written; ``over`` tells that the other side answered or hung up.
    """

    def __init__(self, address: str, size: int, *extra: tuple[bytes, bytes]) -> None:
        self.sent = 0
        self.over = False
        self._address = address
        self._size = size
        self._extra = extra
        self._initial = WINDOW_AT_FIRST
        self._stream = self._conn = WINDOW_AT_FIRST
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Uploader:
        self._task = asyncio.create_task(self._run())
        return self

    async def stop(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            prefix = b"\0" + self._size.to_bytes(4, "big")
            opening = frame(HEADERS, END_HEADERS, 1, call(COMPLETE, *self._extra)) + frame(DATA, 0, 1, prefix)
            self._stream -= len(prefix)
            self._conn -= len(prefix)
            writer.write(PREFACE + settings() + opening)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while not self.over:
                    await self._pump(writer)
                    await self._hear(reader, writer)
            self.over = True
        finally:
            writer.transport.abort()

    async def _pump(self, writer: asyncio.StreamWriter) -> None:
        while (room := min(PIECE, self._stream, self._conn, self._size - self.sent)) > 0:
            writer.write(frame(DATA, 0, 1, bytes(room)))
            self.sent += room
            self._stream -= room
            self._conn -= room
            await writer.drain()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind == WINDOW:
            more = int.from_bytes(payload, "big")
            if stream:
                self._stream += more
            else:
                self._conn += more
        elif kind == SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == _INITIAL_WINDOW:
                    initial = int.from_bytes(payload[at + 2 : at + 6], "big")
                    self._stream += initial - self._initial
                    self._initial = initial
            writer.write(frame(SETTINGS, _ACK))
        elif kind == PING and not flags & _ACK:
            writer.write(frame(PING, _ACK, 0, payload))
        elif kind in (HEADERS, RST, GOAWAY):
            self.over = True
