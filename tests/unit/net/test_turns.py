"""A client that sends much at once is served turn by turn, and loses nothing by it."""

from __future__ import annotations

import pytest

from shared.net import http1, turns
from shared.net.turns import SLICE
from tests.support.h2_rig import REQUEST
from tests.support.http1_site import GET, Bench, echo
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")


def burst(rig: Served, count: int, body: bytes | None = None) -> bytes:
    """Requests of a raw client, as they would arrive in one read."""
    for _ in range(count):
        rig.raw.request(REQUEST, body)
    return rig.raw.take()


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is over after its first slice."""
    monkeypatch.setattr(turns, "TURN", -1.0)


def test_a_burst_is_cut_into_turns_between_which_others_are_served(no_time: None):
    rig = Served()
    data = burst(rig, 300, b"hello")
    assert len(data) > 3 * SLICE
    rig.conn.data_received(data)
    assert 0 < len(rig.heard) < 300
    assert not rig.link.wire.reading
    rig.link.pump()
    assert len(rig.heard) == 300
    assert all(bytes(heard.data) == b"hello" and heard.ended for heard in rig.heard)
    assert rig.link.wire.reading
    assert rig.counters.turns_over >= 3


def test_bytes_that_come_while_the_rest_waits_are_taken_after_it(no_time: None):
    rig = Served()
    first, second = burst(rig, 200), burst(rig, 50)
    rig.conn.data_received(first)
    rig.conn.data_received(second)
    rig.link.pump()
    assert len(rig.heard) == 250
    assert [heard.stream.id for heard in rig.heard] == list(range(1, 501, 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", [1, 7, 100, 3000])
def test_nothing_depends_on_where_reads_and_turns_end(no_time: None, step: int):
    rig = Served()
    data = burst(rig, 120, b"x" * 500)
    for at in range(0, len(data), step):
        rig.conn.data_received(data[at : at + step])
        rig.loop.run()
    rig.link.pump()
    assert len(rig.heard) == 120
    assert all(len(heard.data) == 500 for heard in rig.heard)


def test_a_connection_that_ends_between_turns_takes_no_more(no_time: None):
    rig = Served()
    data = burst(rig, 300)
    rig.conn.data_received(data)
    taken = len(rig.heard)
    rig.link.wire.lose()
    rig.loop.run()
    assert len(rig.heard) == taken
    assert all(len(heard.closed) == 1 for heard in rig.heard)


def test_a_bulk_upload_is_one_turn_of_whole_frames():
    rig = Served()
    data = burst(rig, 1, b"x" * 60_000)
    rig.conn.data_received(data)
    rig.link.pump()
    assert len(rig.heard[0].data) == 60_000


def test_garbage_in_a_later_slice_ends_the_connection_once(no_time: None):
    rig = Served()
    rig.conn.data_received(burst(rig, 150) + b"\xff" * 9000)
    rig.loop.run()
    assert rig.conn.dead
    assert rig.counters.reasons == {"protocol_error": 1}
    assert all(len(heard.closed) == 1 for heard in rig.heard)


def test_requests_ahead_and_bodies_in_tiny_chunks_are_taken_in_turns_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http1, "TURN", -1.0)
    bench = Bench(echo)
    bench.protocol.data_received(GET * 50)
    assert len(bench.exchanges) == 1 and not bench.protocol._reading
    bench.loop.run()
    assert len(bench.exchanges) == 50 and bench.protocol._reading
    bench.protocol.data_received(
        b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100
    )
    assert not bench.protocol._reading
    bench.loop.run()
    assert bench.protocol._reading
    bench.say(b"0\r\n\r\n")
    assert bench.exchanges[-1].body == b"x" * 100


def test_a_client_that_leaves_during_a_long_answer_is_noticed_after_its_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http1, "TURN", -1.0)
    gone: list[int] = []
    bench = Bench(lambda exchange: setattr(exchange, "on_abort", lambda: gone.append(1)))
    bench.protocol.data_received(GET)
    bench.loop.run()
    assert bench.protocol._reading
    bench.protocol.eof_received()
    assert gone == [1]
