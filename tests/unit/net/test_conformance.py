"""What an engine must be in the hands of this layer, whichever it is; a new release of one is a run of these.

More of it, on both engines as well: test_engine.py, test_conn.py, test_server.py, test_client.py, test_splice.py and
test_outcomes.py.
"""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from ngh2 import Role

from shared.net.api import CANCEL, NO_ERROR, Headers, ServerStream
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.settings import Budget
from shared.net.splice import Splice
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    Heard,
    Link,
    ManualLoop,
    Raw,
    net_settings,
    pump,
    server_settings,
)

pytestmark = pytest.mark.usefixtures("engine_name")

MANY = Budget(burst=1 << 20, rate=1 << 20)
SEGMENT = 1448  # what a packet carries on most networks
# The smallest windows that may be set: a few hundred lost bytes a call would soon be seen.
TIGHT: dict[str, Any] = {"max_streams": 6, "stream_slack": 2, "connection_window": 1 << 20, "resets": MANY}


class Owner(ClientOwner):
    def on_ready(self, conn: H2ClientProtocol) -> None:
        pass

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        pass

    def on_gone(self, conn: H2ClientProtocol) -> None:
        pass


class Relay:
    """A raw client, the layer in between, and a raw node."""

    def __init__(self, node_raw: dict[str, Any] | None = None, **changes: Any) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        settings = net_settings(**changes)
        self.up = H2ClientProtocol(Owner(), settings, self.flusher)
        self.node = Link(self.loop, self.up, Raw(Role.SERVER, **(node_raw or {})))
        self.lost = 0
        self.fronts: list[Link] = []
        self.settings = settings
        self.client()
        self.pump()

    def client(self) -> Link:
        down = H2ServerProtocol(self.accept, self.settings, self.flusher)
        self.fronts.append(Link(self.loop, down, Raw(Role.CLIENT)))
        return self.fronts[-1]

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> Splice | None:
        splice = Splice(stream)
        if not splice.join(cast(Any, self), headers, end):
            self.lost += 1
            splice.upstream_lost(NO_ERROR, True)
        return splice

    def open(self, headers: Headers, sink: Any, end: bool = False) -> Any:
        return self.up.open(headers, sink, end)

    def pump(self) -> None:
        pump(*self.fronts, self.node)


def in_segments(link: Link, data: bytes, pick: random.Random) -> None:
    """Give a connection bytes as a network does: in segments, cut anywhere."""
    at = pick.randrange(SEGMENT)
    link.protocol.data_received(data[:at])
    for begin in range(at, len(data), SEGMENT):
        link.protocol.data_received(data[begin : begin + SEGMENT])
        link.loop.run()


class Served:
    """A server connection whose clients' uploads are cancelled by its owners in the middle of a frame."""

    def __init__(self, **changes: Any) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.heard: list[Heard] = []
        self.takes = True

        def accept(stream: ServerStream, headers: Headers, end: bool) -> Heard:
            self.heard.append(Heard(stream, headers, end, self.takes))
            return self.heard[-1]

        self.conn = H2ServerProtocol(accept, net_settings(**changes), self.flusher)
        self.link = Link(self.loop, self.conn, Raw(Role.CLIENT))
        self.raw = self.link.raw
        self.link.pump()


def test_uploads_cut_off_in_the_middle_of_a_frame_cost_a_connection_no_window():
    """A window that shrank by part of a frame at each of these would be shut after less than a hundred."""
    rig = Served(**TIGHT)
    pick = random.Random(1)
    for i in range(400):
        stream_id = rig.raw.request(body=b"x" * 40_000, end=False)
        out = rig.raw.take()
        cut = pick.randrange(200, len(out))
        in_segments(rig.link, out[:cut], pick)
        if i % 2:
            rig.heard[-1].stream.reset(CANCEL)
            rig.loop.run()
            rig.link.pull()
        rest = out[cut:]
        if not i % 2:
            rig.raw.connection.reset_stream(stream_id, CANCEL)
            rest += rig.raw.take()
        in_segments(rig.link, rest, pick)
        rig.link.pump()
        assert not rig.conn.dead
    assert rig.conn.table == {}
    assert rig.conn.window_left() >= TIGHT["connection_window"] // 2
    rig.raw.request(body=b"y" * 3_000_000)
    rig.link.pump()
    assert (len(rig.heard[-1].data), rig.heard[-1].ended) == (3_000_000, True)


def test_downloads_cancelled_in_the_middle_of_a_frame_cost_a_shared_connection_no_window():
    rig = Relay(**TIGHT)
    front = rig.fronts[0]
    pick = random.Random(2)
    for i in range(300):
        front.raw.request()
        rig.pump()
        node_id = max(rig.node.raw.streams)
        rig.node.raw.connection.send_response(node_id, RESPONSE)
        rig.node.raw.connection.send_data(node_id, b"z" * 60_000)
        out = rig.node.raw.take()
        cut = pick.randrange(100, len(out))
        in_segments(rig.node, out[:cut], pick)
        front.raw.connection.reset_stream(max(2 * i + 1, 1), CANCEL)
        front.push()
        in_segments(rig.node, out[cut:], pick)
        rig.pump()
        assert not rig.up.dead
    assert rig.up.table == {}
    assert rig.up.window_left() >= TIGHT["connection_window"] // 2
    front.raw.request()
    rig.pump()
    node_id = max(rig.node.raw.streams)
    rig.node.raw.connection.send_response(node_id, RESPONSE)
    rig.node.raw.connection.send_data(node_id, b"z" * 3_000_000)
    rig.node.raw.connection.send_trailers(node_id, TRAILERS)
    rig.pump()
    assert len(front.raw.streams[601].data) == 3_000_000


