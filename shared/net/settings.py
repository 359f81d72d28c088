"""Limits and times of the network layer, in one frozen object.

The defaults are right for a router and a node on one machine or one site. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from shared.config.schema import RouterConfig, ServerConfig
from shared.open_files import room_for

MAX_FRAME: Final = 16_384  # the largest frame payload we accept: HTTP/2's initial value, never raised
FRAME_HEADER: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many events of a kind a peer may cause: ``burst`` at once and ``rate`` a second after that."""

    burst: int
    rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetSettings:
    """What every listener, connection and pool of a process is built with."""

    engine: str = "ngh2"  # name of the HTTP/2 engine, see engine.py
    stream_window: int = 64 << 10  # bytes a peer may send on a stream ahead of who takes them
    # Stalled streams may hold at most half of this, or they would stop all others; checked in __post_init__.
    connection_window: int = 128 << 20
    max_streams: int = 1000  # requests that a peer is told it may have open at once, and that we open at once on one
    # The engine allows so many more, and half of these are admitted: a peer that keeps to the limit may count a stream
    # as over a moment before the engine does, and must not lose its connection for it.
    stream_slack: int = 24
    max_header_bytes: int = 64 << 10  # what the peer is told (MAX_HEADER_LIST_SIZE)
    hard_header_bytes: int = 256 << 10  # beyond this the connection ends
    max_header_count: int = 2048
    write_high: int = 64 << 10  # a transport that holds more than this is not given more
    flush_bytes: int = 128 << 10  # the most that is taken from an engine before looking at the transport again
    replay_bytes: int = 64 << 10  # request bytes a splice keeps so that an unprocessed request can be sent again

    keepalive_time: float = 10.0  # PING after so long without a byte from the peer
    keepalive_timeout: float = 5.0  # the peer is dead when nothing comes for so long after that
    header_timeout: float = 10.0  # a frame, and a connection's first SETTINGS, must be complete in this time
    # A peer that takes no byte of a full transport for so long is cut off, even if it sends; one that does neither is
    # after keepalive_time + keepalive_timeout. A stream that nobody opens a window for is reset after this, too.
    stall_timeout: float = 120.0
    idle_timeout: float = 300.0  # a server connection without a stream for so long is closed gracefully; 0: never
    max_connection_age: float = 0.0  # a listener's connection is closed gracefully after this; 0: never
    max_connection_age_grace: float = 600.0  # and cut off so long after that
    close_timeout: float = 5.0  # a closed connection whose last bytes are not taken in this time is aborted

    # Budgets per connection. A peer that overdraws one gets GOAWAY ENHANCE_YOUR_CALM.
    pings: Budget = Budget(burst=1000, rate=200)
    settings_frames: Budget = Budget(burst=100, rate=10)
    window_updates: Budget = Budget(burst=20_000, rate=2000)  # and one more for every 256 bytes we send
    resets: Budget = Budget(burst=2000, rate=500)  # streams the peer opened and reset
    hasty_resets: Budget = Budget(burst=1000, rate=100)  # of these, unanswered and within a second of opening them
    oddities: Budget = Budget(burst=1000, rate=100)  # empty DATA, informational responses, unknown streams

    connect_timeout: float = 3.0  # from dialling to the peer's SETTINGS
    reconnect_min: float = 0.05  # back-off between dials: doubled from this …
    reconnect_max: float = 1.0  # … up to this, with jitter
    connections: int = 1  # dialled ahead per address
    max_connections: int = 8  # dialled at most per address
    grow_at: float = 0.75  # share of streams in flight over streams allowed at which one more is dialled

    max_connections_served: int = 20_000  # connections a listener holds at once
    max_body_bytes: int = 32 << 20
    body_timeout: float = 60.0  # the longest pause while a request's body arrives

    def __post_init__(self) -> None:
        """Refuse sums that could deadlock."""
        least = 2 * (self.max_streams + self.stream_slack) * self.stream_window
        if self.connection_window < least:
            raise ValueError(
                f"connection_window {self.connection_window} must be at least {least}, twice what all streams may "
                "hold, or stalled streams stop all others"
            )
        if self.connection_window > (1 << 31) - 1:
            raise ValueError("connection_window must be below 2 GiB (HTTP/2's limit)")
        if self.stream_slack < 2:
            raise ValueError("stream_slack must be 2 or more")
        if not 1 <= self.connections <= self.max_connections:
            raise ValueError("connections must be 1 or more and not above max_connections")

    @classmethod
    def from_config(cls, server: ServerConfig, router: RouterConfig | None = None) -> NetSettings:
        """Settings of a process; ``router`` is given in a router only."""
        streams = max(1, min(server.max_streams_per_connection, 16_000))
        window = 64 << 10
        made = cls(
            connection_window=max(128 << 20, 2 * (streams + 24) * window),
            max_streams=streams,
            max_header_bytes=server.max_header_bytes,
            # Room for what a router adds to a block that a client was allowed: too much ends a connection of many.
            hard_header_bytes=max(256 << 10, 2 * server.max_header_bytes),
            keepalive_time=server.keepalive_time,
            keepalive_timeout=server.keepalive_timeout,
            header_timeout=server.header_timeout,
            idle_timeout=server.idle_timeout,
            max_connection_age=server.max_connection_age,
            max_connection_age_grace=server.max_connection_age_grace,
            max_connections_served=room_for(server.max_connections),
            max_body_bytes=server.max_body_bytes,
            body_timeout=server.body_timeout,
        )
        if router is None:
            return made
        return replace(
            made,
            engine=router.http2_engine,
            connect_timeout=router.connect_timeout,
            connections=router.connections_per_node,
            max_connections=router.max_connections_per_node,
        )
