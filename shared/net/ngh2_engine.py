"""The HTTP/2 engine on libnghttp2, through ``ngh2``. The only file that imports it.

What the engine does differently from what its callers might expect is handled here or named here:

* received bytes are acknowledged by us alone (no automatic window updates);
* the calls of the hot path are the engine's own C methods, bound once: a wrapper would cost more than some of them;
* events come from ``receive`` and from ``take``: callers dispatch after both.
"""

from __future__ import annotations

from typing import Any, Final

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    DataReceived,
    DenialOfServiceError,
    GoAwayReceived,
    InformationalResponseReceived,
    NGH2Error,
    PingAcknowledged,
    PingReceived,
    Priority,
    RequestReceived,
    ResponseReceived,
    Role,
    Setting,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
    WindowUpdated,
)

from shared.net import engine as seam
from shared.net.monomorph import own_copies
from shared.net.settings import FRAME_HEADER, NetSettings

_ROUND_ROBIN = Priority(3, True)
# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_DataReceived: Final = DataReceived
_StreamClosed: Final = StreamClosed
_RequestReceived: Final = RequestReceived
_ResponseReceived: Final = ResponseReceived
_TrailersReceived: Final = TrailersReceived
_WindowUpdated: Final = WindowUpdated


class Ngh2Engine:
    """One connection's state in libnghttp2."""

    __slots__ = (
        "_connection",
        "_events",
        "acknowledge",
        "errors",
        "floods",
        "hello",
        "ping",
        "queued",
        "receive",
        "request",
        "reset",
        "respond",
        "send",
        "take",
        "trailers",
    )

    def __init__(self, role: seam.Role, settings: NetSettings) -> None:
        # ValueError: an argument that the native library refuses; MemoryError: it has none.
        self.errors: tuple[type[Exception], ...] = (NGH2Error, ValueError, MemoryError)
        self.floods: tuple[type[Exception], ...] = (DenialOfServiceError,)
        server = role == "server"
        connection = Connection(Role.SERVER if server else Role.CLIENT, _configuration(settings))
        connection.initiate_connection(_first_settings(server, settings))
        connection.set_local_window_size(settings.connection_window)
        self.hello = _tell_fewer_streams(connection.data_to_send(), settings) if server else connection.data_to_send()
        self._connection = connection
        self._events = connection.events
        self.receive = connection.receive_data
        self.take = connection.data_to_send
        self.request = connection.send_request
        self.respond = connection.send_response
        self.send = connection.send_data
        self.trailers = connection.send_trailers
        self.reset = connection.reset_stream
        self.acknowledge = connection.acknowledge_received_data
        self.queued = connection.queued_body_size
        self.ping = connection.ping

    def dispatch(self, to: seam.EngineEvents) -> bool:
        """Tell the connection of each event in turn; one owner's fault does not keep the others from theirs."""
        events: list[Any] = self._events()  # Any: the tests on the class below are what tells them apart
        if not events:
            return False
        for event in events:
            kind = type(event)
            try:
                if kind is _DataReceived:
                    to.on_data(event.stream_id, event.data, event.end_stream)
                elif kind is _StreamClosed:
                    to.on_stream_closed(event.stream_id, event.error_code, event.local_error is not None)
                elif kind is _RequestReceived:
                    to.on_request(event.stream_id, event.headers, event.end_stream)
                elif kind is _ResponseReceived:
                    to.on_response(event.stream_id, event.headers, event.end_stream)
                elif kind is _TrailersReceived:
                    to.on_trailers(event.stream_id, event.headers)
                elif kind is _WindowUpdated:
                    to.on_window(event.stream_id)
                else:
                    _dispatch_rare(event, to)
            except Exception as error:
                to.on_fault(getattr(event, "stream_id", 0), error)
        return True

    def wants_write(self) -> bool:
        """Whether there is anything to take."""
        return self._connection.want_write

    def share_fairly(self, stream_id: int) -> None:
        """Round-robin instead of first come, first served. A client's engine has no such choice."""
        if self._connection.role is Role.SERVER:
            self._connection.set_stream_priority(stream_id, _ROUND_ROBIN, ignore_client_signal=True)

    def peer_window(self, stream_id: int) -> int:
        """Bytes we may send on a stream, or on the connection (0)."""
        connection = self._connection
        return connection.stream_remote_window_size(stream_id) if stream_id else connection.remote_window_size

    def local_window(self) -> int:
        """Bytes the peer may still send on the connection."""
        return self._connection.local_window_size

    def peer_max_streams(self) -> int:
        """The peer's MAX_CONCURRENT_STREAMS; 2³²-1 when it set none."""
        return self._connection.remote_settings[Setting.MAX_CONCURRENT_STREAMS]

    def shutdown_notice(self) -> None:
        """Queue GOAWAY with the largest stream id."""
        self._connection.send_shutdown_notice()

    def goaway(self, code: int) -> None:
        """Queue GOAWAY with the last stream id that was seen."""
        self._connection.send_goaway(code)


