"""The least HTTP/1.1 client that can say where an answer broke off, with connections that are kept or not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final

_KEPT: Final = 5.0  # seconds that an idle connection is kept: as long as common clients keep theirs


class Broken(Exception):
    """The connection could not be made, or ended before the answer did."""


class Answer:
    """Status, headers, and the body as it comes."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.over = False  # the body has been read to its end
        self._reader = reader

    async def body(self) -> AsyncIterator[bytes]:
        """The body's pieces. Raises Broken when it ends too early."""
        reader = self._reader
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield (await reader.readexactly(size + 2))[:-2]
                await reader.readexactly(2)
                self.over = True
            else:
                body = await reader.readexactly(int(self.headers.get("content-length", "0")))
                self.over = True
                yield body
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Broken(f"in the body: {error!r}") from None

    async def whole(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self.body()])


class Kept:
    """Idle connections, by address. Like most clients it has no way to know of a close that is on its way."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]]] = {}

    def take(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection that looks open, if there is one."""
        idle = self._idle.get(address, [])
        while idle and time.monotonic() - idle[0][2] > _KEPT:
            idle.pop(0)[1].close()
        while idle:
            reader, writer, _ = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    def put(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An answer is over: the connection may carry another one."""
        self._idle.setdefault(address, []).append((reader, writer, time.monotonic()))

    def close(self) -> None:
        """Close them all."""
        for idle in self._idle.values():
            for _, writer, _ in idle:
                writer.close()
        self._idle.clear()


async def post(
    address: str, path: str, body: dict[str, Any], headers: dict[str, str], kept: Kept | None = None
) -> AsyncGenerator[Answer, None]:
    """Yield the answer once its head is here. Raises Broken.

    The connection is one of ``kept``, and goes back there if the server lets it; without that it is closed.
    """
    host, _, port = address.rpartition(":")
    raw = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {address}", "content-type: application/json"]
    lines += [f"content-length: {len(raw)}", *(f"{name}: {value}" for name, value in headers.items())]
    if kept is None:
        lines.append("connection: close")
    used = kept.take(address) if kept is not None else None
    answer: Answer | None = None
    try:
        reader, writer = used or await asyncio.open_connection(host, int(port))
    except OSError as error:
        raise Broken(f"connecting: {error!r}") from None
    try:
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise Broken(f"before an answer: {error!r}") from None
        fields = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        answer = Answer(reader, int(head[0].split()[1]), fields)
        yield answer
    finally:
        if kept is not None and answer is not None and answer.over and answer.headers.get("connection") != "close":
            kept.put(address, reader, writer)
        else:
            writer.close()
            with suppress(OSError):
                writer.transport.abort()
