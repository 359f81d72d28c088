"""Asks a server for streamed chat completions over HTTP/1.1, and notes when each part of an answer came."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import cast

import httptools
import msgspec

PATH = "/v1/chat/completions"
_IDLE = 256  # connections kept for the next request
_LONGEST = 4 << 20  # bytes of an event or an error that are kept
_CONNECT = 5.0  # seconds


@dataclass(slots=True)
class Answer:
    """What became of one request. Times are seconds from when it was due; 0 for what never came."""

    status: int = 0
    first: float = 0.0
    total: float = 0.0
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    node: str = ""
    error: str = ""
    finish: str = ""
    pieces: list[float] = field(default_factory=list)
    """When each piece of text came."""
    cancelled: bool = False

    @property
    def served(self) -> bool:
        """Answered in full."""
        return self.status == 200 and not self.error and not self.cancelled and bool(self.finish)

    @property
    def refused(self) -> bool:
        """Told to come back later, before any answer."""
        return self.status in (429, 503)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class _Said(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class _Refusal(msgspec.Struct):
    error: _Said | str | None = None


_event = msgspec.json.Decoder(_Event).decode
_refusal = msgspec.json.Decoder(_Refusal).decode


class _Conn(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.keep = False
        self.heard = False
        self._answer = Answer()
        self._due = 0.0
        self._cancel_after = 0
        self._rest = b""
        self._streamed = False
        self.plain = b""
        self._done: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server hung up."""
        self.transport = None
        self._end(self._answer.error or "cut off")

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"no HTTP: {error}")
            self.close()

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._streamed, self.plain, self._rest = False, b"", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        name = name.lower()
        if name == b"laya-node":
            self._answer.node = value.decode("latin-1")
        elif name == b"content-type":
            self._streamed = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        """All of them."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if not self._streamed:
            if len(self.plain) < _LONGEST:
                self.plain += data
            return
        now = time.perf_counter() - self._due
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)
        if len(self._rest) > _LONGEST:
            self._end("an event without an end")
            self.close()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self.keep = bool(self._parser.should_keep_alive())
        answer = self._answer
        if answer.status != 200 and not answer.error:
            answer.error = _reason(self.plain, answer.status)
        elif not self._streamed and not answer.error:
            answer.error = "the answer is no stream"
        elif not answer.finish and not answer.error:
            answer.error = "the stream ended before its answer did"
        self._end(answer.error)

    def _take(self, data: bytes, now: float) -> None:
        answer = self._answer
        if self._done is None or self._done.done():
            return
        if data == b"[DONE]":
            answer.finish = answer.finish or "done"
            return
        try:
            event = _event(data)
        except (msgspec.DecodeError, RecursionError) as error:
            answer.error = f"an event that is no chat completion: {error}"
            return
        if bytes(event.error) not in (b"", b"null"):
            answer.error = _reason(b'{"error":' + bytes(event.error) + b"}", 200)
            return
        for choice in event.choices or ():
            if choice.delta is not None and choice.delta.content:
                answer.first = answer.first or now
                answer.pieces.append(now)
            answer.finish = choice.finish_reason or answer.finish
        if event.usage is not None:
            answer.tokens = event.usage.completion_tokens or 0
            answer.prompt = event.usage.prompt_tokens
            details = event.usage.prompt_tokens_details
            answer.cached = (details.cached_tokens or 0) if details is not None else 0
        if self._cancel_after and len(answer.pieces) >= self._cancel_after:
            answer.cancelled = True
            self._end("")
            self.close()

    def _end(self, error: str) -> None:
        done = self._done
        if done is not None and not done.done():
            self._answer.error = error
            self._answer.total = time.perf_counter() - self._due
            done.set_result(None)

    def ask(self, head: bytes, body: bytes, due: float, cancel_after: int, answer: Answer) -> asyncio.Future[None]:
        """Send; the future ends with the answer, which is written into ``answer``."""
        self._answer, self._due, self._cancel_after, self.heard, self.keep = answer, due, cancel_after, False, False
        self._done = asyncio.get_running_loop().create_future()
        if self.transport is None:
            self._end("cut off")
        else:
            self.transport.write(head + body)
        return self._done

    def close(self) -> None:
        """Hang up."""
        if self.transport is not None:
            self.transport.abort()
            self.transport = None


def _reason(data: bytes, status: int) -> str:
    try:
        said = _refusal(data).error
    except (msgspec.DecodeError, RecursionError):
        said = None
    if isinstance(said, _Said):
        return str(said.code or said.type or said.message or status)[:80]
    return (said or f"HTTP {status}")[:80]


class Client:
    """Asks one server; connections are kept and used again."""

    def __init__(self, address: str, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port, self._tls = host.strip("[]"), int(port), tls
        lines = [f"POST {PATH} HTTP/1.1", f"host: {address}", "content-type: application/json"]
        if key:
            lines.append(f"authorization: Bearer {key}")
        self._head = "\r\n".join(lines).encode()
        self._idle: list[_Conn] = []

    async def ask(
        self, body: bytes, *, due: float = 0.0, limit: float = 60.0, session: str = "", cancel_after: int = 0
    ) -> Answer:
        """One answer, within ``limit`` seconds of ``due`` (on ``time.perf_counter``); never raises for the server."""
        due = due or time.perf_counter()
        head = self._head + (f"\r\nlaya-session: {session}".encode() if session else b"")
        head += b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = Answer()
        conn: _Conn | None = None
        try:
            async with asyncio.timeout(max(0.0, due + limit - time.perf_counter())):
                while True:
                    used = bool(self._idle)
                    conn = self._idle.pop() if used else await self._connect()
                    await conn.ask(head, body, due, cancel_after, answer)
                    # A kept connection may have been closed from the other side just before.
                    if not used or conn.heard:
                        break
                    answer.error = ""
        except TimeoutError:
            answer.error, answer.total = "timeout", time.perf_counter() - due
        except OSError as error:
            answer.error, answer.total = _why(error), time.perf_counter() - due
        finally:
            if conn is not None:
                if conn.keep and conn.transport is not None and len(self._idle) < _IDLE:
                    self._idle.append(conn)
                else:
                    conn.close()
        return answer

    async def get(self, path: str, limit: float) -> tuple[int, bytes]:
        """Status and body of a page. Raises OSError; TimeoutError after ``limit`` seconds."""
        request = self._head.replace(b"POST %b" % PATH.encode(), b"GET %b" % path.encode(), 1)
        async with asyncio.timeout(limit):
            conn = await self._connect()
            try:
                answer = Answer()
                await conn.ask(request + b"\r\n\r\n", b"", time.perf_counter(), 0, answer)
                if not answer.status:
                    raise OSError(answer.error)
                return answer.status, conn.plain
            finally:
                conn.close()

    async def _connect(self) -> _Conn:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT):
            _, conn = await loop.create_connection(_Conn, self._host, self._port, ssl=self._tls)
        return conn

    def close(self) -> None:
        """Let the connections go."""
        for conn in self._idle:
            conn.close()
        self._idle.clear()


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return error.strerror or type(error).__name__