def test_requests_that_nobody_takes_leave_the_others_their_window():
    rig = Served(**TIGHT)
    rig.takes = False
    for _ in range(TIGHT["max_streams"] - 1):
        rig.raw.request(body=b"x" * 100_000, end=False)
    rig.link.pump()
    assert all(len(heard.data) == 65_536 for heard in rig.heard)
    rig.takes = True
    rig.raw.request(body=b"y" * 3_000_000)
    rig.link.pump()
    assert (len(rig.heard[-1].data), rig.heard[-1].ended) == (3_000_000, True)


def test_answers_that_a_client_does_not_take_leave_the_others_the_nodes_window():
    rig = Relay(**TIGHT)
    slow = rig.fronts[0]
    slow.raw.reads = False
    for _ in range(4):
        slow.raw.request()
    rig.pump()
    for node_id in list(rig.node.raw.streams):
        rig.node.raw.connection.send_response(node_id, RESPONSE)
        rig.node.raw.connection.send_data(node_id, b"s" * 1_000_000)
    rig.pump()
    held = sum(len(seen.data) for seen in slow.raw.streams.values())
    assert held <= 4 * 65_536
    quick = rig.client()
    rig.pump()
    quick.raw.request()
    rig.pump()
    node_id = max(rig.node.raw.streams)
    rig.node.raw.connection.send_response(node_id, RESPONSE)
    rig.node.raw.connection.send_data(node_id, b"q" * 3_000_000, end_stream=True)
    rig.pump()
    assert len(quick.raw.streams[1].data) == 3_000_000


def test_a_storm_of_cancels_against_a_node_of_usual_limits_is_over_when_the_client_is():
    """A node that takes 1,000 resets at once would end the shared connection; our budget ends the client's first."""
    limits = {"stream_reset_rate_limit": (1000, 33)}
    rig = Relay(node_raw=limits, resets=Budget(burst=400, rate=30))
    bystander = rig.client()
    rig.pump()
    bystander.raw.request(body=b"x", end=False)
    rig.pump()
    storm = rig.fronts[0]
    for _ in range(3000):
        if storm.protocol.dead:
            break
        stream_id = storm.raw.request(body=b"x", end=False)
        rig.pump()
        storm.raw.connection.reset_stream(stream_id, CANCEL)
        rig.pump()
    assert storm.protocol.dead
    assert rig.flusher.counters.reasons == {"reset_flood": 1}
    assert not rig.up.dead and rig.node.raw.over is None
    rig.node.raw.connection.send_response(1, RESPONSE)
    rig.node.raw.connection.send_data(1, b"still here")
    rig.node.raw.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert bystander.raw.streams[1].data == b"still here"
    assert bystander.raw.streams[1].trailers == TRAILERS


def test_requests_opened_and_cancelled_in_one_packet_reach_no_node_at_all():
    rig = Relay(resets=MANY, hasty_resets=MANY)
    front = rig.fronts[0]
    for _ in range(2000):
        stream_id = front.raw.connection.send_request(REQUEST)
        first = front.raw.take()
        front.raw.connection.reset_stream(stream_id, CANCEL)
        front.protocol.data_received(first + front.raw.take())
        rig.pump()
    assert rig.node.raw.streams == {}
    assert rig.up.table == {} and not rig.up.dead


def test_a_node_that_has_had_enough_is_left_and_what_runs_there_goes_on():
    rig = Relay(node_raw={"stream_reset_rate_limit": (50, 1)}, resets=MANY)
    front = rig.fronts[0]
    waiting = front.raw.request(body=b"x", end=False)
    rig.pump()
    for _ in range(200):
        if rig.up.leaving:
            break
        stream_id = front.raw.request(body=b"x", end=False)
        rig.pump()
        front.raw.connection.reset_stream(stream_id, CANCEL)
        rig.pump()
    assert (rig.up.leaving, rig.up.parting, rig.up.dead) == (True, True, False)
    rig.node.raw.connection.send_response(1, RESPONSE)
    rig.node.raw.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert front.raw.streams[waiting].trailers == TRAILERS
    assert (rig.up.dead, front.protocol.dead) == (True, False)


@pytest.mark.parametrize("small", [1, 100])
def test_a_small_message_waits_behind_at_most_a_frame_of_each_bulk_stream(small: int):
    rig = Served()
    rig.raw = rig.link.raw = Raw(Role.CLIENT, server_settings(initial_window_size=1 << 22))
    rig.link = Link(rig.loop, H2ServerProtocol(rig.conn._accept, net_settings(), rig.flusher), rig.raw)
    rig.link.pump()
    for _ in range(5):
        rig.raw.request()
    rig.link.pump()
    bulk, quick = rig.heard[:4], rig.heard[4]
    for heard in rig.heard:
        heard.stream.respond(RESPONSE)
    for heard in bulk:
        heard.stream.send(b"b" * 1_000_000)
    quick.stream.send(b"q" * small)
    order: list[int] = []
    rig.raw.on_event = lambda event: order.append(event.stream_id) if hasattr(event, "data") else None
    rig.link.pump()
    assert order.index(quick.stream.id) <= len(bulk)  # type: ignore[attr-defined]
