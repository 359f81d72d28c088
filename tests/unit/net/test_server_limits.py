"""What a server connection refuses, what it counts against a client, and how it ends."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ngh2 import Priority, Role

from shared.net.api import CANCEL, NO_ERROR
from shared.net.server import H2ServerProtocol
from shared.net.settings import Budget
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    Raw,
    net_settings,
    server_settings,
)
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")


LAST = (1 << 31) - 1


def frames_of_requests(n: int) -> list[bytes]:
    """Requests with ids of their own, past what a client that keeps to limits would send."""
    client = Raw(Role.CLIENT)
    client.take()
    for _ in range(n):
        client.request(body=b"x", end=False)
    return [client.take()]


def test_streams_above_the_admitted_number_are_refused_and_the_connection_lives():
    rig = Served(max_streams=10, stream_slack=20)
    rig.raw.connection.data_to_send()
    greedy = b"".join(frames_of_requests(25))
    rig.conn.data_received(greedy)
    rig.link.pull()
    assert rig.conn.streams == 20
    assert rig.counters.streams_refused == 5
    assert not rig.conn.dead
    rig.heard[0].stream.respond(RESPONSE)
    rig.heard[0].stream.trailers(TRAILERS)
    rig.loop.run()
    assert rig.conn.streams == 19


def test_resets_that_have_not_left_do_not_cost_an_innocent_client_the_connection():
    """The client ends its half of an answered stream itself, while our reset of it waits behind a full transport."""
    rig = Served(client=server_settings(initial_window_size=1 << 24), max_streams=10, stream_slack=2)
    bulk = rig.open(body=b"x", end=False)
    for _ in range(20):
        others = [rig.open(body=b"x", end=False) for _ in range(9)]
        for other in others:
            other.stream.respond(RESPONSE)
            other.stream.send(b"y")
        rig.link.pump()
        rig.link.wire.room = 1000
        bulk.stream.respond(RESPONSE)
        bulk.stream.send(b"y" * 300_000)
        rig.loop.run()
        assert rig.conn.paused
        for other in others:
            other.stream.trailers(TRAILERS)
        rig.loop.run()
        out = rig.link.wire.take()  # resumes: the answers leave, and more of the bulk behind them
        rig.raw.feed(out)
        for other in others:
            seen = rig.raw.streams[other.stream.id]  # type: ignore[attr-defined]
            if seen.ended and seen.closed is None:
                rig.raw.connection.end_stream(other.stream.id)  # type: ignore[attr-defined]
        rig.link.wire.room = None
        rig.link.pump()
        assert rig.raw.goaways == []
        assert rig.conn.streams == 1
    assert not rig.counters.streams_refused


def test_a_reset_made_while_the_transport_is_full_leaves_when_there_is_room():
    rig = Served(client=server_settings(initial_window_size=1 << 24))
    bulk, other, third = (rig.open(body=b"x", end=False) for _ in range(3))
    rig.link.wire.room = 1000
    bulk.stream.respond(RESPONSE)
    bulk.stream.send(b"y" * 300_000)
    rig.loop.run()
    other.stream.reset(CANCEL)
    third.stream.reset(CANCEL)
    rig.loop.run()
    rig.raw.connection.reset_stream(third.stream.id, 2)  # type: ignore[attr-defined]
    rig.link.push()
    assert (other.closed, third.closed) == ([CANCEL], [CANCEL])
    rig.link.pump()
    assert rig.raw.streams[3].reset == CANCEL
    assert rig.raw.streams[5].reset is None
    assert set(rig.conn.table) == {1}


def test_a_peer_that_keeps_to_the_limit_is_never_refused():
    rig = Served(max_streams=100)
    for _ in range(10):
        for _ in range(100):
            rig.raw.request()
        rig.link.pump()
        for heard in rig.heard[-100:]:
            heard.stream.respond(RESPONSE)
            heard.stream.trailers(TRAILERS)
        rig.link.pump()
    assert (rig.counters.streams_accepted, rig.counters.streams_refused) == (1000, 0)


def test_open_and_reset_in_one_packet_leave_nothing_behind():
    rig = Served()
    stream_id = rig.raw.connection.send_request(REQUEST)
    first = rig.raw.take()
    rig.raw.connection.reset_stream(stream_id, CANCEL)
    rig.conn.data_received(first + rig.raw.take())
    rig.link.pump()
    assert rig.heard[0].closed == [CANCEL]
    assert rig.conn.streams == 0


def test_a_storm_of_resets_ends_the_connection_with_a_reason():
    rig = Served(resets=Budget(burst=100, rate=10))
    good = rig.open(body=b"x", end=False)
    for _ in range(120):
        stream_id = rig.raw.connection.send_request(REQUEST)
        rig.raw.connection.reset_stream(stream_id, CANCEL)
        stream_id = rig.raw.request(body=b"x", end=False)
        rig.link.pump()
        if rig.counters.reasons:
            break
        rig.raw.connection.reset_stream(stream_id, CANCEL)
        rig.link.pump()
        if rig.counters.reasons:
            break
    assert rig.counters.reasons == {"reset_flood": 1}
    assert good.closed == [CANCEL]


def test_headers_above_the_advertised_size_get_an_answer_that_says_so():
    rig = Served()
    rig.raw.request([*REQUEST, *((b"x-%d" % i, b"v" * 9000) for i in range(9))])
    rig.link.pump()
    assert rig.heard == []
    answer = dict(rig.raw.streams[1].headers)
    assert (answer[b"grpc-status"], answer[b":status"]) == (b"8", b"200")
    assert b"65536" in answer[b"grpc-message"]
    assert rig.counters.reasons == {"headers_too_large": 1}
    assert not rig.conn.dead


def test_headers_above_the_advertised_size_get_431_where_it_is_not_grpc():
    rig = Served()
    plain = [field for field in REQUEST if field[0] != b"content-type"]
    rig.raw.request([*plain, *((b"x-%d" % i, b"v" * 9000) for i in range(9))])
    rig.link.pump()
    seen = rig.raw.streams[1]
    assert seen.headers[0] == (b":status", b"431")
    assert b"headers_too_large" in seen.data


def test_one_table_entry_referred_to_many_times_is_counted_too():
    rig = Served()
    rig.raw.request([*REQUEST, (b"x", b"v" * 3900)])
    rig.raw.request([*REQUEST, *([(b"x", b"v" * 3900)] * 20)])
    rig.link.pump()
    assert len(rig.heard) == 1
    assert rig.counters.reasons == {"headers_too_large": 1}


def test_a_header_block_in_small_frames_is_counted_too():
    rig = Served()
    rig.raw.request([*REQUEST, *((b"x-%d" % i, b"v" * 15_000) for i in range(6))])
    out = rig.raw.take()
    rig.conn.data_received(out[:20_000])
    rig.conn.data_received(out[20_000:])
    rig.link.pump()
    assert rig.heard == []
    assert rig.counters.reasons == {"headers_too_large": 1}


def test_bulk_streams_let_others_in_between():
    rig = Served(client=server_settings(initial_window_size=1 << 20))
    bulk, small = rig.open(), rig.open()
    for heard in (bulk, small):
        heard.stream.respond(RESPONSE)
    bulk.stream.send(b"b" * 10_000)
    small.stream.send(b"s")
    bulk.stream.send(b"b" * 300_000)
    small.stream.send(b"s")
    order: list[int] = []
    rig.raw.on_event = lambda event: order.append(event.stream_id) if hasattr(event, "data") else None
    rig.link.pump()
    assert order.index(3) <= 1
    assert rig.conn.table[1].bulky
    assert not rig.conn.table[3].bulky


@pytest.mark.parametrize("engine_name", ["ngh2"], indirect=True)  # the other one takes turns whatever is said
def test_a_clients_priority_signal_does_not_undo_that():
    rig = Served(client=server_settings(initial_window_size=1 << 20, no_rfc7540_priorities=1))
    bulk = rig.open(headers=[*REQUEST, (b"priority", b"u=0")])
    bulk.stream.respond(RESPONSE)
    bulk.stream.send(b"b" * 100_000)
    engine = cast(Any, rig.conn.engine)
    assert engine._connection.get_stream_priority(1) == Priority(3, True)


# Graceful end.


def test_go_away_finishes_what_runs_and_what_is_on_its_way():
    rig = Served()
    running = rig.open(body=b"x", end=False)
    rig.conn.go_away()
    rig.loop.run()
    crossing = rig.raw.connection.send_request(REQUEST, end_stream=True)
    rig.link.push()
    rig.link.pump()
    assert rig.raw.goaways == [(LAST, NO_ERROR), (crossing, NO_ERROR)]
    assert len(rig.heard) == 2
    rig.heard[1].stream.respond(RESPONSE, end=True)
    running.stream.respond(RESPONSE)
    running.stream.trailers(TRAILERS)
    rig.link.pump()
    assert rig.raw.streams[1].trailers == TRAILERS
    assert running.closed == [0]
    assert rig.link.wire.closing
    assert not rig.link.wire.aborted


def test_the_second_goaway_does_not_wait_for_a_client_that_does_not_answer():
    rig = Served()
    rig.open(body=b"x", end=False)
    rig.conn.go_away()
    rig.conn.go_away()
    rig.loop.run()
    first = rig.link.wire.take()
    rig.loop.advance(1.1)
    second = rig.link.wire.take()
    rig.raw.feed(first + second)
    assert rig.raw.goaways == [(LAST, NO_ERROR), (1, NO_ERROR)]
    assert rig.conn.streams == 1


def test_an_idle_connection_is_closed_gracefully():
    rig = Served(idle_timeout=300.0)
    rig.open().stream.respond(RESPONSE, end=True)
    for _ in range(295):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert not rig.raw.goaways
    for _ in range(30):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert rig.raw.goaways[0] == (LAST, NO_ERROR)
    assert rig.link.wire.closing
    assert rig.counters.reasons == {"idle": 1}


def test_a_connection_with_a_long_stream_is_not_idle():
    rig = Served(idle_timeout=20.0)
    heard = rig.open(body=b"x", end=False)
    for _ in range(60):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert heard.closed == []
    assert not rig.raw.goaways


def test_a_connection_that_is_leaving_waits_for_its_streams_and_not_in_a_hurry(monkeypatch: pytest.MonkeyPatch):
    rig = Served(idle_timeout=20.0)
    heard = rig.open(body=b"x", end=False)
    rig.conn.go_away()
    looks = 0
    real = rig.conn.on_tick

    def on_tick(now: float) -> float:
        nonlocal looks
        looks += 1
        return real(now)

    monkeypatch.setattr(H2ServerProtocol, "on_tick", lambda conn, now: on_tick(now))
    for _ in range(120):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert looks < 60
    assert heard.closed == []
    heard.stream.respond(RESPONSE)
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    assert heard.closed == [0]
    assert rig.link.wire.closing


def test_a_client_that_says_goodbye_is_served_to_the_end():
    rig = Served()
    heard = rig.open(body=b"x", end=False)
    rig.raw.connection.send_goaway(0)
    rig.link.pump()
    assert not rig.conn.dead
    heard.stream.respond(RESPONSE)
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    assert heard.closed == [0]
    assert rig.counters.goaways_received == 1


def test_a_no_error_reset_of_an_open_call_counts_as_a_cancel():
    rig = Served()
    heard = rig.open(body=b"x", end=False)
    rig.raw.connection.reset_stream(1, NO_ERROR)
    rig.link.pump()
    assert heard.closed == [CANCEL]


def test_an_open_transport_may_be_handed_over_with_its_first_bytes():
    rig = Served()
    loop, heard = rig.loop, []
    conn = H2ServerProtocol(lambda *args: heard.append(args), net_settings(), rig.flusher)
    client = Raw(Role.CLIENT)
    client.request()
    first = client.take()
    assert loop.time()
    conn.connection_made(rig.link.wire)  # type: ignore[arg-type]
    conn.data_received(first[:30])
    conn.data_received(first[30:])
    loop.run()
    assert len(heard) == 1
