"""What both sides of a connection keep: back-pressure, and one end for each stream."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ngh2 import Role

from shared.net.api import CANCEL, INTERNAL_ERROR, NO_ERROR, Headers, ServerStream
from shared.net.engine import goaway_frame
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from tests.support.h2_rig import (
    RESPONSE,
    TRAILERS,
    Heard,
    Link,
    ManualLoop,
    Raw,
    net_settings,
    replace_call,
    server_settings,
)
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")


def test_nothing_is_taken_from_the_engine_while_the_transport_is_full():
    rig = Served(client=server_settings(initial_window_size=1 << 24))
    heard = rig.open()
    rig.link.wire.room = 50_000
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 10_000_000)
    rig.loop.run()
    assert rig.conn.paused
    assert len(rig.link.wire.out) < 50_000 + NetSettings().flush_bytes + 100
    before = len(rig.link.wire.out)
    heard.stream.send(b"y")
    rig.conn.data_received(b"\0\0\x08\x06\0\0\0\0\0" + b"12345678")
    rig.loop.run()
    assert len(rig.link.wire.out) == before
    assert heard.sent < 1_000_000
    rig.link.pump()
    assert heard.sent == 10_000_001
    assert len(rig.raw.streams[1].data) == 10_000_001


def test_the_write_buffer_is_limited():
    rig = Served(write_high=12_345)
    assert rig.link.wire.high == 12_345


def test_one_batch_makes_one_write():
    rig = Served()
    for _ in range(20):
        rig.raw.request()
    writes = rig.link.wire.writes
    rig.link.push()
    for heard in rig.heard:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"m")
        heard.stream.trailers(TRAILERS)
    rig.loop.run()
    assert rig.link.wire.writes == writes + 1


def test_many_streams_whose_bytes_leave_in_parts_all_hear_of_it():
    rig = Served(client=server_settings(initial_window_size=1 << 20), flush_bytes=10_000)
    owners = [rig.open() for _ in range(40)]
    for heard in owners:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"x" * 5000)
    rig.loop.run()
    assert [heard.sent for heard in owners] == [5000] * 40
    assert not rig.conn.stalled
    assert not rig.conn.waiting


# Every owner hears of the end once.


def test_a_lost_transport_is_told_to_every_owner_once():
    rig = Served()
    owners = [rig.open(b"x", end=False) for _ in range(3)]
    rig.link.wire.lose()
    assert [heard.closed for heard in owners] == [[CANCEL]] * 3
    assert rig.gone == [rig.conn]
    assert rig.conn.streams == 0
    for heard in owners:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"late")
        heard.stream.trailers(TRAILERS)
        heard.stream.consumed(1)
        heard.stream.reset(CANCEL)
    rig.loop.run()
    assert [heard.closed for heard in owners] == [[CANCEL]] * 3
    assert all(heard.stream.closed for heard in owners)


def test_a_protocol_error_ends_the_connection_with_a_goaway_and_tells_every_owner():
    rig = Served()
    heard = rig.open(b"x", end=False)
    rig.conn.data_received(b"\0\0\x05\x06\0\0\0\0\0" + b"12345")  # a PING of five bytes
    rig.loop.run()
    out = rig.link.wire.out
    assert b"\x07\0\0\0\0\0" in out  # GOAWAY
    assert heard.closed == [CANCEL]
    assert rig.link.wire.closing
    assert rig.counters.reasons["protocol_error"] == 1
    assert rig.gone == [rig.conn]


def test_an_engine_that_gives_up_is_answered_for_by_hand(monkeypatch: pytest.MonkeyPatch):
    rig = Served()
    heard = rig.open(b"x", end=False)

    def broken(amount: int) -> bytes:
        raise rig.conn.engine_errors[0]("broken")

    replace_call(monkeypatch, rig.conn.engine, "take", broken)
    heard.stream.respond(RESPONSE)
    rig.loop.run()
    assert bytes(rig.link.wire.out) == goaway_frame(1, INTERNAL_ERROR)
    assert heard.closed == [CANCEL]
    assert rig.counters.reasons["engine_error"] == 1


def test_garbage_instead_of_a_preface_ends_the_connection():
    loop = ManualLoop()
    flusher = Flusher(cast(Any, loop))
    conn = H2ServerProtocol(lambda *_: None, net_settings(), flusher)
    link = Link(loop, conn, Raw(Role.CLIENT))
    conn.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    loop.run()
    assert link.wire.closing
    assert flusher.counters.reasons == {"protocol_error": 1}
    conn.data_received(b"more")


def test_no_goaway_is_written_into_the_middle_of_a_frame():
    rig = Served(client=server_settings(initial_window_size=1 << 20), flush_bytes=1000)
    heard = rig.open()
    rig.link.wire.room = 100
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 100_000)
    rig.loop.run()
    assert rig.conn.paused
    before = len(rig.link.wire.out)
    rig.conn.close()
    assert len(rig.link.wire.out) == before


def test_a_peers_reset_is_told_with_its_code():
    rig = Served()
    heard = rig.open(b"x", end=False)
    rig.raw.connection.reset_stream(1, 11)
    rig.link.pump()
    assert heard.closed == [11]
    assert rig.counters.streams_reset == 1


def test_a_reset_of_ours_is_told_in_the_same_batch_even_if_the_transport_is_full():
    rig = Served(client=server_settings(initial_window_size=1 << 24))
    first, second = rig.open(b"x", end=False), rig.open(b"x", end=False)
    rig.link.wire.room = 1000
    first.stream.respond(RESPONSE)
    first.stream.send(b"x" * 300_000)
    rig.loop.run()
    assert rig.conn.paused
    second.stream.reset(INTERNAL_ERROR)
    rig.loop.run()
    assert second.closed == [INTERNAL_ERROR]
    rig.link.pump()
    assert second.closed == [INTERNAL_ERROR]
    assert rig.raw.streams[3].reset == INTERNAL_ERROR
    assert set(rig.conn.table) == {1}


def test_data_for_a_stream_we_reset_goes_nowhere_and_is_acknowledged():
    rig = Served()
    heard = rig.open(b"x", end=False)
    rig.raw.connection.send_data(1, b"y" * 5000)
    heard.stream.reset(CANCEL)
    rig.link.pump()
    assert heard.data == b"x"
    assert heard.closed == [CANCEL]


def test_an_owner_that_raises_costs_its_stream_only():
    class Bad(Heard):
        def on_data(self, data: bytes, end: bool) -> None:
            raise RuntimeError("bug")

    good: list[Heard] = []

    def accept(stream: ServerStream, headers: Headers, end: bool) -> Heard:
        owner = (Bad if not good else Heard)(stream, headers, end)
        good.append(owner)
        return owner

    rig = Served(owner=accept)
    rig.raw.request(body=b"x", end=False)
    rig.raw.request(body=b"y", end=False)
    rig.link.pump()
    assert rig.raw.streams[1].reset == INTERNAL_ERROR
    assert good[0].closed == [INTERNAL_ERROR]
    assert good[1].data == b"y"
    assert rig.counters.reasons["owner_fault"] == 1


def test_an_owner_that_raises_when_told_of_sent_bytes_or_the_end_harms_nobody():
    class Bad(Heard):
        def on_sent(self, n: int) -> None:
            raise RuntimeError("bug")

        def on_closed(self, code: int) -> None:
            super().on_closed(code)
            raise RuntimeError("bug")

    owners: list[Heard] = []

    def accept(stream: ServerStream, headers: Headers, end: bool) -> Heard:
        owners.append((Bad if len(owners) < 2 else Heard)(stream, headers, end))
        return owners[-1]

    rig = Served(owner=accept)
    for _ in range(3):
        rig.raw.request(end=True)
    rig.link.pump()
    for owner in owners:
        owner.stream.respond(RESPONSE)
        owner.stream.send(b"m")
        owner.stream.trailers(TRAILERS)
    rig.link.pump()
    assert owners[2].closed == [0]
    assert rig.raw.streams[5].trailers == TRAILERS
    rig.link.wire.lose()
    assert all(owner.closed for owner in owners)


def test_an_acceptor_that_raises_is_answered_with_a_reset():
    def accept(*_: Any) -> None:
        raise RuntimeError("bug")

    rig = Served(owner=accept)
    rig.raw.request()
    rig.link.pump()
    assert rig.raw.streams[1].reset == INTERNAL_ERROR
    assert rig.conn.streams == 0


def test_closing_tells_owners_and_says_goaway():
    rig = Served()
    heard = rig.open(b"x", end=False)
    rig.conn.close()
    assert heard.closed == [CANCEL]
    rig.raw.feed(bytes(rig.link.wire.out))
    assert rig.raw.goaways == [(1, NO_ERROR)]
    rig.conn.close()
    rig.loop.run()
    assert rig.gone == [rig.conn]
