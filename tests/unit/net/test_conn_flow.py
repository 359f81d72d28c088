"""Flow control of a connection: what may leave, what is acknowledged, and no window lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.net.api import CANCEL, NO_ERROR
from shared.net.settings import Budget, NetSettings
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    Heard,
    replace_call,
    server_settings,
)
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")

SMALL_WINDOW = server_settings(initial_window_size=1000)


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
