"""The HTTP/2 engine on pure-Python ``h2``: the way out if ``ngh2`` should ever be abandoned.

It costs many times as much CPU and keeps the same promises. Where ``h2`` has ways of its own:

* it takes a GOAWAY, in either direction, for the end of everything. So those frames pass it by: they are read and
  written here, and streams that run go on;
* it frames at once what it is given; see h2_outbox.py;
* an exception costs all events of the bytes that it was given, so it is fed frame by frame (h2_inbound.py);
* it ends the connection over a malformed header block; here only the stream ends (h2_fields.py). A body that is not
  as long as its ``content-length`` still costs the connection;
* its connections are circles of objects, which only the collector frees. Here they go with their engine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import NoAvailableStreamIDError, ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from shared.net import engine as seam
from shared.net.api import REFUSED_STREAM
from shared.net.h2_inbound import LAST_ID, Inbound
from shared.net.h2_outbox import Outgoing
from shared.net.settings import NetSettings

_MAX_SENT_HEADERS: Final = 600_000  # bytes of names and values; beyond this a block is refused here
_NO_RFC7540_PRIORITIES: Final = 0x9


class H2Engine(Inbound):
    """One connection's state in ``h2``."""

    __slots__ = ("_next_id", "hello")

    def __init__(self, role: seam.Role, settings: NetSettings) -> None:
        server = role == "server"
        h2 = _connect(server, settings)
        super().__init__(h2, server, settings)
        self.hello = h2.data_to_send()
        # More than the peer has been told; see NetSettings.stream_slack.
        h2.local_settings = _first_settings(server, settings, settings.max_streams + settings.stream_slack)
        self._next_id = 1

    def wants_write(self) -> bool:
        """Whether there is anything to take, or to tell once it has been taken."""
        self._drain()
        return bool(
            self._out
            or self._closed
            or self._outbox.ready
            or (self._parting and self._outbox.unopened())
            or self._ending()
        )

    def take(self, amount: int, /) -> bytes:
        """At most so many bytes."""
        self._check()
        out, outbox = self._out, self._outbox
        self._drain()
        if self._parting:
            for stream in outbox.unopened():
                self._close(stream, REFUSED_STREAM, self._closed, local=True)
        while len(out) < amount:
            framed = outbox.frame()
            if framed is None:
                break
            self._drain()
            if framed.framed_end and framed.remote_ended:
                self._close(framed, 0, self._closed)
        taken = bytes(out[:amount])
        del out[:amount]
        self._events += self._closed
        self._closed = []
        if self._ending():
            self._over = True
            self._events.append(("on_end", self._end_code))
        return taken

    def request(self, headers: Sequence[seam.Header], /, *, end_stream: bool = False) -> int:
        """Open a stream."""
        self._check()
        if self._parting:
            raise ProtocolError("the peer takes no new streams")
        stream_id = self._next_id
        if stream_id > LAST_ID:
            raise NoAvailableStreamIDError("all stream ids have been used")
        self._next_id = stream_id + 2
        self._streams[stream_id] = stream = Outgoing(stream_id, opened=False)
        if self._sendable(stream, headers):
            stream.head = tuple(headers)
            stream.head_ends = stream.ended = end_stream
            stream.responded = True
            self._outbox.open(stream)
        return stream_id

    def respond(self, stream_id: int, headers: Sequence[seam.Header], /, *, end_stream: bool = False) -> None:
        """Queue final response headers."""
        stream = self._writable(stream_id)
        if stream.responded:
            raise ProtocolError(f"stream {stream_id} has its response already")
        if self._sendable(stream, headers):
            stream.head = tuple(headers)
            stream.head_ends = stream.ended = end_stream
            stream.responded = True
            self._outbox.due(stream)

    def send(self, stream_id: int, data: bytes, /, *, end_stream: bool = False) -> None:
        """Queue body bytes."""
        stream = self._writable(stream_id, responded=True)
        stream.ended = end_stream
        if data:
            stream.chunks.append(data)
            stream.size += len(data)
            self._outbox.total += len(data)
        if data or end_stream:
            self._outbox.due(stream)

    def trailers(self, stream_id: int, headers: Sequence[seam.Header], /) -> None:
        """Queue trailers behind the body bytes."""
        stream = self._writable(stream_id, responded=True)
        if self._sendable(stream, headers):
            stream.trailers = tuple(headers)
            stream.ended = True
            self._outbox.due(stream)

    def reset(self, stream_id: int, code: int, /) -> None:
        """Queue RST_STREAM; a request that has not left never leaves."""
        self._check()
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.opened:
                self._cut(stream_id, code)
            self._close(stream, code, self._closed, local=not stream.opened)

    def acknowledge(self, amount: int, stream_id: int, /) -> None:
        """So many received bytes have been taken."""
        self._check()
        stream = self._streams.get(stream_id)
        most = self._unacknowledged if stream is None else stream.unacknowledged
        if amount > most:
            raise ValueError(f"{amount} bytes cannot be acknowledged: {most} came")
        if stream is not None:
            stream.unacknowledged -= amount
        self._unacknowledged -= amount
        self._h2.acknowledge_received_data(amount, stream_id)

    def queued(self, stream_id: int | None = None, /) -> int:
        """Body bytes that have not been taken."""
        if stream_id is None:
            return self._outbox.total
        stream = self._streams.get(stream_id)
        return stream.size if stream is not None else 0

    def share_fairly(self, stream_id: int) -> None:
        """Bodies take turns anyway."""
        self._stream(stream_id)

    def peer_window(self, stream_id: int) -> int:
        """Bytes we may send on a stream, within the connection's window, or on the connection (0)."""
        if not stream_id:
            return self._h2.outbound_flow_control_window
        if self._stream(stream_id).opened:
            return self._h2.local_flow_control_window(stream_id)
        return min(self._h2.outbound_flow_control_window, self._h2.remote_settings.initial_window_size)

    def local_window(self) -> int:
        """Bytes the peer may still send on the connection."""
        return self._h2.inbound_flow_control_window

    def peer_max_streams(self) -> int:
        """The peer's MAX_CONCURRENT_STREAMS; 2³²+1 when it set none."""
        return self._h2.remote_settings.max_concurrent_streams

    def ping(self, payload: bytes, /) -> None:
        """Queue a PING."""
        self._check()
        self._h2.ping(payload)

    def shutdown_notice(self) -> None:
        """Queue GOAWAY with the largest stream id."""
        self._write_goaway(LAST_ID, 0)

    def goaway(self, code: int) -> None:
        """Queue GOAWAY with the last stream id that was seen."""
        self._leaving = self._last
        self._end_code = code
        self._write_goaway(self._last, code)

    def _write_goaway(self, last: int, code: int) -> None:
        self._check()
        self._drain()
        self._out += seam.goaway_frame(last, code)

    def _ending(self) -> bool:
        """Whether one side has said GOAWAY, and all is done and taken."""
        said = self._parting or self._leaving < LAST_ID
        return said and not (self._streams or self._out or self._closed or self._over or self._failed)

    def _stream(self, stream_id: int) -> Outgoing:
        stream = self._streams.get(stream_id)
        if stream is None or self._failed:
            raise StreamClosedError(stream_id)
        return stream

    def _writable(self, stream_id: int, *, responded: bool = False) -> Outgoing:
        stream = self._stream(stream_id)
        if stream.ended or (responded and not stream.responded):
            raise ProtocolError(f"stream {stream_id} has no open body")
        return stream

    def _sendable(self, stream: Outgoing, headers: Sequence[seam.Header]) -> bool:
        """Whether a block is of a size to be sent; if not, the stream ends."""
        if sum([len(name) + len(value) for name, value in headers]) <= _MAX_SENT_HEADERS:
            return True
        if stream.opened:
            self.reset(stream.id, REFUSED_STREAM)
        else:
            self._close(stream, REFUSED_STREAM, self._closed, local=True)
        return False


