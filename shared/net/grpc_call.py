"""One gRPC call on a server: its request, its answer, its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from shared import headers as names
from shared.errors import Code, LayaError, invalid
from shared.net.api import Headers, ServerSink, ServerStream
from shared.net.fields import CheckedHeaders
from shared.net.grpc_wire import ENCODINGS, Deframer, frame, parse_timeout
from shared.net.uploads import crowded_error, stalled_error

if TYPE_CHECKING:
    from shared.net.grpc_server import GrpcServer, Method

HIGH_WATER = 64 << 10  # bytes queued at which ``send`` waits
_LOW_WATER = HIGH_WATER // 2  # and at which it goes on
_LONGEST = 30 * 86_400.0  # seconds; a longer deadline is no deadline

_HEAD: Final = CheckedHeaders([(b":status", b"200"), (b"content-type", b"application/grpc")])
_OK: Final = CheckedHeaders([(b"grpc-status", b"0")])


class Encodable(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:
        """The message's bytes."""
        ...


Answer = TypeVar("Answer", bound="Encodable | bytes")


class ServerCall(ServerSink):
    """What a handler knows of its call, and how it answers.

    ``deadline`` is in the event loop's time, or None. ``metadata`` holds the request's headers but the pseudo-headers,
    several of one name joined by commas, ``-bin`` values still in base64. ``initial_metadata`` (before the first
    ``send``) and ``trailing_metadata`` are sent with the answer.
    """

    __slots__ = (
        "_deframer",
        "_drain",
        "_ended",
        "_kept",
        "_messages",
        "_server",
        "_started",
        "_stream",
        "_task",
        "_timer",
        "deadline",
        "initial_metadata",
        "metadata",
        "method",
        "path",
        "request_id",
        "trailing_metadata",
    )

    def __init__(self, server: GrpcServer, method: Method, path: bytes, stream: ServerStream) -> None:
        self.path = path
        self.metadata: dict[bytes, bytes] = {}
        self.deadline: float | None = None
        self.request_id = b""
        self.initial_metadata: Headers = []
        self.trailing_metadata: Headers = []
        self._server = server
        self.method = method
        self._stream = stream
        self._deframer: Deframer | None = None
        self._messages: list[bytes] = []
        self._kept = 0  # bytes of the request in the server's account
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._drain: asyncio.Future[None] | None = None
        self._started = False
        self._ended = False

    @property
    def peer(self) -> str:
        """Address of the client."""
        return self._stream.peer

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._ended

    async def send(self, message: Encodable | bytes) -> None:
        """Send a message of a streamed answer; waits only while over 64 KiB are queued.

        Messages sent without a wait between them leave in one write; none is ever held back for a later one.
        """
        if self._ended:
            return
        if not self._started:
            self.send_initial_metadata()
        self._stream.send(frame(message if isinstance(message, bytes) else message.SerializeToString()))
        if self._stream.queued > HIGH_WATER:
            if self._drain is None:
                self._drain = self._server.loop.create_future()
            await asyncio.shield(self._drain)  # another sender may wait for the same

    def send_initial_metadata(self) -> None:
        """Send the response headers now rather than with the first message."""
        if self._started or self._ended:
            return
        self._started = True
        if self.initial_metadata:
            self._stream.respond([*_HEAD, *self.initial_metadata])
        else:
            self._stream.respond(_HEAD)

    # The server's side.

    def open(self, headers: Headers, end: bool) -> None:
        """Take the request's headers."""
        metadata = self.metadata
        for name, value in headers:
            if name[0] != 0x3A:  # not a pseudo-header
                metadata[name] = metadata[name] + b"," + value if name in metadata else value
        self.request_id = self._server.name_request(metadata.get(names.REQUEST_ID))
        try:
            if self._server.check is not None:
                self._server.check(self)
            if (timeout := metadata.get(b"grpc-timeout")) is not None:
                self._set_deadline(parse_timeout(timeout))
            self._deframer = Deframer(self._server.max_message, metadata.get(b"grpc-encoding", b"identity"))
        except LayaError as error:
            self.initial_metadata.append((b"grpc-accept-encoding", ENCODINGS))
            self.fail(error)
            return
        if end:
            self._whole()
        else:
            self._server.uploads.progress(self, 0)

    def _set_deadline(self, seconds: float) -> None:
        if seconds < _LONGEST:
            loop = self._server.loop
            self.deadline = loop.time() + seconds
            self._timer = loop.call_at(self.deadline, self._expire)

    def on_data(self, data: bytes, end: bool) -> None:
        """A part of the request; it is held here, so the peer may go on."""
        if data:
            self._stream.consumed(len(data))
        deframer = self._deframer
        if self._ended or deframer is None or self._task is not None:
            return
        try:
            if data:
                self._messages += deframer.feed(data)
                if len(self._messages) > 1:
                    raise LayaError(Code.UNIMPLEMENTED, "INVALID_REQUEST", "This method takes one request message.")
            if end:
                deframer.finish()
        except LayaError as error:
            self.fail(error)
            return
        if end:
            self._whole()
        else:
            self._server.uploads.progress(self, deframer.pending + sum(map(len, self._messages)))

    def on_trailers(self, headers: Headers) -> None:
        """The request is over; gRPC requests have no trailers, so nobody reads them."""
        self.on_data(b"", True)

    def on_sent(self, n: int) -> None:
        """Bytes have left for the socket."""
        drain = self._drain
        if drain is not None and self._stream.queued <= _LOW_WATER:
            self._drain = None
            drain.set_result(None)

    def on_closed(self, code: int) -> None:
        """The stream is gone: whoever works for it stops at once."""
        self._end()
        if self._task is not None:
            self._task.cancel()

    def stalled(self) -> None:
        """The request did not go on in time."""
        self.fail(stalled_error())

    def crowded_out(self) -> None:
        """All requests that arrive are too much together, and this is the largest."""
        self._server.counters.count("grpc_crowded_out")
        self.fail(crowded_error())

    def fail(self, error: LayaError) -> None:
        """End the call with an error."""
        if not self._ended:
            self._finish(error.grpc_trailers())

    def stop(self, error: LayaError) -> None:
        """End the call with an error, and the handler with it."""
        self.fail(error)
        if self._task is not None:
            self._task.cancel()

    def succeed(self, answer: Encodable | bytes | None) -> None:
        """End the call with status OK, after the one message of a unary answer."""
        if self._ended:
            return
        if not self._started:
            self.send_initial_metadata()
        if answer is not None:
            self._stream.send(frame(answer if isinstance(answer, bytes) else answer.SerializeToString()))
        self._finish(_OK)

    def _finish(self, status: Headers) -> None:
        trailers = [*status, *self.trailing_metadata] if self.trailing_metadata else status
        if self._started:
            self._stream.trailers(trailers)
        else:
            self._started = True
            self._stream.respond([*_HEAD, *self.initial_metadata, *trailers], end=True)
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._messages = []
        self._deframer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        uploads = self._server.uploads
        uploads.end(self)
        if self._kept:
            uploads.let_go(self._kept)
            self._kept = 0

    def _whole(self) -> None:
        uploads = self._server.uploads
        uploads.end(self)
        if not self._messages:
            self.fail(LayaError(Code.UNIMPLEMENTED, "INVALID_REQUEST", "This method takes one request message."))
            return
        raw = self._messages.pop()
        if not uploads.keep(len(raw)):
            self.crowded_out()
            return
        self._kept = len(raw)
        kind = self.method.request_type
        try:
            request: Any = raw if kind is bytes else kind.FromString(raw)
        except Exception:  # protobuf's DecodeError, or whatever a request type of ours raises
            self.fail(invalid(f"The request is not a valid {kind.__name__} message."))
            return
        self._task = self._server.spawn(self, request)

    def _expire(self) -> None:
        self._timer = None
        self._server.counters.count("grpc_deadline")
        what = "The deadline passed before the answer was complete."
        during = "between_tokens" if self._started else "first_token"
        self.stop(LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", what, metadata={"phase": "total", "during": during}))
