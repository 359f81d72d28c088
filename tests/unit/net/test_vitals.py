"""What the slow clock of a connection finds: streams whose peer never opens a window."""

from __future__ import annotations

import pytest

from shared.net.api import CANCEL
from tests.support.h2_rig import RESPONSE, server_settings
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")

SHUT = server_settings(initial_window_size=0)


def wait(rig: Served, seconds: float) -> None:
    for _ in range(int(seconds)):
        rig.loop.advance(1.0)
        rig.link.pump()


def test_an_answer_that_nobody_opens_a_window_for_is_reset_in_the_end():
    rig = Served(client=SHUT, stall_timeout=60.0)
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 5000, True)
    rig.link.pump()
    wait(rig, 55)
    assert not heard.closed
    wait(rig, 40)
    assert heard.closed == [CANCEL]
    assert rig.counters.reasons == {"window_stalled": 1}
    assert not rig.conn.dead and not rig.conn.stalled and not rig.conn.table


def test_a_slow_reader_that_reads_at_all_is_left_alone():
    rig = Served(client=server_settings(initial_window_size=100), raw={"reads": False}, stall_timeout=60.0)
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"x" * 500)
    rig.link.pump()
    for _ in range(4):
        wait(rig, 50)
        rig.raw.read(1)
        rig.link.pump()
    assert not heard.closed and heard.sent == 500
    assert rig.counters.reasons == {}


def test_streams_without_anything_to_send_may_be_silent():
    rig = Served(client=SHUT, stall_timeout=60.0)
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    rig.link.pump()
    wait(rig, 200)
    assert not heard.closed
