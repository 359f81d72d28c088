"""The least HTTP/1.1 client that can say where an answer broke off: one request, one connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any


class Broken(Exception):
    """The connection could not be made, or ended before the answer did."""


class Answer:
    """Status, headers, and the body as it comes."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def body(self) -> AsyncIterator[bytes]:
        """The body's pieces. Raises Broken when it ends too early."""
        reader = self._reader
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield (await reader.readexactly(size + 2))[:-2]
            else:
                yield await reader.readexactly(int(self.headers.get("content-length", "0")))
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Broken(f"in the body: {error!r}") from None

    async def whole(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self.body()])


async def post(address: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> AsyncGenerator[Answer, None]:
    """Yield the answer once its head is here, and close the connection after it. Raises Broken."""
    host, _, port = address.rpartition(":")
    raw = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {address}", "content-type: application/json", "connection: close"]
    lines += [f"content-length: {len(raw)}", *(f"{name}: {value}" for name, value in headers.items())]
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
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
        yield Answer(reader, int(head[0].split()[1]), fields)
    finally:
        writer.close()
        with suppress(OSError):
            writer.transport.abort()
