"""Limits of a connection: budgets of cheap frames, and signs of life from its peer."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ngh2 import Role

from shared.net.api import CANCEL, ENHANCE_YOUR_CALM
from shared.net.engine import goaway_frame
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.settings import Budget
from tests.support.h2_rig import (
    RESPONSE,
    Link,
    ManualLoop,
    Raw,
    net_settings,
    server_settings,
)
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")

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