class _ServerEngine(Ngh2Engine):
    __slots__ = ()


class _ClientEngine(Ngh2Engine):
    __slots__ = ()


own_copies(_ServerEngine, "dispatch")
own_copies(_ClientEngine, "dispatch")


def ngh2_engine(role: seam.Role, settings: NetSettings) -> Ngh2Engine:
    """An engine for one side; a class each, see monomorph.py."""
    return _ServerEngine(role, settings) if role == "server" else _ClientEngine(role, settings)


def _dispatch_rare(event: object, to: seam.EngineEvents) -> None:
    if isinstance(event, SettingsReceived):
        to.on_settings()
    elif isinstance(event, PingReceived):
        to.on_ping()
    elif isinstance(event, PingAcknowledged):
        to.on_pong(event.opaque_data)
    elif isinstance(event, GoAwayReceived):
        to.on_goaway(event.last_stream_id, event.error_code)
    elif isinstance(event, ConnectionClosed):
        to.on_end(event.error_code)
    elif isinstance(event, InformationalResponseReceived):
        to.on_oddity()
    # StreamReset is followed by StreamClosed with the same code; pushes, ALTSVC, ORIGIN and priorities are of no use
    # here, and SETTINGS acknowledgements of no interest.


def _tell_fewer_streams(hello: bytes, settings: NetSettings) -> bytes:
    """A server's first bytes, with the limit that the peer is to keep in place of the engine's own higher one.

    The engine ends a connection whose peer is one stream over its limit, also when that stream's reset still waits to
    be written; there is no way to give it a limit other than the one it announces.
    """
    length = int.from_bytes(hello[:3], "big")
    for at in range(FRAME_HEADER, FRAME_HEADER + length, 6):
        if int.from_bytes(hello[at : at + 2], "big") == Setting.MAX_CONCURRENT_STREAMS:
            return hello[: at + 2] + settings.max_streams.to_bytes(4, "big") + hello[at + 6 :]
    raise AssertionError("the engine's first SETTINGS do not name MAX_CONCURRENT_STREAMS")


def _configuration(settings: NetSettings) -> Configuration:
    return Configuration(
        auto_window_update=False,
        # Until the peer's SETTINGS: what RFC 9113 recommends as the least a server should allow.
        peer_max_concurrent_streams=100,
        # The default of 64 KiB would turn a large header block into a local refusal.
        max_send_header_block_length=600_000,
        max_inbound_header_list_size=settings.hard_header_bytes,
        max_inbound_header_count=settings.max_header_count,
        max_continuations=16,
        # Twice our own budget: ours acts first and names the reason; this one holds if ours is ever wrong.
        stream_reset_rate_limit=(2 * settings.resets.burst, 2 * settings.resets.rate),
    )


def _first_settings(server: bool, settings: NetSettings) -> dict[Setting, int]:
    # Window sizes are set here once: changing them while streams run can end in FLOW_CONTROL_ERROR.
    values = {
        Setting.INITIAL_WINDOW_SIZE: settings.stream_window,
        Setting.MAX_HEADER_LIST_SIZE: settings.max_header_bytes,
    }
    if server:
        values[Setting.MAX_CONCURRENT_STREAMS] = settings.max_streams + settings.stream_slack
        values[Setting.NO_RFC7540_PRIORITIES] = 1
    else:
        values[Setting.ENABLE_PUSH] = 0
    return values
