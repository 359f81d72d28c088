"""gRPC calls over any Upstream: one answer (``unary``) or a stream of them (``stream``).

A call that its caller leaves, by cancellation, by closing the generator or by an error, is reset at once. Errors are
LayaErrors as the server sent them; a lost connection or a refused call is UNAVAILABLE, a passed limit
DEADLINE_EXCEEDED.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Protocol, TypeVar

from shared.errors import Code, LayaError, unavailable
from shared.net.api import CANCEL, ClientSink, ClientStream, Headers, Upstream
from shared.net.grpc_wire import (
    Deframer,
    error_from_reset,
    error_from_response,
    error_from_trailers,
    format_timeout,
    frame,
)

_AHEAD = 32 << 10  # bytes of whole messages held for the caller before the server has to wait

Response = TypeVar("Response", covariant=True)


class Message(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:
        """The message's bytes."""
        ...


class ResponseType(Protocol[Response]):
    """A protobuf message class."""

    def FromString(self, s: bytes, /) -> Response:
        """A message from its bytes."""
        ...


async def unary(
    upstream: Upstream,
    path: bytes,
    request: Message | bytes,
    response_type: ResponseType[Response],
    metadata: Headers | None = None,
    timeout: float | None = None,
    *,
    authority: bytes = b"laya",
    max_message: int = 64 << 20,
) -> Response:
    """The one answer of a method. ``timeout`` in seconds is told to the server and kept here too. Raises LayaError."""
    call = _Call(upstream, path, request, metadata, timeout, authority, max_message)
    try:
        message = await call.next()
        if message is None:
            raise LayaError(Code.INTERNAL, "NO_MESSAGE", f"{_shown(path)} ended with status OK and no message.")
        if await call.next() is not None:
            raise LayaError(Code.INTERNAL, "MANY_MESSAGES", f"{_shown(path)} answered with more than one message.")
        return _decoded(response_type, message)
    finally:
        call.close()


async def stream(
    upstream: Upstream,
    path: bytes,
    request: Message | bytes,
    response_type: ResponseType[Response],
    metadata: Headers | None = None,
    timeout: float | None = None,
    *,
    authority: bytes = b"laya",
    max_message: int = 64 << 20,
) -> AsyncGenerator[Response, None]:
    """The answers of a server-streaming method; close it (``aclosing``) to end the call early. Raises LayaError."""
    call = _Call(upstream, path, request, metadata, timeout, authority, max_message)
    try:
        while (message := await call.next()) is not None:
            yield _decoded(response_type, message)
    finally:
        call.close()


class _Call(ClientSink):
    """One call: messages as they come, then how it ended."""

    __slots__ = ("_ahead", "_deadline", "_deframer", "_held", "_max", "_messages", "_outcome", "_stream", "_waiter")

    def __init__(
        self,
        upstream: Upstream,
        path: bytes,
        request: Message | bytes,
        metadata: Headers | None,
        timeout: float | None,
        authority: bytes,
        max_message: int,
    ) -> None:
        headers: Headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        self._deadline: float | None = None
        if timeout is not None:
            headers.append((b"grpc-timeout", format_timeout(timeout)))
            self._deadline = asyncio.get_running_loop().time() + timeout
        if metadata:
            headers += metadata
        self._max = max_message
        self._messages: deque[bytes] = deque()
        self._ahead = 0  # bytes of the messages that wait for the caller
        self._held = 0  # bytes that came in and are not acknowledged
        self._outcome: LayaError | bool = False  # True: status OK
        self._deframer = Deframer(max_message)
        self._waiter: asyncio.Future[None] | None = None
        body = frame(request if isinstance(request, bytes) else request.SerializeToString())
        self._stream: ClientStream | None = None
        opened = upstream.open(headers, self)
        if opened is None:
            raise unavailable("There is no connection to the server that could take the call.", "NODE_LOST")
        self._stream = opened
        opened.send(body, end=True)

    async def next(self) -> bytes | None:
        """The next message, or None after the last one. Raises LayaError for any other end."""
        while not self._messages:
            if self._outcome is not False:
                if self._outcome is True:
                    return None
                raise self._outcome
            await self._wait()
        message = self._messages.popleft()
        self._ahead -= len(message)
        self._acknowledge()
        return message

    def close(self) -> None:
        """The caller has what it wanted: end the call if it has not ended."""
        if self._stream is not None and self._outcome is False:
            self._stream.reset(CANCEL)
        self._messages.clear()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        try:
            if self._deadline is None:
                await waiter
            else:
                async with asyncio.timeout_at(self._deadline):
                    await waiter
        except TimeoutError:
            text = "The deadline passed before the answer was complete."
            raise LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", text) from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, outcome: LayaError | bool) -> None:
        if self._outcome is False:
            self._outcome = outcome
            self._wake()

    def _fail(self, error: LayaError) -> None:
        if self._outcome is False:
            self._end(error)
            if self._stream is not None:
                self._stream.reset(CANCEL)

    def _acknowledge(self) -> None:
        """Give the server window unless the caller is behind. A message that is not whole never waits for window."""
        if self._held and self._ahead <= _AHEAD and self._stream is not None:
            held, self._held = self._held, 0
            self._stream.consumed(held)

    # The stream's calls.

    def on_response(self, headers: Headers, end: bool) -> None:
        """Response headers, or a whole answer without messages."""
        error = error_from_response(headers)
        if error is not None:
            self._fail(error)
        elif end:
            self._end(error_from_trailers(headers) or True)
        else:
            self._set_encoding(headers)

    def _set_encoding(self, headers: Headers) -> None:
        for name, value in headers:
            if name == b"grpc-encoding" and value != b"identity":
                try:
                    self._deframer = Deframer(self._max, value)
                except LayaError as error:
                    self._fail(error)

    def on_response_data(self, data: bytes, end: bool) -> None:
        """A part of the answer."""
        self._held += len(data)
        if self._outcome is False:
            try:
                messages = self._deframer.feed(data)
            except LayaError as error:
                self._fail(error)
            else:
                if messages:
                    self._messages += messages
                    self._ahead += sum(map(len, messages))
                    self._wake()
        self._acknowledge()
        if end:
            self._end(LayaError(Code.INTERNAL, "NO_STATUS", "The server ended the answer without a gRPC status."))

    def on_response_trailers(self, headers: Headers) -> None:
        """How it ended."""
        error = error_from_trailers(headers)
        if error is None and self._deframer.pending:
            error = LayaError(Code.INTERNAL, "BROKEN_FRAME", "The answer ended in the middle of a message.")
        self._end(error or True)

    def on_request_sent(self, n: int) -> None:
        """Of no interest: the request is one message, queued in full."""

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """The stream is gone."""
        self._end(error_from_reset(code, unprocessed))
        self._stream = None


def _decoded(response_type: ResponseType[Response], message: bytes) -> Response:
    try:
        return response_type.FromString(message)
    except Exception:  # protobuf's DecodeError, or whatever a response type of ours raises
        text = "The server's answer is not a valid message of the expected type."
        raise LayaError(Code.INTERNAL, "BROKEN_MESSAGE", text) from None


def _shown(path: bytes) -> str:
    return path.decode("ascii", "replace")
