"""Connections under test without sockets: a clock and a transport moved by hand, and a raw peer on the other side."""

from __future__ import annotations

import heapq
import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ngh2
import pytest
from ngh2 import Configuration, Connection, Role, Setting

from shared.net.api import ClientSink, ClientStream, Headers, ServerSink, ServerStream
from shared.net.settings import NetSettings

Header = tuple[bytes, bytes]
REQUEST: Headers = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/Un"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
RESPONSE: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS: Headers = [(b"grpc-status", b"0")]


class UnderTest:
    """Which engine the connections of the running test are on; set by the fixture ``engine_name``."""

    engine = "ngh2"


def net_settings(**changes: Any) -> NetSettings:
    """Settings for a connection under test."""
    return NetSettings(**{"engine": UnderTest.engine, **changes})


def replace_call(patch: pytest.MonkeyPatch, engine: Any, name: str, call: Callable[..., Any]) -> None:
    """Have a test's function stand in for one of an engine's calls, wherever that engine keeps it."""
    if isinstance(inspect.getattr_static(engine, name), types.FunctionType | types.MethodDescriptorType):
        patch.setattr(type(engine), name, lambda _, *args, **kwargs: call(*args, **kwargs))
    else:
        patch.setattr(engine, name, call)


class Timer:
    """What ManualLoop.call_later returns."""

    def __init__(self, when: float, run: Callable[[], None]) -> None:
        self.when = when
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """Never run it."""
        self.run = None


