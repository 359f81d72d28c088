"""A raw HTTP/1.1 client, and waiting for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

LIMIT = 5.0  # seconds that anything awaited here may take


@dataclass
class Answer:
    """One answer. ``complete`` is False when the connection ended inside it."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True


class RawClient:
    """A connection on which a test says what it likes, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", **options: object) -> RawClient:
        return cls(*await asyncio.open_connection(host, port, **options))  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, head: bool = False) -> Answer:
        """The next answer; ``head``: to a HEAD request."""
        async with asyncio.timeout(LIMIT):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:-2]:
                name, _, value = line.partition(": ")
                assert name not in headers, f"{name} twice"
                headers[name] = value
            answer = Answer(int(lines[0].split()[1]), headers, b"")
            if not head and answer.status not in (100, 204, 304):
                await self._body(answer)
            return answer

    async def _body(self, answer: Answer) -> None:
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                await self._chunks(answer)
            elif "content-length" in answer.headers:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
            else:
                answer.body = await self.reader.read()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            answer.complete = False

    async def _chunks(self, answer: Answer) -> None:
        parts: list[bytes] = []
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append(await self.reader.readexactly(size))
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        finally:
            answer.body = b"".join(parts)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(LIMIT):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


async def until(condition: Callable[[], object], seconds: float = LIMIT) -> None:
    """Wait for something to become true; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
