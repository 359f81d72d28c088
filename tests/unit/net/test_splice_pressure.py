"""Two streams joined: who stops reading stops the other side, and nobody else; in any order of events."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.net.api import (
    CANCEL,
)
from shared.net.settings import NetSettings
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    pump,
    server_settings,
)
from tests.support.splice_rig import Rig

pytestmark = pytest.mark.usefixtures("engine_name")


def test_a_client_that_stops_reading_stops_its_node():
    rig = Rig(client=server_settings(initial_window_size=65_535), client_raw={"reads": False})
    rig.call()
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"x" * 10_000_000)
    rig.pump()
    held = rig.relays[0].bytes_out
    assert held <= 65_535 + 65_536
    for _ in range(20):
        rig.client.read(1)
        rig.pump()
    assert rig.relays[0].bytes_out > held + 500_000


def test_a_client_whose_socket_is_full_stops_its_node():
    rig = Rig(client=server_settings(initial_window_size=1 << 30))
    rig.call()
    rig.front.wire.room = 65_536
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"x" * 10_000_000)
    pump(*rig.nodes)
    assert rig.down.paused
    assert len(rig.front.wire.out) + rig.down.table[1].queued < 400_000
    rig.pump()
    assert len(rig.seen.data) == 10_000_000


def test_a_node_that_stops_reading_stops_its_client():
    rig = Rig(node_raw={"reads": False})
    rig.call(b"x" * 10_000_000, end=True)
    assert rig.relays[0].bytes_in <= 65_535 + 65_536
    for _ in range(20):
        rig.node.read(1)
        rig.pump()
    assert rig.relays[0].bytes_in > 500_000


def test_stalled_clients_do_not_starve_another_on_the_same_node_connection():
    rig = Rig(client_raw={"reads": False})
    for _ in range(300):
        rig.call()
    for stream_id in list(rig.node.streams):
        rig.node.connection.send_response(stream_id, RESPONSE)
        rig.node.connection.send_data(stream_id, b"x" * 1_000_000)
    rig.pump()
    rig.call()
    last = max(rig.node.streams)
    rig.node.connection.send_response(last, RESPONSE)
    rig.node.connection.send_data(last, b"y" * 2_000_000)
    for _ in range(80):
        rig.pump()
        rig.client.read(last)
    assert len(rig.client.streams[last].data) == 2_000_000


def test_a_message_to_a_node_waits_behind_a_frame_of_each_bulk_upload():
    rig = Rig(node=server_settings(initial_window_size=1 << 20), node_raw={"window": 1 << 24})
    for _ in range(6):
        rig.call(b"", end=False)
    bulk, small = range(1, 11, 2), 11
    rig.nodes[0].wire.room = 1
    rig.client.connection.send_data(1, b"b" * 1000)
    rig.front.push()
    assert rig.ups[0].paused
    for stream_id in bulk:
        rig.client.connection.send_data(stream_id, b"b" * 60_000, end_stream=True)
    rig.client.connection.send_data(small, b"s", end_stream=True)
    order: list[int] = []
    rig.node.on_event = lambda event: order.append(event.stream_id) if hasattr(event, "data") else None
    rig.pump()
    assert order.index(small) <= 1 + len(bulk)
    assert [len(rig.node.streams[i].data) for i in bulk] == [61_000, 60_000, 60_000, 60_000, 60_000]
    assert all(rig.node.streams[i].ended for i in (*bulk, small))
    assert all(not up.table[i].bulky for up in rig.ups for i in up.table)


def test_a_backlog_keeps_the_order_of_bytes_and_ends_with_its_trailers():
    rig = Rig(node=server_settings(initial_window_size=1 << 20))
    rig.call(b"", end=False)
    rig.nodes[0].wire.room = 1
    for i in range(50):
        rig.client.connection.send_data(1, bytes([i]) * 1100)
    rig.client.connection.send_trailers(1, [(b"x-t", b"1")])
    rig.front.push()
    rig.pump()
    assert rig.node.streams[1].data == b"".join(bytes([i]) * 1100 for i in range(50))
    assert rig.node.streams[1].trailers == [(b"x-t", b"1")]
    assert rig.relays[0].bytes_in == 55_000


def test_a_cancelled_upload_takes_its_backlog_with_it():
    rig = Rig(node_raw={"reads": False})
    for _ in range(4):
        rig.call(b"x" * 200_000, end=False)
    assert any(up.table[i].bulky for up in rig.ups for i in up.table)
    for stream_id in (1, 3, 5, 7):
        rig.client.connection.reset_stream(stream_id, CANCEL)
    rig.pump()
    assert rig.empty()
    assert not rig.ups[0].engine.queued()


@pytest.mark.parametrize("chop", [0, 1448])
def test_cancels_in_the_middle_of_frames_do_not_use_up_the_window(chop: int):
    """Half a frame of a stream that ends is lost to the window if the engine gets to see it."""
    rig = Rig(max_streams=6, stream_slack=2, connection_window=2 * 8 * 65_536, client_raw={"reads": False})
    for _ in range(200):
        relay = rig.call()
        stream_id = max(rig.node.streams)
        rig.node.connection.send_response(stream_id, RESPONSE)
        rig.node.connection.send_data(stream_id, b"x" * 60_000)
        out = rig.node.take()
        cut = len(out) - 5000
        step = chop or cut
        for at in range(0, cut, step):
            rig.ups[0].data_received(out[at : min(at + step, cut)])
        rig.client.connection.reset_stream(relay.down.id, CANCEL)  # type: ignore[attr-defined]
        rig.front.push()
        rig.ups[0].data_received(out[cut:])
        rig.pump()
        assert relay.hooks[-1] == ("finished", CANCEL)
    assert not rig.ups[0].table
    assert rig.ups[0].window_left() > 8 * 65_536
    rig.call()
    stream_id = max(rig.node.streams)
    rig.node.connection.send_response(stream_id, RESPONSE)
    rig.node.connection.send_data(stream_id, b"y" * 60_000)
    rig.node.connection.send_trailers(stream_id, TRAILERS)
    rig.pump()
    assert len(rig.seen.data) == 60_000


# Random orders.


def settle(rig: Rig, done: Callable[[], bool]) -> None:
    """Let everybody read until it is done, or nothing changes it any more."""
    for _ in range(500):
        rig.pump()
        for raw in (rig.client, rig.node):
            for stream_id in list(raw.streams):
                raw.read(stream_id)
        if done():
            return


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), chop=st.sampled_from([0, 0, 1448, 33]))
def test_in_random_orders_bytes_arrive_and_nothing_is_left(seed: int, chop: int):
    pick = random.Random(seed)
    rig = Rig(
        client=server_settings(initial_window_size=pick.choice([1000, 65_535])),
        node=server_settings(initial_window_size=pick.choice([1000, 65_535])),
        client_raw={"reads": pick.random() < 0.5},
        node_raw={"reads": pick.random() < 0.5},
    )
    rig.front.chop = rig.nodes[0].chop = chop
    up: dict[int, bytearray] = {}
    down: dict[int, bytearray] = {}
    begun: set[int] = set()
    client_done: set[int] = set()
    node_done: set[int] = set()
    cancelled: set[int] = set()
    node_id: dict[int, int] = {}

    def alive() -> list[int]:
        return [i for i in up if i not in cancelled]

    for step in range(80):
        act = pick.random()
        if act < 0.15 or not alive():
            before = set(rig.node.streams)
            i = rig.client.connection.send_request(REQUEST)
            up[i], down[i] = bytearray(), bytearray()
            rig.pump()
            node_id[i] = next(iter(set(rig.node.streams) - before))
            continue
        i = pick.choice(alive())
        data = bytes([step]) * pick.choice([1, 10, 2000, 30_000])
        n = node_id[i]
        if act < 0.4 and i not in client_done and i not in node_done:
            rig.client.connection.send_data(i, data)
            up[i] += data
        elif act < 0.7 and i not in node_done:
            if i not in begun:
                rig.node.connection.send_response(n, RESPONSE)
                begun.add(i)
            rig.node.connection.send_data(n, data)
            down[i] += data
        elif act < 0.76 and i not in client_done and i not in node_done:
            rig.client.connection.end_stream(i)
            client_done.add(i)
        elif act < 0.82 and i not in node_done and i in begun:
            rig.node.connection.send_trailers(n, TRAILERS)
            node_done.add(i)
        elif act < 0.88 and i not in node_done:
            rig.client.connection.reset_stream(i, CANCEL)
            cancelled.add(i)
        else:
            for s in list(rig.client.streams):
                rig.client.read(s)
            for s in list(rig.node.streams):
                rig.node.read(s)
        pick.choice([rig.pump, rig.pump, rig.front.push, rig.nodes[0].push])()
    settle(rig, lambda: all(rig.node.streams[node_id[i]].data == up[i] for i in alive() if i not in node_done))
    for i in alive():
        if i not in node_done:
            if i not in begun:
                rig.node.connection.send_response(node_id[i], RESPONSE)
            rig.node.connection.send_trailers(node_id[i], TRAILERS)
    settle(rig, rig.empty)
    assert rig.empty()
    for i in alive():
        seen = rig.client.streams[i]
        assert (bytes(seen.data), seen.trailers) == (bytes(down[i]), TRAILERS)
        assert up[i].startswith(rig.node.streams[node_id[i]].data)
        if i not in node_done:
            assert rig.node.streams[node_id[i]].data == up[i]
    for relay in rig.relays:
        assert [hook for hook in relay.hooks if isinstance(hook, tuple) and hook[0] == "finished"] == relay.hooks[-1:]
    for conn in (rig.down, rig.ups[0]):
        assert conn.window_left() > NetSettings().connection_window // 2
        assert not conn.dead