class ManualLoop:
    """The part of an event loop that connections use, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._soon: list[Timer] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()

    def time(self) -> float:
        """The clock."""
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Run at the next ``run``."""
        timer = Timer(self.now, lambda: callback(*args))
        self._soon.append(timer)
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Run once the clock is there."""
        timer = Timer(self.now + delay, lambda: callback(*args))
        heapq.heappush(self._timers, (timer.when, next(self._count), timer))
        return timer

    def run(self) -> None:
        """One turn after another until nothing is left to run now."""
        while self._soon:
            soon, self._soon = self._soon, []
            for timer in soon:
                if timer.run is not None:
                    timer.run()

    def advance(self, seconds: float) -> None:
        """Move the clock, running what falls due on the way."""
        end = self.now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if timer.run is not None:
                timer.run()
            self.run()
        self.now = end


class Wire:
    """A transport that keeps what is written until the test takes it; full beyond ``room`` bytes if that is set."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.protocol: Any = None
        self.out = bytearray()
        self.room: int | None = None
        self.full = False
        self.closing = False
        self.aborted = False
        self.high = 0
        self.writes = 0
        self.reading = True

    def attach(self, protocol: Any) -> None:
        """Make the connection."""
        self.protocol = protocol
        protocol.connection_made(self)
        self.loop.run()

    def write(self, data: bytes) -> None:
        """Keep the bytes; pause the protocol when there are too many."""
        assert not self.closing, "written after close"
        assert data, "an empty write"
        self.writes += 1
        self.out += data
        if self.room is not None and len(self.out) > self.room and not self.full:
            self.full = True
            self.protocol.pause_writing()

    def take(self) -> bytes:
        """What was written; the protocol may go on."""
        out = bytes(self.out)
        self.out.clear()
        if self.full:
            self.full = False
            self.protocol.resume_writing()
            self.loop.run()
        return out

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Noted."""
        self.high = high or 0

    def pause_reading(self) -> None:
        """Noted; the test goes on sending all the same."""
        self.reading = False

    def resume_reading(self) -> None:
        """Noted."""
        self.reading = True

    def get_write_buffer_size(self) -> int:
        """Bytes not taken."""
        return len(self.out)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """An address."""
        return ("127.0.0.1", 4242) if name == "peername" else default

    def is_closing(self) -> bool:
        """Whether close or abort was called."""
        return self.closing

    def close(self) -> None:
        """Lose the connection at the next turn."""
        if not self.closing:
            self.closing = True
            self.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        """As close; what was written is gone."""
        self.aborted = True
        self.out.clear()
        self.close()

    def lose(self) -> None:
        """The network takes the connection away."""
        if not self.closing:
            self.closing = True
            self.protocol.connection_lost(ConnectionResetError())
            self.loop.run()


@dataclass
class Seen:
    """What a raw peer has seen of one stream."""

    headers: list[Header] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    trailers: list[Header] | None = None
    ended: bool = False
    reset: int | None = None
    closed: int | None = None
    unacked: int = 0


class Raw:
    """A peer made of nothing but the engine library."""

    def __init__(
        self,
        role: Role,
        settings: dict[int, int] | None = None,
        *,
        window: int | None = 1 << 28,
        reads: bool = True,
        **config: Any,
    ) -> None:
        """``reads``: acknowledge what comes at once; else ``read`` does."""
        config.setdefault("stream_reset_rate_limit", (1 << 40, 1 << 40))
        config.setdefault("peer_max_concurrent_streams", 1 << 20)
        config.setdefault("max_send_header_block_length", 1 << 20)
        self.reads = reads
        self.connection = Connection(role, Configuration(auto_window_update=False, **config))
        self.connection.initiate_connection(settings or {})
        if window is not None:
            self.connection.set_local_window_size(window)
        self.streams: dict[int, Seen] = {}
        self.goaways: list[tuple[int, int]] = []
        self.pings = 0
        self.pongs: list[bytes] = []
        self.over: int | None = None
        self.windows: dict[int, int] = {}
        self.on_event: Callable[[Any], None] | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes and note what they say."""
        if self.over is not None:
            return
        self.connection.receive_data(data)
        self.note()

    def note(self) -> None:
        """Note events."""
        for event in self.connection.events():
            self._note(event)
            if self.on_event is not None:
                self.on_event(event)

    def _note(self, event: Any) -> None:
        kind = type(event)
        if kind is ngh2.GoAwayReceived:
            self.goaways.append((event.last_stream_id, event.error_code))
        elif kind is ngh2.ConnectionClosed:
            self.over = event.error_code
        elif kind is ngh2.PingReceived:
            self.pings += 1
        elif kind is ngh2.PingAcknowledged:
            self.pongs.append(event.opaque_data)
        elif kind is ngh2.WindowUpdated:
            self.windows[event.stream_id] = self.windows.get(event.stream_id, 0) + event.increment
        elif hasattr(event, "stream_id"):
            self._note_stream(event, self.streams.setdefault(event.stream_id, Seen()))

    def _note_stream(self, event: Any, seen: Seen) -> None:
        kind = type(event)
        if kind in (ngh2.RequestReceived, ngh2.ResponseReceived):
            seen.headers = list(event.headers)
            seen.ended = event.end_stream
        elif kind is ngh2.DataReceived:
            seen.data += event.data
            seen.ended = event.end_stream
            if self.reads and event.data:
                self.connection.acknowledge_received_data(len(event.data), event.stream_id)
            else:
                seen.unacked += len(event.data)
        elif kind is ngh2.TrailersReceived:
            seen.trailers = list(event.headers)
            seen.ended = True
        elif kind is ngh2.StreamReset:
            seen.reset = event.error_code
        elif kind is ngh2.StreamClosed:
            seen.closed = event.error_code

    def read(self, stream_id: int, n: int | None = None) -> None:
        """Acknowledge so many bytes of a stream (all by default)."""
        seen = self.streams[stream_id]
        n = seen.unacked if n is None else min(n, seen.unacked)
        if n:
            self.connection.acknowledge_received_data(n, stream_id)
            seen.unacked -= n

    def take(self) -> bytes:
        """Bytes to send."""
        try:
            out = self.connection.data_to_send()
        except ngh2.NGH2Error:
            return b""
        self.note()
        return out

    def request(self, headers: Iterable[Header] = REQUEST, body: bytes | None = None, end: bool = True) -> int:
        """Open a stream (client)."""
        if body is None:
            return self.connection.send_request(list(headers), end_stream=end)
        stream_id = self.connection.send_request(list(headers))
        self.connection.send_data(stream_id, body, end_stream=end)
        return stream_id


