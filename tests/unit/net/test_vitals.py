"""What the slow clock of a connection finds: streams whose peer never opens a window, peers that take nothing."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from shared.net.api import CANCEL
from tests.support.h2_rig import RESPONSE, Heard, server_settings
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


# A full transport.


class Full(Served):
    """A connection whose transport is full of an answer, with all of its peer's windows open."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(client=server_settings(initial_window_size=1 << 24), **changes)
        self.answer = self.open(b"x", end=False)

    def fill(self) -> Heard:
        self.link.wire.room = 1000
        self.answer.stream.respond(RESPONSE)
        self.answer.stream.send(b"x" * 300_000)
        self.loop.run()
        assert self.conn.paused
        return self.answer

    def takes(self, n: int = 1) -> None:
        """The peer takes some of the transport, which is no less full for it."""
        assert self.conn.paused
        out = self.link.wire.out
        self.raw.feed(bytes(out[:n]))
        del out[:n]

    def sends(self) -> None:
        self.conn.data_received(b"\0\0\4\x08\0\0\0\0\0\0\0\0\1")
        self.loop.run()


def test_a_peer_that_dies_behind_a_full_transport_is_found_in_time():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0)
    rig.loop.advance(4.0)
    answer = rig.fill()
    rig.loop.advance(10.9)  # it was heard last before the transport was full
    assert answer.closed == []
    rig.loop.advance(0.2)
    assert answer.closed == [CANCEL]
    assert rig.link.wire.aborted
    assert rig.counters.reasons == {"write_stalled": 1}
    assert rig.counters.pings_sent == 0


def test_a_peer_that_dies_after_it_took_some_of_a_full_transport_is_found_in_time():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0)
    answer = rig.fill()
    for _ in range(20):
        rig.loop.advance(1.0)
        rig.takes()
    rig.loop.advance(13.4)
    assert answer.closed == []
    rig.loop.advance(1.6)
    assert answer.closed == [CANCEL]


def test_a_peer_that_takes_a_little_of_a_full_transport_now_and_then_lives():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0, stall_timeout=60.0)
    answer = rig.fill()
    for _ in range(40):
        rig.loop.advance(12.0)
        rig.takes()
    assert answer.closed == []
    assert rig.counters.reasons == {}


def test_bytes_that_leave_the_kernel_alone_are_signs_of_life(monkeypatch: pytest.MonkeyPatch):
    """A transport's own count stands still until a large part of the kernel's buffer is free."""
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(10):
            ours.send(b"x" * 4000)
        monkeypatch.setattr(rig.link.wire, "get_extra_info", lambda name, default=None: ours)
        answer = rig.fill()
        for _ in range(10):
            rig.loop.advance(12.0)
            assert len(theirs.recv(4000)) == 4000
        rig.loop.advance(13.4)
        assert answer.closed == []
        rig.loop.advance(1.6)
        assert answer.closed == [CANCEL]


def test_a_peer_that_sends_but_does_not_read_is_cut_off_in_the_end():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0, stall_timeout=60.0)
    answer = rig.fill()
    for _ in range(59):
        rig.loop.advance(1.0)
        rig.sends()
    assert answer.closed == []
    rig.loop.advance(1.1)
    assert answer.closed == [CANCEL]
    assert rig.counters.reasons == {"write_stalled": 1}


@pytest.mark.parametrize("keepalive", [{"keepalive_time": 0.0}, {"keepalive_time": 50.0, "keepalive_timeout": 50.0}])
def test_without_keepalive_or_with_a_longer_one_the_limit_on_stalls_holds(keepalive: dict[str, float]):
    rig = Full(stall_timeout=60.0, **keepalive)
    rig.loop.advance(45.0)  # what it left unsaid before counts for nothing
    answer = rig.fill()
    for _ in range(4):
        rig.loop.advance(50.0)
        rig.takes()
    rig.loop.advance(53.0)
    assert answer.closed == []
    rig.loop.advance(7.0)
    assert answer.closed == [CANCEL]
    assert rig.counters.reasons == {"write_stalled": 1}


def test_a_ping_that_waits_behind_a_full_transport_is_not_held_against_its_peer():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0)
    rig.loop.advance(11.0)
    assert rig.counters.pings_sent == 1
    answer = rig.fill()
    for _ in range(30):
        rig.loop.advance(1.0)
        rig.takes()
    rig.link.wire.room = None
    rig.link.pull()
    assert not rig.conn.paused
    rig.loop.advance(3.0)
    assert answer.closed == []
    rig.link.pump()
    rig.loop.advance(9.0)
    assert answer.closed == []
    assert rig.raw.pings == 1


def test_a_transport_that_fills_up_again_and_again_puts_off_no_look():
    rig = Full(keepalive_time=10.0, keepalive_timeout=5.0, header_timeout=10.0)
    rig.conn.data_received(b"\0\x3f\0\0\0\0\0\0\1")  # a frame that never ends
    for _ in range(250):
        rig.conn.pause_writing()
        rig.conn.resume_writing()
        rig.loop.advance(0.1)
        rig.conn.heard = rig.loop.now
    assert rig.counters.reasons == {"slow_frame": 1}
