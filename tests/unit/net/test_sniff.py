"""Which protocol a connection turns out to speak."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.net.flusher import Flusher
from shared.net.settings import NetSettings
from shared.net.sniff import PREFACE, Sniffer
from tests.support.h2_rig import ManualLoop, Wire


class Chosen(asyncio.Protocol):
    """The protocol that was decided on."""

    def __init__(self) -> None:
        self.made = 0
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made += 1

    def data_received(self, data: bytes) -> None:
        assert self.made
        self.data += data


class TlsWire(Wire):
    """A transport over which ALPN has chosen a protocol, and that can be given another owner."""

    alpn: str | None = None
    tls = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" and self.tls else super().get_extra_info(name, default)

    def selected_alpn_protocol(self) -> str | None:
        return self.alpn

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Door:
    """A sniffer on a transport in memory."""

    def __init__(self, alpn: str | None = None, tls: bool = False, welcome: bool = True) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(self.loop)  # type: ignore[arg-type]
        self.chosen: Chosen | None = None
        self.http2: bool | None = None
        self.welcome = welcome
        self.closed = 0
        settings = replace(NetSettings(), header_timeout=10, idle_timeout=300)
        self.wire = TlsWire(self.loop)
        self.wire.alpn, self.wire.tls = alpn, tls
        self.sniffer = Sniffer(settings, self.flusher, lambda _: self.welcome, self.decide, self.gone)
        self.wire.attach(self.sniffer)

    def decide(self, sniffer: Sniffer, http2: bool) -> asyncio.Protocol:
        assert self.http2 is None
        self.http2 = http2
        self.chosen = Chosen()
        return self.chosen

    def gone(self, _: Sniffer) -> None:
        self.closed += 1

    def say(self, data: bytes) -> None:
        if not self.wire.closing:
            self.wire.protocol.data_received(data)

    def got(self) -> tuple[bool | None, bytes]:
        return self.http2, self.chosen.data if self.chosen is not None else b""


@pytest.mark.parametrize(
    ("data", "http2"),
    [
        (PREFACE, True),
        (PREFACE + b"\0\0\0\4\0\0\0\0\0", True),
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"G", False),
        (b"PRI * HTTP/1.1\r\n", False),
        (b"PRI * HTTP/2.0\r\n\r\nXX", False),
        (b"\x16\x03\x01", False),
        (b"PUT / HTTP/1.1\r\n", False),
    ],
)
def test_the_first_bytes_decide_and_are_handed_on(data: bytes, http2: bool):
    door = Door()
    door.say(data)
    assert door.got() == (http2, data)
    door.say(b"more")
    assert door.got() == (http2, data + b"more")


STREAMS = st.one_of(st.just(PREFACE + b"frames"), st.just(PREFACE[:20] + b"GET"), st.binary(max_size=40))


@given(STREAMS, st.lists(st.integers(0, 40), max_size=10))
def test_the_decision_does_not_depend_on_how_the_bytes_are_cut(data: bytes, at: list[int]):
    whole, parts = Door(), Door()
    if data:
        whole.say(data)
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    for a, b in itertools.pairwise(edges):
        if a < b:
            parts.say(data[a:b])
    assert parts.got() == whole.got()


@pytest.mark.parametrize(("alpn", "http2"), [("h2", True), ("http/1.1", False)])
def test_with_tls_alpn_decides_before_any_byte(alpn: str, http2: bool):
    assert Door(alpn, tls=True).got() == (http2, b"")


def test_with_tls_and_no_alpn_the_first_bytes_decide():
    door = Door(None, tls=True)
    assert door.got() == (None, b"")
    door.say(PREFACE)
    assert door.got() == (True, PREFACE)


def test_half_a_preface_must_be_completed_in_time():
    door = Door()
    door.loop.advance(200)
    for byte in PREFACE[:12]:
        door.say(bytes((byte,)))
        door.loop.advance(0.8)
    assert not door.wire.closing
    door.loop.advance(0.5)
    assert door.wire.aborted
    assert door.closed == 1
    assert door.flusher.counters.reasons == {"sniff_timeout": 1}


def test_a_silent_connection_is_idle():
    door = Door()
    door.loop.advance(299)
    assert not door.wire.closing
    door.loop.advance(2)
    assert door.wire.aborted
    assert door.flusher.counters.reasons == {"http_idle": 1}


def test_an_unwelcome_connection_is_dropped():
    door = Door(welcome=False)
    assert door.wire.aborted
    assert door.closed == 1


def test_a_client_that_leaves_before_it_speaks_is_reported():
    door = Door()
    door.say(PREFACE[:5])
    door.wire.lose()
    assert (door.closed, door.http2) == (1, None)
    door.loop.advance(1000)
    assert door.flusher.counters.reasons == {}


def test_a_decided_connection_has_no_limit_left_over():
    door = Door()
    door.say(PREFACE)
    door.loop.advance(1000)
    assert not door.wire.closing


def test_only_a_connection_that_has_said_nothing_is_closed_as_idle():
    silent, begun = Door(), Door()
    begun.say(PREFACE[:12])
    for door in (silent, begun):
        door.sniffer.go_away()
        assert not door.wire.closing
        door.sniffer.close_idle()
    assert silent.wire.aborted
    assert not begun.wire.closing
    begun.say(PREFACE[12:])
    assert begun.got() == (True, PREFACE)