class Link:
    """A connection under test, its transport, and the raw peer at the other end."""

    def __init__(self, loop: ManualLoop, protocol: Any, raw: Raw) -> None:
        self.loop = loop
        self.protocol = protocol
        self.raw = raw
        self.wire = Wire(loop)
        self.wire.attach(protocol)
        self.chop = 0

    def push(self) -> bool:
        """The peer's bytes to the connection; false when there are none."""
        out = self.raw.take()
        if not out or self.wire.closing:
            return False
        step = self.chop or len(out)
        for at in range(0, len(out), step):
            self.protocol.data_received(out[at : at + step])
            self.loop.run()
        return True

    def pull(self) -> bool:
        """The connection's bytes to the peer; false when there are none."""
        self.loop.run()
        out = self.wire.take()
        if not out:
            return False
        self.raw.feed(out)
        return True

    def pump(self) -> None:
        """Both ways until there is silence."""
        for _ in range(100_000):
            if not (self.push() | self.pull()):
                return
        raise AssertionError("the two never stop talking")


def pump(*links: Link) -> None:
    """Several links until there is silence on all."""
    for _ in range(100_000):
        if not any([link.push() | link.pull() for link in links]):
            return
    raise AssertionError("they never stop talking")


class Heard(ServerSink):
    """A request's owner that writes down what it hears; ``takes`` acknowledges bytes at once."""

    def __init__(self, stream: ServerStream, headers: Headers, end: bool, takes: bool = True) -> None:
        self.stream = stream
        self.headers = headers
        self.ended = end
        self.takes = takes
        self.data = bytearray()
        self.trailers: Headers | None = None
        self.sent = 0
        self.closed: list[int] = []

    def on_data(self, data: bytes, end: bool) -> None:
        """Noted."""
        assert not self.closed
        self.data += data
        self.ended = end
        if self.takes:
            self.stream.consumed(len(data))

    def on_trailers(self, headers: Headers) -> None:
        """Noted."""
        assert not self.closed
        self.trailers = headers
        self.ended = True

    def on_sent(self, n: int) -> None:
        """Noted."""
        assert not self.closed
        assert n > 0
        self.sent += n

    def on_closed(self, code: int) -> None:
        """Noted."""
        self.closed.append(code)


class Asked(ClientSink):
    """The owner of a request of ours; as ``Heard``."""

    def __init__(self, takes: bool = True) -> None:
        self.stream: ClientStream | None = None
        self.takes = takes
        self.headers: Headers = []
        self.data = bytearray()
        self.trailers: Headers | None = None
        self.ended = False
        self.sent = 0
        self.closed: list[tuple[int, bool]] = []

    def on_response(self, headers: Headers, end: bool) -> None:
        """Noted."""
        assert not self.closed
        self.headers = headers
        self.ended = end

    def on_response_data(self, data: bytes, end: bool) -> None:
        """Noted."""
        assert not self.closed
        self.data += data
        self.ended = end
        if self.takes and self.stream is not None:
            self.stream.consumed(len(data))

    def on_response_trailers(self, headers: Headers) -> None:
        """Noted."""
        assert not self.closed
        self.trailers = headers
        self.ended = True

    def on_request_sent(self, n: int) -> None:
        """Noted."""
        assert not self.closed
        self.sent += n

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        """Noted."""
        self.closed.append((code, unprocessed))


def server_settings(**values: int) -> dict[int, int]:
    """SETTINGS of a raw server, by lower-case name."""
    return {int(Setting[name.upper()]): value for name, value in values.items()}
