"""Tells HTTP/2 from HTTP/1.1 by a connection's first bytes, or by ALPN where TLS has settled it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from shared.net.deadline import Deadline
from shared.net.flusher import Flusher
from shared.net.settings import NetSettings

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Served(Protocol):
    """What a listener asks of the protocol of a connection."""

    @property
    def streams(self) -> int:
        """Requests that are being answered."""
        ...

    def go_away(self) -> None:
        """Tell the peer to send nothing new, finish what runs, then close."""
        ...

    def close_idle(self) -> None:
        """No more waiting for what a peer that cannot be told might send: close where nothing runs."""
        ...

    def close(self) -> None:
        """Close now."""
        ...


# Gives a connection the protocol that it turned out to speak: HTTP/2 or not.
OnDecided = Callable[["Sniffer", bool], asyncio.Protocol]


class Sniffer(asyncio.Protocol):
    """First protocol of every connection; replaced as soon as it is known which one the client speaks.

    ``on_open`` may refuse the connection by returning False. Without any byte a connection is idle
    (``idle_timeout``); once the first has come, the rest must follow in ``header_timeout``.
    """

    __slots__ = ("_deadline", "_flusher", "_held", "_on_close", "_on_decided", "_on_open", "_settings", "transport")

    def __init__(
        self,
        settings: NetSettings,
        flusher: Flusher,
        on_open: Callable[[Sniffer], bool],
        on_decided: OnDecided,
        on_close: Callable[[Sniffer], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._settings = settings
        self._flusher = flusher
        self._on_open = on_open
        self._on_decided = on_decided
        self._on_close = on_close
        self._held = b""
        self._deadline = Deadline(flusher.loop, self._expired)

    @property
    def streams(self) -> int:
        """None yet."""
        return 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is open, and TLS is settled where it is spoken."""
        self.transport = cast(asyncio.Transport, transport)
        if not self._on_open(self):
            self.transport.abort()
            return
        tls = transport.get_extra_info("ssl_object")
        spoken = tls.selected_alpn_protocol() if tls is not None else None
        if spoken is not None:
            self._become(spoken == "h2", b"")
        elif self._settings.idle_timeout:
            self._deadline.set(self._settings.idle_timeout)

    def data_received(self, data: bytes) -> None:
        """The first bytes; rarely fewer than decide it."""
        first = not self._held
        if not first:
            data = self._held + data
        if data[: len(PREFACE)] == PREFACE:
            self._become(True, data)
        elif not PREFACE.startswith(data):
            self._become(False, data)
        else:
            self._held = data
            if first:
                self._deadline.set(self._settings.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went before it said what it speaks."""
        self._deadline.stop()
        self.transport = None
        self._on_close(self)

    def go_away(self) -> None:
        """Its first request may be on its way."""

    def close_idle(self) -> None:
        """Nothing has come, and is not waited for any more."""
        if not self._held:
            self.close()

    def close(self) -> None:
        """Close now."""
        if self.transport is not None:
            self.transport.abort()

    def _become(self, http2: bool, data: bytes) -> None:
        transport = self.transport
        if transport is None:
            return
        self._deadline.stop()
        self._held = b""
        protocol = self._on_decided(self, http2)
        self.transport = None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    def _expired(self) -> None:
        self._flusher.counters.count("sniff_timeout" if self._held else "http_idle")
        self.close()
