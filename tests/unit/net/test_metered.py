"""What a peer may do that brings nobody anything: within its budget, and not beyond it."""

from __future__ import annotations

import pytest

from shared.net.api import ENHANCE_YOUR_CALM
from shared.net.settings import Budget
from tests.support.h2_rig import REQUEST
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")

PONG = b"\0\0\x08\x06\x01\0\0\0\0unasked!"
GOAWAY = b"\0\0\x08\x07\0\0\0\0\0" + b"\0" * 8
FEW = Budget(burst=5, rate=1)


def test_a_pong_that_was_asked_for_costs_nothing():
    rig = Served(oddities=FEW)
    for _ in range(20):
        rig.conn.ping(b"12345678")
        rig.link.pump()
    assert not rig.conn.dead
    assert rig.conn.pings_out == 0


def test_pongs_that_nobody_asked_for_are_an_oddity_with_an_end():
    rig = Served(oddities=FEW)
    rig.conn.data_received(PONG * 5)
    assert not rig.conn.dead
    rig.conn.data_received(PONG)
    rig.link.pump()
    assert rig.counters.reasons == {"oddity_flood": 1}
    assert rig.raw.goaways[-1][1] == ENHANCE_YOUR_CALM


def test_a_client_may_say_goodbye_again_but_not_for_ever():
    rig = Served(oddities=FEW)
    rig.open(end=False)
    rig.conn.data_received(GOAWAY * 4)
    assert not rig.conn.dead
    rig.conn.data_received(GOAWAY * 4)
    assert rig.conn.dead
    assert rig.counters.reasons == {"oddity_flood": 1}


@pytest.mark.parametrize("frame", [b"\0\0\x08\x06\0\0\0\0\x0012345678", b"\0\0\0\x04\0\0\0\0\0"])
def test_more_in_one_read_than_an_engine_can_answer_is_a_flood(frame: bytes):
    rig = Served()
    rig.conn.data_received(frame * 5000)
    rig.link.pump()
    assert rig.conn.dead
    (reason,) = rig.counters.reasons
    assert reason in ("flood", "ping_flood", "settings_flood")
    assert rig.raw.goaways[-1][1] == ENHANCE_YOUR_CALM


def cancel(rig: Served, count: int, headers_first: bool = False) -> None:
    for _ in range(count):
        if rig.conn.dead:
            return
        stream_id = rig.raw.request(REQUEST, None, False)
        rig.link.pump()
        if headers_first:
            rig.heard[-1].stream.respond([(b":status", b"200")])
            rig.link.pump()
        rig.raw.connection.reset_stream(stream_id, 8)
        rig.link.pump()


def test_requests_that_are_cancelled_at_once_end_the_connection_past_their_budget():
    rig = Served(hasty_resets=FEW)
    cancel(rig, 10)
    assert rig.counters.reasons == {"rapid_reset": 1}
    assert rig.raw.goaways[-1][1] == ENHANCE_YOUR_CALM
    assert all(len(heard.closed) == 1 for heard in rig.heard)


def test_a_cancel_after_the_answer_has_begun_is_not_hasty():
    rig = Served(hasty_resets=FEW)
    cancel(rig, 20, headers_first=True)
    assert not rig.conn.dead


def test_a_cancel_of_an_old_request_is_not_hasty():
    rig = Served(hasty_resets=FEW)
    streams = [rig.raw.request(REQUEST, None, False) for _ in range(20)]
    rig.link.pump()
    rig.loop.advance(1.5)
    for stream_id in streams:
        rig.raw.connection.reset_stream(stream_id, 8)
    rig.link.pump()
    assert not rig.conn.dead
