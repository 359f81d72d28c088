"""The receiving half of an engine on ``h2``: a peer's frames in, events for the connection out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from h2 import events as told
from h2.connection import H2Connection
from h2.exceptions import DenialOfServiceError, H2Error, ProtocolError, StreamClosedError

from shared.net import engine as seam
from shared.net.api import PROTOCOL_ERROR, REFUSED_STREAM
from shared.net.h2_fields import Kind, believed
from shared.net.h2_outbox import Outbox, Outgoing
from shared.net.settings import FRAME_HEADER, MAX_FRAME, NetSettings

LAST_ID: Final = (1 << 31) - 1
_PREFACE: Final = 24
_HEADERS, _PUSH_PROMISE, _GOAWAY, _CONTINUATION = 0x1, 0x5, 0x7, 0x9
_BLOCKS: Final = frozenset((_HEADERS, _PUSH_PROMISE, _CONTINUATION))
_END_HEADERS: Final = 0x4
_MAX_CONTINUATIONS: Final = 16
_frame_header = Struct(">IxI").unpack_from  # length and type, stream
_goaway = Struct(">II").unpack_from  # last stream, code

Event = tuple[Any, ...]  # name of an EngineEvents method, and its arguments


class Inbound(ABC):
    """What arrives. Base of ``H2Engine``, with the state that both halves share."""

    __slots__ = (
        "_block",
        "_closed",
        "_end_code",
        "_events",
        "_failed",
        "_h2",
        "_last",
        "_leaving",
        "_max_fields",
        "_out",
        "_outbox",
        "_over",
        "_parting",
        "_preface",
        "_server",
        "_streams",
        "_unacknowledged",
    )

    # ValueError: an argument that is refused.
    errors: tuple[type[Exception], ...] = (H2Error, ValueError)
    floods: tuple[type[Exception], ...] = (DenialOfServiceError,)

    def __init__(self, h2: H2Connection, server: bool, settings: NetSettings) -> None:
        self._h2 = h2
        self._server = server
        self._outbox = Outbox(h2)
        self._streams: dict[int, Outgoing] = {}
        self._events: list[Event] = []
        self._out = bytearray()  # frames that have not been taken
        self._closed: list[Event] = []  # told once what ends the streams has been taken
        self._preface = _PREFACE if server else 0  # bytes of it that are still to come
        self._block = 0  # frames of a header block that is not complete
        self._max_fields = settings.max_header_count
        self._unacknowledged = 0  # bytes received, on whatever stream, that nobody has taken
        self._last = 0  # the last stream of the peer's that was told of
        self._leaving = LAST_ID  # the last stream of the peer's that our GOAWAY names
        self._parting = False  # the peer said GOAWAY
        self._end_code = 0
        self._over = False  # on_end is told
        self._failed = False

    def receive(self, data: bytes | bytearray | memoryview, /) -> None:
        """Take whole frames (and the preface in any pieces)."""
        self._check()
        view = memoryview(data)
        size = len(view)
        try:
            at = min(self._preface, size)
            if at:
                self._preface -= at
                self._feed(view[:at])
            while at < size:
                word, stream_id = _frame_header(view, at)
                end = at + FRAME_HEADER + (word >> 8)
                if word >> 8 > MAX_FRAME:
                    raise ProtocolError(f"a frame of {word >> 8} bytes")
                self._receive_frame(word & 0xFF, stream_id & LAST_ID, view[at:end])
                at = end
        except self.errors:
            self._failed = True
            raise
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            self._failed = True  # a defect of the library's, met by bytes that a peer chose
            raise ProtocolError(f"h2 cannot read a frame ({type(error).__name__}: {error})") from error

    def dispatch(self, to: seam.EngineEvents) -> bool:
        """Tell the connection of each event in turn; one owner's fault does not keep the others from theirs."""
        events = self._events
        if not events:
            return False
        self._events = []
        for name, *arguments in events:
            try:
                getattr(to, name)(*arguments)
            except Exception as error:
                to.on_fault(arguments[0] if name in _OF_A_STREAM else 0, error)
        return True

    @abstractmethod
    def reset(self, stream_id: int, code: int, /) -> None:
        """Queue RST_STREAM."""

    def _check(self) -> None:
        if self._failed:
            raise ProtocolError("the connection is over")

    def _cut(self, stream_id: int, code: int) -> None:
        """RST_STREAM, unless both halves have ended."""
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream_id, code)

    def _drain(self) -> None:
        """Put what ``h2`` has framed behind what is here."""
        data = self._h2.data_to_send()
        if data:
            self._out += data

    def _close(self, stream: Outgoing, code: int, events: list[Event], *, local: bool = False) -> None:
        """The stream is over; ``events`` is where that is noted."""
        del self._streams[stream.id]
        if stream.opened and not self._server:
            self._outbox.opened -= 1
        self._outbox.forget(stream)
        events.append(("on_stream_closed", stream.id, code, local))

    def _receive_frame(self, kind: int, stream_id: int, frame: memoryview) -> None:
        if kind == _GOAWAY and not self._block:
            self._on_goaway(stream_id, frame[FRAME_HEADER:])
            return
        if kind in _BLOCKS:
            self._block = 0 if frame[4] & _END_HEADERS else self._block + 1
            if self._block > _MAX_CONTINUATIONS:
                raise DenialOfServiceError("a header block in too many frames")
        self._feed(frame)

    def _feed(self, piece: memoryview) -> None:
        for event in self._h2.receive_data(piece):
            handle = _HANDLERS.get(type(event))
            if handle is not None:
                handle(self, event)

    def _on_request(self, event: told.RequestReceived) -> None:
        stream_id = event.stream_id
        headers = self._believe(stream_id, event.headers, "request")
        if headers is None:
            return
        if stream_id > self._leaving:
            self._cut(stream_id, REFUSED_STREAM)  # our GOAWAY has told the peer that it is not served
            return
        self._last = stream_id
        self._streams[stream_id] = Outgoing(stream_id, opened=True)
        self._events.append(("on_request", stream_id, headers, event.stream_ended is not None))

    def _on_response(self, event: told.ResponseReceived) -> None:
        headers = self._believe(event.stream_id, event.headers, "response")
        if headers is not None and event.stream_id in self._streams:
            self._events.append(("on_response", event.stream_id, headers, event.stream_ended is not None))

    def _on_trailers(self, event: told.TrailersReceived) -> None:
        headers = self._believe(event.stream_id, event.headers, "trailers")
        if headers is not None and event.stream_id in self._streams:
            self._events.append(("on_trailers", event.stream_id, headers))

    def _believe(self, stream_id: int, headers: Any, kind: Kind) -> tuple[seam.Header, ...] | None:
        """The block, or None when it is malformed: the stream is reset then."""
        if len(headers) > self._max_fields:
            raise DenialOfServiceError(f"a header block of {len(headers)} fields")
        block = believed(headers, kind)
        if block is None:
            self._events.append(("on_oddity",))
            if stream_id in self._streams:
                self.reset(stream_id, PROTOCOL_ERROR)
            else:
                self._cut(stream_id, PROTOCOL_ERROR)
        return block

    def _on_data(self, event: told.DataReceived) -> None:
        data = event.data or b""
        stream = self._streams.get(event.stream_id)
        wanted = len(data) if stream is not None else 0
        rest = (event.flow_controlled_length or 0) - wanted  # padding, and what nobody will acknowledge
        if rest:
            self._h2.acknowledge_received_data(rest, event.stream_id)
        if stream is not None:
            stream.unacknowledged += wanted
            self._unacknowledged += wanted
            self._events.append(("on_data", event.stream_id, data, event.stream_ended is not None))

    def _on_remote_end(self, event: told.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.remote_ended = True
            if stream.framed_end:
                self._close(stream, 0, self._events)

    def _on_reset(self, event: told.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            self._close(stream, int(event.error_code or 0), self._events)

    def _on_window(self, event: told.WindowUpdated) -> None:
        stream_id = event.stream_id or 0
        if stream_id:
            self._outbox.unstall(stream_id)
        self._events.append(("on_window", stream_id))

    def _on_settings(self, event: told.RemoteSettingsChanged) -> None:
        self._outbox.unstall_all()
        self._events.append(("on_settings",))

    def _on_ping(self, event: told.PingReceived) -> None:
        self._events.append(("on_ping",))

    def _on_pong(self, event: told.PingAckReceived) -> None:
        self._events.append(("on_pong", event.ping_data))

    def _on_oddity(self, event: told.Event) -> None:
        self._events.append(("on_oddity",))

    def _on_goaway(self, stream_id: int, body: memoryview) -> None:
        if stream_id or len(body) < 8:
            raise ProtocolError("a malformed GOAWAY")
        last, code = _goaway(body)
        last &= LAST_ID
        self._parting = True
        self._end_code = code
        self._events.append(("on_goaway", last, code))
        if not self._server:
            for stream in [s for s in self._streams.values() if s.opened and s.id > last]:
                self._drain()
                self._cut(stream.id, REFUSED_STREAM)
                self._h2.clear_outbound_data_buffer()  # the peer wants to hear no more of the stream
                self._close(stream, REFUSED_STREAM, self._events)


_OF_A_STREAM: Final = frozenset(
    ("on_request", "on_response", "on_data", "on_trailers", "on_stream_closed", "on_window")
)
# Pushes cannot come, ALTSVC is of no use, an acknowledgement of our settings of no interest.
_HANDLERS: Final[dict[type, Any]] = {
    told.RequestReceived: Inbound._on_request,
    told.ResponseReceived: Inbound._on_response,
    told.TrailersReceived: Inbound._on_trailers,
    told.DataReceived: Inbound._on_data,
    told.StreamEnded: Inbound._on_remote_end,
    told.StreamReset: Inbound._on_reset,
    told.WindowUpdated: Inbound._on_window,
    told.RemoteSettingsChanged: Inbound._on_settings,
    told.PingReceived: Inbound._on_ping,
    told.PingAckReceived: Inbound._on_pong,
    told.InformationalResponseReceived: Inbound._on_oddity,
    told.PriorityUpdated: Inbound._on_oddity,
    told.UnknownFrameReceived: Inbound._on_oddity,
}
