"""The seam over the HTTP/2 engine: what a connection asks of it, and what it tells the connection.

An engine is sans-I/O: bytes in, events and bytes out. It does framing, HPACK, stream states and flow control for one
connection. Everything that depends on which engine it is lives behind this seam, so that another one can take its
place by passing the same tests.

Calls about a single stream may raise one of ``errors`` when the stream is already over inside the engine while its
end has not been dispatched yet: callers drop what they wanted to send, touch the connection, and let the next flush
find out how things stand. ``receive`` and ``take`` raise one of ``errors`` when the connection is lost; nothing but
``dispatch`` may be called after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, Protocol

from mypy_extensions import mypyc_attr

from shared.net.settings import NetSettings

Role = Literal["client", "server"]
Header = tuple[bytes, bytes]


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineEvents(ABC):
    """The connection, as its engine sees it. Called from ``dispatch`` only, in protocol order."""

    __slots__ = ()

    @abstractmethod
    def on_request(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """A peer opened a stream (server only)."""

    @abstractmethod
    def on_response(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        """Final response headers (client only)."""

    @abstractmethod
    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        """One DATA frame's bytes, without padding. Each byte must be acknowledged, of unknown streams too."""

    @abstractmethod
    def on_trailers(self, stream_id: int, headers: tuple[Header, ...]) -> None:
        """A trailing header block; it ends the peer's half."""

    @abstractmethod
    def on_stream_closed(self, stream_id: int, code: int, local: bool) -> None:
        """The stream is over. ``local``: the engine itself refused to send it, so the peer's code means nothing."""

    @abstractmethod
    def on_window(self, stream_id: int) -> None:
        """The peer gave window to a stream, or to the connection (0)."""

    @abstractmethod
    def on_settings(self) -> None:
        """The peer's settings arrived."""

    @abstractmethod
    def on_ping(self) -> None:
        """A PING arrived; the engine answers it."""

    @abstractmethod
    def on_pong(self, payload: bytes) -> None:
        """The answer to one of our PINGs."""

    @abstractmethod
    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer takes no new streams; those above the last id are closed as REFUSED_STREAM."""

    @abstractmethod
    def on_oddity(self) -> None:
        """Something legal that we have no use for, such as an informational response."""

    @abstractmethod
    def on_end(self, code: int) -> None:
        """The engine has no more to read or write; ``code`` is that of the last GOAWAY, whoever sent it."""

    @abstractmethod
    def on_fault(self, stream_id: int, error: Exception) -> None:
        """An owner raised while it was told of an event; stream 0 when none was concerned."""


class Engine(Protocol):
    """One connection's HTTP/2 state."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its calls may raise."""
        ...

    @property
    def floods(self) -> tuple[type[Exception], ...]:
        """Those of them that say that the peer asks too much."""
        ...

    @property
    def hello(self) -> bytes:
        """The first bytes to write: preface (client), SETTINGS, window. A server's name ``max_streams`` as the limit,
        while the engine itself tolerates ``stream_slack`` more."""
        ...

    def receive(self, data: bytes | bytearray | memoryview, /) -> None:
        """Take whole frames (and, on a server, the preface in any pieces) from the peer."""
        ...

    def dispatch(self, to: EngineEvents) -> bool:
        """Tell the connection what happened since the last call; false when nothing did."""
        ...

    def wants_write(self) -> bool:
        """Whether ``take`` would give bytes or lead to events."""
        ...

    def take(self, amount: int, /) -> bytes:
        """At most so many bytes for the transport; fewer mean that there are no more. Then ``dispatch`` again."""
        ...

    def request(self, headers: Sequence[Header], /, *, end_stream: bool = False) -> int:
        """Open a stream and return its id."""
        ...

    def respond(self, stream_id: int, headers: Sequence[Header], /, *, end_stream: bool = False) -> None:
        """Queue final response headers."""
        ...

    def send(self, stream_id: int, data: bytes, /, *, end_stream: bool = False) -> None:
        """Queue body bytes."""
        ...

    def trailers(self, stream_id: int, headers: Sequence[Header], /) -> None:
        """Queue trailers behind the body bytes and end our half."""
        ...

    def reset(self, stream_id: int, code: int, /) -> None:
        """Queue RST_STREAM. What the stream still has queued is thrown away."""
        ...

    def acknowledge(self, amount: int, stream_id: int, /) -> None:
        """So many received bytes have been taken; of a closed stream they count for the connection alone."""
        ...

    def queued(self, stream_id: int | None = None, /) -> int:
        """Body bytes of a stream, or of all, that have not been taken."""
        ...

    def share_fairly(self, stream_id: int) -> None:
        """Have the stream take turns with others, frame by frame (server; a client's engine need not)."""
        ...

    def peer_window(self, stream_id: int) -> int:
        """Bytes the peer lets us send on a stream, or on the connection (0)."""
        ...

    def local_window(self) -> int:
        """Bytes the peer may still send on the connection."""
        ...

    def peer_max_streams(self) -> int:
        """The peer's MAX_CONCURRENT_STREAMS; a very large number when it set none."""
        ...

    def ping(self, payload: bytes, /) -> None:
        """Queue a PING with eight bytes."""
        ...

    def shutdown_notice(self) -> None:
        """Queue the first GOAWAY of a graceful end (server): streams on their way are still served."""
        ...

    def goaway(self, code: int) -> None:
        """Queue a GOAWAY that names the last stream that was seen."""
        ...


def make_engine(role: Role, settings: NetSettings) -> Engine:
    """An engine of the kind that ``settings.engine`` names.

    Raises ValueError for a name that is not known.
    """
    if settings.engine == "ngh2":
        from shared.net.ngh2_engine import ngh2_engine

        return ngh2_engine(role, settings)
    if settings.engine == "h2":
        from shared.net.h2_engine import h2_engine

        return h2_engine(role, settings)
    raise ValueError(f"http2_engine {settings.engine!r} is not known; use 'ngh2' or 'h2'")


def goaway_frame(last_stream_id: int, code: int) -> bytes:
    """A GOAWAY, for when the engine can write none any more."""
    return b"\0\0\x08\x07\0\0\0\0\0" + last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big")
