"""Streams and an upstream in memory: a test plays the client on one side and the node on the other."""

from __future__ import annotations

from collections.abc import Callable

from shared.net.api import CANCEL, ClientSink, ClientStream, Headers, ServerSink, ServerStream
from shared.net.grpc_wire import frame

Accept = Callable[[ServerStream, Headers, bool], ServerSink | None]


class FakeServerStream(ServerStream):
    """The client's stream. Ends are told to the owner by ``settle``, as a connection does at the end of a batch."""

    def __init__(self) -> None:
        self.head: Headers = []
        self.data: list[bytes] = []
        self.tail: Headers = []
        self.ended = False
        self.code = -1
        self.taken = 0
        self.sink: ServerSink | None = None
        self._closed = False
        self._unsent = 0

    def call(self, accept: Accept, headers: Headers, *messages: bytes, end: bool = True) -> FakeServerStream:
        """Open the stream with a request whose messages come in one DATA each."""
        self.sink = accept(self, headers, end and not messages)
        for i, message in enumerate(messages):
            if self.sink is not None:
                self.sink.on_data(frame(message), end and i == len(messages) - 1)
        return self

    def respond(self, headers: Headers, end: bool = False) -> None:
        assert not self.head and not self.ended
        self.head = list(headers)
        self.ended = end

    def send(self, data: bytes, end: bool = False) -> None:
        assert self.head and not self.ended
        self.data.append(data)
        self._unsent += len(data)
        self.ended = end

    def trailers(self, headers: Headers) -> None:
        assert self.head and not self.ended
        self.tail = list(headers)
        self.ended = True

    def reset(self, code: int) -> None:
        if not self._closed and self.code < 0:
            self.code = code

    def consumed(self, n: int) -> None:
        self.taken += n

    def drain(self) -> None:
        """The client reads everything."""
        n, self._unsent = self._unsent, 0
        if n and self.sink is not None and not self._closed:
            self.sink.on_sent(n)

    def settle(self) -> None:
        """Tell the owner when the stream is over."""
        if (self.ended or self.code >= 0) and not self._closed:
            self._closed = True
            if self.sink is not None:
                self.sink.on_closed(0 if self.ended else self.code)

    def cancel(self) -> None:
        """The client resets the stream."""
        if not self._closed:
            self._closed = True
            if self.sink is not None:
                self.sink.on_closed(CANCEL)

    def status(self) -> dict[bytes, bytes]:
        """The trailers, or the headers of a trailers-only answer."""
        assert self.ended
        return dict(self.tail or self.head)

    @property
    def queued(self) -> int:
        return self._unsent

    @property
    def peer(self) -> str:
        return "127.0.0.1:4"

    @property
    def closed(self) -> bool:
        return self._closed


class FakeClientStream(ClientStream):
    """A stream to a node: keeps what was sent, and lets the test answer."""

    def __init__(self, headers: Headers, sink: ClientSink, end: bool) -> None:
        self.headers = dict(headers)
        self.sink = sink
        self.data: list[bytes] = []
        self.ended = end
        self.code = -1
        self.taken = 0
        self._closed = False

    def send(self, data: bytes, end: bool = False) -> None:
        self.data.append(data)
        self.ended = end

    def trailers(self, headers: Headers) -> None:
        self.ended = True

    def reset(self, code: int) -> None:
        if not self._closed and self.code < 0:
            self.code = code

    def consumed(self, n: int) -> None:
        self.taken += n

    def settle(self) -> None:
        """Tell the owner of a reset that was asked for."""
        if self.code >= 0:
            self.lose(self.code)

    def lose(self, code: int = CANCEL, unprocessed: bool = False) -> None:
        """The stream ends."""
        if not self._closed:
            self._closed = True
            self.sink.on_response_closed(code, unprocessed)

    def answer(self, *messages: bytes, status: bytes = b"0") -> None:
        """A whole gRPC answer."""
        self.begin()
        for message in messages:
            self.sink.on_response_data(frame(message), False)
        self.finish(status)

    def begin(self, *headers: tuple[bytes, bytes]) -> None:
        """Response headers."""
        self.sink.on_response([(b":status", b"200"), (b"content-type", b"application/grpc"), *headers], False)

    def finish(self, status: bytes = b"0", *headers: tuple[bytes, bytes]) -> None:
        """Trailers, and the end of the stream."""
        self.sink.on_response_trailers([(b"grpc-status", status), *headers])
        self.lose(0)

    def refuse(self, trailers: Headers) -> None:
        """A trailers-only answer, and the end of the stream."""
        self.sink.on_response([(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers], True)
        self.lose(0)

    @property
    def queued(self) -> int:
        return 0

    @property
    def closed(self) -> bool:
        return self._closed


class FakeUpstream:
    """A node's pool. ``streams`` are those opened; ``full`` makes it take none."""

    def __init__(self) -> None:
        self.streams: list[FakeClientStream] = []
        self.full = False

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        if self.full:
            return None
        stream = FakeClientStream(headers, sink, end)
        self.streams.append(stream)
        return stream

    @property
    def last(self) -> FakeClientStream:
        return self.streams[-1]
