"""What both sides of a connection keep: flow control, back-pressure, keep-alive, budgets, one end for each stream."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngh2 import Role

from shared.net.api import CANCEL, ENHANCE_YOUR_CALM, INTERNAL_ERROR, NO_ERROR, Headers, ServerStream
from shared.net.engine import goaway_frame
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.settings import Budget, NetSettings
from tests.support.h2_rig import (
    REQUEST,
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

pytestmark = pytest.mark.usefixtures("engine_name")


class Served:
    """A server connection, the owners of its streams, and a raw client."""

    def __init__(
        self,
        owner: Callable[[ServerStream, Headers, bool], Any] | None = None,
        client: dict[int, int] | None = None,
        raw: dict[str, Any] | None = None,
        takes: bool = True,
        **changes: Any,
    ) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.counters = self.flusher.counters
        self.heard: list[Heard] = []
        self.gone: list[H2ServerProtocol] = []

        def accept(stream: ServerStream, headers: Headers, end: bool) -> Heard:
            heard = Heard(stream, headers, end, takes)
            self.heard.append(heard)
            return heard

        self.conn = H2ServerProtocol(owner or accept, net_settings(**changes), self.flusher, self.gone.append)
        self.link = Link(self.loop, self.conn, Raw(Role.CLIENT, client, **(raw or {})))
        self.raw = self.link.raw
        self.link.pump()

    def open(self, body: bytes | None = None, end: bool = True) -> Heard:
        self.raw.request(body=body, end=end)
        self.link.pump()
        return self.heard[-1]


SMALL_WINDOW = server_settings(initial_window_size=1000)


# Flow control.


def test_bytes_are_reported_sent_once_they_have_left_for_the_transport():
    rig = Served()
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 500)
    assert heard.sent == 0
    assert heard.stream.queued == 500
    rig.link.pump()
    assert heard.sent == 500
    assert heard.stream.queued == 0


def test_bytes_beyond_the_peers_window_wait_and_are_not_reported():
    rig = Served(client=SMALL_WINDOW, raw={"reads": False})
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 2500)
    rig.link.pump()
    assert (heard.sent, heard.stream.queued) == (1000, 1500)
    rig.raw.read(1)
    rig.link.pump()
    assert (heard.sent, heard.stream.queued) == (2000, 500)
    rig.raw.read(1)
    rig.link.pump()
    assert (heard.sent, heard.stream.queued) == (2500, 0)


def test_a_larger_initial_window_lets_waiting_bytes_go():
    rig = Served(client=SMALL_WINDOW, raw={"reads": False})
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 2500)
    rig.link.pump()
    rig.raw.connection.update_settings(server_settings(initial_window_size=5000))
    rig.link.pump()
    assert (heard.sent, heard.stream.queued) == (2500, 0)


def test_a_connection_window_that_is_used_up_stalls_all_and_loses_nobody():
    rig = Served(client=server_settings(initial_window_size=1 << 20), raw={"reads": False, "window": None})
    owners = [rig.open() for _ in range(100)]
    for heard in owners:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"x" * 3000)
    rig.link.pump()
    assert sum(heard.sent for heard in owners) <= 65_535
    for _ in range(200):
        for seen in list(rig.raw.streams):
            rig.raw.read(seen)
        rig.link.pump()
    assert [heard.sent for heard in owners] == [3000] * 100
    assert [heard.stream.queued for heard in owners] == [0] * 100


def test_window_given_byte_by_byte_does_not_ask_every_stalled_stream_each_time(monkeypatch: pytest.MonkeyPatch):
    rig = Served(client=server_settings(initial_window_size=1 << 20), raw={"window": None, "reads": False})
    owners = [rig.open() for _ in range(200)]
    for heard in owners:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"x" * 3000)
    rig.link.pump()
    assert rig.conn.squeezed
    asked = 0
    real = rig.conn.engine.queued

    def queued(*args: int) -> int:
        nonlocal asked
        asked += bool(args)
        return real(*args)

    replace_call(monkeypatch, rig.conn.engine, "queued", queued)
    one = b"\0\0\4\x08\0\0\0\0\0\0\0\0\1"
    rig.conn.data_received(one * 500)
    for _ in range(200):
        rig.conn.data_received(one)
    assert asked <= 200 * 12


def test_acknowledgements_are_due_only_for_what_the_owner_took(engine_name: str):
    rig = Served(takes=False)
    heard = rig.open(b"x" * 200_000, end=False)
    assert len(heard.data) == 65_536
    heard.stream.consumed(20_000)
    rig.link.pump()
    # One engine gives window at half of it, the other also when it is used up.
    assert len(heard.data) == 65_536 + {"ngh2": 0, "h2": 20_000}[engine_name]
    heard.stream.consumed(20_000)
    rig.link.pump()
    assert len(heard.data) == 65_536 + 40_000


def test_small_acknowledgements_add_up():
    rig = Served(takes=False)
    heard = rig.open(b"x" * 200_000, end=True)
    taken = 0
    while taken < 200_000:
        new = len(heard.data) - taken
        assert new > 0, "the peer waits for window though everything was taken"
        for _ in range(new // 100 + 1):
            n = min(100, len(heard.data) - taken)
            heard.stream.consumed(n)
            taken += n
        rig.link.pump()
    assert heard.ended


def test_an_owner_that_takes_more_than_it_got_is_held_to_what_it_got():
    rig = Served(takes=False)
    heard = rig.open(b"x" * 10_000, end=False)
    heard.stream.consumed(50_000)
    rig.link.pump()
    rig.raw.connection.send_data(1, b"x" * 60_000)
    rig.link.pump()
    assert len(heard.data) == 65_536
    assert rig.conn.window_left() + sum(s.held for s in rig.conn.table.values()) == (128 << 20) - 10_000


def test_what_a_finished_stream_held_comes_back_to_the_connection():
    rig = Served(takes=False, resets=Budget(burst=10_000, rate=1), hasty_resets=Budget(burst=10_000, rate=1))
    for _ in range(3000):
        heard = rig.open(b"x" * 60_000, end=False)
        rig.raw.connection.reset_stream(heard.stream.id, CANCEL)  # type: ignore[attr-defined]
        rig.link.pump()
        assert heard.closed == [CANCEL]
    assert rig.conn.window_left() > 64 << 20


def test_bytes_for_streams_that_nobody_owns_are_acknowledged():
    rig = Served(
        owner=lambda stream, headers, end: None,
        resets=Budget(burst=10_000, rate=1),
        hasty_resets=Budget(burst=10_000, rate=1),
    )
    for _ in range(2500):
        stream_id = rig.raw.request(body=b"x" * 60_000, end=False)
        rig.link.pump()
        rig.raw.connection.reset_stream(stream_id, CANCEL)
        rig.link.pump()
    assert rig.conn.window_left() > 64 << 20


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), chop=st.sampled_from([0, 1, 7, 100, 1448]))
def test_no_byte_and_no_window_is_lost_in_random_traffic(seed: int, chop: int):
    random_ = random.Random(seed)
    rig = Served(client=server_settings(initial_window_size=random_.choice([100, 5000, 70_000])), raw={"reads": False})
    rig.link.chop = chop
    sent_up: dict[int, bytearray] = {}
    sent_down: dict[int, bytearray] = {}
    owners: dict[int, Heard] = {}
    for step in range(60):
        action = random_.random()
        open_ids = [i for i in sent_up if rig.raw.streams.get(i) is None or rig.raw.streams[i].closed is None]
        if action < 0.2 or not open_ids:
            stream_id = rig.raw.connection.send_request(REQUEST)
            sent_up[stream_id] = bytearray()
            sent_down[stream_id] = bytearray()
            rig.link.pump()
            owners[stream_id] = rig.heard[-1]
            rig.heard[-1].stream.respond(RESPONSE)
            continue
        stream_id = random_.choice(open_ids)
        data = bytes([step]) * random_.choice([1, 50, 3000, 40_000])
        if action < 0.5:
            rig.raw.connection.send_data(stream_id, data)
            sent_up[stream_id] += data
        elif action < 0.8:
            owners[stream_id].stream.send(data)
            sent_down[stream_id] += data
        elif action < 0.95:
            if rig.raw.streams.get(stream_id):
                rig.raw.read(stream_id)
        else:
            rig.raw.connection.reset_stream(stream_id, CANCEL)
            sent_up.pop(stream_id)
        if random_.random() < 0.7:
            rig.link.pump()
        else:
            rig.link.push()
    for _ in range(3000):
        for stream_id in list(rig.raw.streams):
            rig.raw.read(stream_id)
        rig.link.pump()
        if all(len(rig.raw.streams[i].data) == len(sent_down[i]) for i in sent_up):
            break
    for stream_id in sent_up:
        assert owners[stream_id].data == sent_up[stream_id]
        assert rig.raw.streams[stream_id].data == sent_down[stream_id]
        assert owners[stream_id].sent == len(sent_down[stream_id])
        assert owners[stream_id].stream.queued == 0
    for stream_id in list(sent_up):
        rig.raw.connection.reset_stream(stream_id, CANCEL)
    rig.link.pump()
    assert rig.conn.table == {}
    assert all(owner.closed for owner in owners.values())
    # Nothing is held, so what is missing from the window is only what the engine has yet to announce.
    assert rig.conn.window_left() > NetSettings().connection_window // 2


# The transport's back-pressure.


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


# Budgets.

PING = b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"
EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
WINDOW_UPDATE = b"\0\0\4\x08\0\0\0\0\0\0\0\0\1"


@pytest.mark.parametrize(
    ("frame", "reason", "budget"),
    [
        (PING, "ping_flood", "pings"),
        (EMPTY_SETTINGS, "settings_flood", "settings_frames"),
        (WINDOW_UPDATE, "window_update_flood", "window_updates"),
    ],
)
def test_a_flood_ends_in_enhance_your_calm_with_a_reason(frame: bytes, reason: str, budget: str):
    changes: dict[str, Any] = {budget: Budget(burst=50, rate=10)}
    rig = Served(**changes)
    heard = rig.open(b"x", end=False)
    for _ in range(40):
        rig.conn.data_received(frame)
    assert not rig.conn.dead
    rig.conn.data_received(frame * 20)
    rig.loop.run()
    assert rig.link.wire.closing
    assert rig.link.wire.out.endswith(goaway_frame(1, ENHANCE_YOUR_CALM))
    assert rig.counters.reasons == {reason: 1}
    assert heard.closed == [CANCEL]


def test_a_flood_of_empty_data_frames_ends_the_same_way():
    rig = Served(oddities=Budget(burst=50, rate=10))
    rig.open(b"x", end=False)
    rig.conn.data_received(b"\0\0\0\0\0\0\0\0\1" * 60)
    assert rig.counters.reasons == {"oddity_flood": 1}


def test_window_updates_that_belong_to_what_we_send_are_no_flood():
    rig = Served(
        client=server_settings(initial_window_size=1000),
        raw={"reads": False},
        window_updates=Budget(burst=100, rate=0),
    )
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    for _ in range(1000):
        heard.stream.send(b"x" * 1000)
        rig.link.pump()
        rig.raw.read(1)
    assert not rig.conn.dead
    assert rig.counters.reasons == {}


def test_pings_at_a_patient_pace_are_fine_for_hours():
    rig = Served(keepalive_time=1e9, idle_timeout=0.0)
    rig.open(b"x", end=False)
    for _ in range(2000):
        rig.loop.advance(10.0)
        rig.raw.connection.ping()
        rig.link.pump()
    assert not rig.conn.dead
    assert len(rig.raw.pongs) == 2000


# Signs of life.


def test_a_silent_peer_is_asked_and_then_dropped_in_time():
    rig = Served(keepalive_time=10.0, keepalive_timeout=5.0)
    heard = rig.open(b"x", end=False)
    rig.loop.advance(9.9)
    assert rig.counters.pings_sent == 0
    rig.loop.advance(0.2)
    assert rig.counters.pings_sent == 1
    rig.loop.advance(4.7)
    assert heard.closed == []
    rig.loop.advance(0.3)
    assert heard.closed == [CANCEL]
    assert rig.link.wire.aborted
    assert rig.counters.reasons == {"keepalive_timeout": 1}


def test_a_peer_that_answers_lives_on_through_a_silent_stream():
    rig = Served(keepalive_time=10.0, keepalive_timeout=5.0)
    heard = rig.open(b"x", end=False)
    for _ in range(60):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert heard.closed == []
    assert 4 <= rig.counters.pings_sent <= 6
    assert rig.raw.pings == rig.counters.pings_sent


def test_a_peer_that_dies_after_an_answer_is_found_in_time_too():
    rig = Served(keepalive_time=10.0, keepalive_timeout=60.0)
    heard = rig.open(b"x", end=False)
    for _ in range(11):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert rig.raw.pings == 1
    rig.loop.advance(10.5)
    assert rig.counters.pings_sent == 2
    rig.loop.advance(60.0)
    assert heard.closed == [CANCEL]


def test_keepalive_can_be_switched_off():
    rig = Served(keepalive_time=0.0, idle_timeout=0.0)
    rig.loop.advance(10_000.0)
    assert rig.counters.pings_sent == 0
    assert not rig.conn.dead


def test_a_peer_that_never_says_settings_is_dropped():
    loop = ManualLoop()
    flusher = Flusher(cast(Any, loop))
    conn = H2ServerProtocol(lambda *_: None, net_settings(header_timeout=3.0), flusher)
    link = Link(loop, conn, Raw(Role.CLIENT))
    conn.data_received(b"PRI * HTTP/2.0\r\n")
    loop.advance(2.9)
    assert not link.wire.closing
    loop.advance(0.2)
    assert link.wire.aborted
    assert flusher.counters.reasons == {"no_settings": 1}


def test_a_frame_that_trickles_in_is_cut_off():
    rig = Served(header_timeout=10.0, keepalive_time=4.0)
    rig.conn.data_received(b"\0\x3f\0\0\0\0\0\0\1")
    for _ in range(30):
        rig.loop.advance(1.0)
        if rig.conn.dead:
            break
        rig.conn.data_received(b"x")
    assert rig.counters.reasons == {"slow_frame": 1}


def test_frames_that_keep_coming_are_not_taken_for_one():
    rig = Served(header_timeout=10.0, keepalive_time=4.0)
    whole = PING
    rig.conn.data_received(whole[:5])
    for _ in range(30):
        rig.loop.advance(1.0)
        rig.conn.data_received(whole[5:] + whole[:5])
    assert not rig.conn.dead


def test_a_peer_that_takes_nothing_for_long_is_cut_off():
    rig = Served(client=server_settings(initial_window_size=1 << 24), stall_timeout=60.0)
    heard = rig.open(b"x", end=False)
    rig.link.wire.room = 1000
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 300_000)
    rig.loop.run()
    rig.loop.advance(59.0)
    assert heard.closed == []
    rig.loop.advance(31.0)
    assert heard.closed == [CANCEL]
    assert rig.counters.reasons == {"write_stalled": 1}


def test_a_closed_connection_whose_last_bytes_are_not_taken_is_aborted():
    rig = Served(close_timeout=5.0)

    rig.link.wire.close = lambda: setattr(rig.link.wire, "closing", True)  # type: ignore[method-assign]
    rig.conn.close()
    aborted: list[bool] = []
    rig.link.wire.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
    rig.loop.advance(4.9)
    assert not aborted
    rig.loop.advance(0.2)
    assert aborted


# The window watchdog.


def test_a_connection_whose_window_shrank_for_good_is_replaced(monkeypatch: pytest.MonkeyPatch):
    rig = Served(keepalive_time=5.0)
    left = NetSettings().connection_window // 2 - 1
    replace_call(monkeypatch, rig.conn.engine, "local_window", lambda: left)
    rig.loop.advance(6.0)
    rig.link.pump()
    assert rig.counters.reasons == {"window_lost": 1}
    assert rig.raw.goaways[0] == ((1 << 31) - 1, NO_ERROR)


def test_bytes_that_owners_hold_are_not_lost():
    rig = Served(takes=False, keepalive_time=5.0)
    for _ in range(900):
        rig.raw.request(body=b"x" * 65_536, end=False)
    rig.link.pump()
    assert rig.conn.window_left() < 72 << 20
    rig.loop.advance(6.0)
    assert rig.counters.reasons == {}