class _Connection(H2Connection):
    """Remembers the ends of fewer streams than ``h2`` does by itself: about 2 MiB a connection at most."""

    MAX_CLOSED_STREAMS = 1 << 14
    _frame_dispatch_table: Any

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self._frame_dispatch_table = _Methods(self, self._frame_dispatch_table)


class _Methods:
    """The connection's table of its own methods, without holding it."""

    __slots__ = ("_connection", "_names")

    def __init__(self, connection: H2Connection, table: dict[type, Callable[..., Any]]) -> None:
        self._connection = weakref.ref(connection)
        self._names = {kind: method.__name__ for kind, method in table.items()}

    def __getitem__(self, kind: type) -> Any:
        return getattr(self._connection(), self._names[kind])


def h2_engine(role: seam.Role, settings: NetSettings) -> H2Engine:
    """An engine for one side."""
    return H2Engine(role, settings)


def _connect(server: bool, settings: NetSettings) -> H2Connection:
    h2 = _Connection(
        H2Configuration(
            client_side=not server,
            header_encoding=None,
            # What goes out was checked (fields.py), what comes in is checked here, at the cost of the stream alone.
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
        )
    )
    h2.local_settings = _first_settings(server, settings, settings.max_streams)
    h2.decoder.max_header_list_size = settings.hard_header_bytes
    h2.initiate_connection()
    h2.increment_flow_control_window(settings.connection_window - 65_535)
    return h2


def _first_settings(server: bool, settings: NetSettings, streams: int) -> Settings:
    values: dict[Any, int] = {
        SettingCodes.INITIAL_WINDOW_SIZE: settings.stream_window,
        SettingCodes.MAX_HEADER_LIST_SIZE: settings.max_header_bytes,
    }
    if server:
        values[SettingCodes.MAX_CONCURRENT_STREAMS] = streams
        values[_NO_RFC7540_PRIORITIES] = 1
    else:
        values[SettingCodes.ENABLE_PUSH] = 0
    return Settings(client=not server, initial_values=values)
