"""Two streams joined: bytes, ends, losses and back-pressure go through in every order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngh2 import Role

from shared.errors import Code, LayaError
from shared.net.api import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    REFUSED_STREAM,
    ClientSink,
    ClientStream,
    Headers,
    ServerStream,
)
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.net.splice import Splice
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    Link,
    ManualLoop,
    Raw,
    Seen,
    net_settings,
    pump,
    server_settings,
)

pytestmark = pytest.mark.usefixtures("engine_name")


class Owner(ClientOwner):
    def on_ready(self, conn: H2ClientProtocol) -> None:
        pass

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        pass

    def on_gone(self, conn: H2ClientProtocol) -> None:
        pass


class Relay(Splice):
    """A splice that writes down which hooks were called."""

    __slots__ = ("hooks", "rig")

    def __init__(self, down: ServerStream, rig: Rig) -> None:
        super().__init__(down)
        self.rig = rig
        self.hooks: list[Any] = []

    def filter_response(self, headers: Headers) -> Headers:
        self.hooks.append("response")
        headers.append((b"x-hook", b"1"))
        return headers

    def filter_trailers(self, headers: Headers) -> Headers:
        self.hooks.append("trailers")
        return headers

    def first_byte(self) -> None:
        self.hooks.append("first_byte")

    def upstream_lost(self, code: int, unprocessed: bool) -> None:
        self.hooks.append(("lost", code, unprocessed))
        if self.rig.retry and self.can_replay and self.join(self.rig, REQUEST):
            return
        super().upstream_lost(code, unprocessed)

    def upstream_closed(self) -> None:
        self.hooks.append("upstream_closed")

    def finished(self, code: int) -> None:
        self.hooks.append(("finished", code))


class Rig:
    """A raw client, a relay of two connections, and two raw nodes; an upstream that opens on the first that can."""

    def __init__(
        self,
        client: dict[int, int] | None = None,
        node: dict[int, int] | None = None,
        client_raw: dict[str, Any] | None = None,
        node_raw: dict[str, Any] | None = None,
        late: bool = False,
        **changes: Any,
    ) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.late = late
        self.retry = False
        self.relays: list[Relay] = []
        config = net_settings(**changes)
        self.ups = [H2ClientProtocol(Owner(), config, self.flusher) for _ in range(2)]
        self.down = H2ServerProtocol(self.accept, config, self.flusher)
        self.nodes = [Link(self.loop, up, Raw(Role.SERVER, node, **(node_raw or {}))) for up in self.ups]
        self.front = Link(self.loop, self.down, Raw(Role.CLIENT, client, **(client_raw or {})))
        self.client = self.front.raw
        self.node = self.nodes[0].raw
        self.pump()

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> Relay:
        relay = Relay(stream, self)
        self.relays.append(relay)
        if not self.late:
            assert relay.join(self, headers, end)
        return relay

    def open(self, headers: Headers, sink: ClientSink, end: bool = False) -> ClientStream | None:
        for up in self.ups:
            stream = up.open(headers, sink, end)
            if stream is not None:
                return stream
        return None

    def pump(self) -> None:
        pump(self.front, *self.nodes)

    def call(self, body: bytes | None = b"ask", end: bool = True) -> Relay:
        self.client.request(REQUEST, body, end)
        self.pump()
        return self.relays[-1]

    @property
    def seen(self) -> Seen:
        return self.client.streams[max(self.client.streams)]

    def empty(self) -> bool:
        return not any(conn.table for conn in (self.down, *self.ups))


HEAD = [*RESPONSE, (b"x-hook", b"1")]


def test_a_unary_call_goes_through_untouched():
    rig = Rig()
    relay = rig.call(b"ask")
    assert rig.node.streams[1].headers == REQUEST
    assert (bytes(rig.node.streams[1].data), rig.node.streams[1].ended) == (b"ask", True)
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"answer")
    rig.node.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert (rig.seen.headers, bytes(rig.seen.data), rig.seen.trailers, rig.seen.closed) == (
        HEAD,
        b"answer",
        TRAILERS,
        0,
    )
    assert relay.hooks == ["response", "first_byte", "trailers", "upstream_closed", ("finished", 0)]
    assert (relay.bytes_in, relay.bytes_out, relay.grpc_status) == (3, 6, b"0")
    assert relay.complete
    assert rig.empty()


def test_a_request_without_a_body_has_none_at_the_node():
    rig = Rig()
    rig.call(None)
    assert rig.node.streams[1].ended


def test_request_trailers_go_through():
    rig = Rig()
    stream_id = rig.client.connection.send_request(REQUEST)
    rig.client.connection.send_data(stream_id, b"x")
    rig.client.connection.send_trailers(stream_id, [(b"x-t", b"1")])
    rig.pump()
    assert rig.node.streams[1].trailers == [(b"x-t", b"1")]


def test_a_trailers_only_answer_passes_both_filters():
    rig = Rig()
    relay = rig.call()
    rig.node.connection.send_response(1, [*RESPONSE, (b"grpc-status", b"5")], end_stream=True)
    rig.pump()
    assert rig.seen.headers == [*RESPONSE, (b"grpc-status", b"5"), (b"x-hook", b"1")]
    assert rig.seen.ended
    assert relay.grpc_status == b"5"
    assert relay.hooks == ["response", "trailers", "upstream_closed", ("finished", 0)]


def test_messages_flow_both_ways_before_either_side_ends():
    rig = Rig()
    rig.call(b"1", end=False)
    rig.node.connection.send_response(1, RESPONSE)
    for i in range(20):
        rig.node.connection.send_data(1, b"n%d" % i)
        rig.client.connection.send_data(1, b"c%d" % i)
        rig.pump()
        assert rig.seen.data.endswith(b"n%d" % i)
        assert rig.node.streams[1].data.endswith(b"c%d" % i)
    rig.client.connection.end_stream(1)
    rig.pump()
    rig.node.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert rig.seen.closed == 0
    assert rig.empty()


def test_an_early_answer_ends_the_clients_request_and_the_nodes():
    rig = Rig()
    relay = rig.call(b"x" * 100, end=False)
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"enough")
    rig.node.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert (bytes(rig.seen.data), rig.seen.trailers, rig.seen.reset) == (b"enough", TRAILERS, NO_ERROR)
    assert rig.node.streams[1].reset == NO_ERROR
    assert relay.hooks[-2:] == ["upstream_closed", ("finished", 0)]
    assert rig.empty()


def test_an_early_answer_with_a_reset_by_the_node_is_still_whole():
    rig = Rig()
    rig.call(b"x" * 100, end=False)
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"enough")
    rig.node.connection.send_trailers(1, TRAILERS)
    first = rig.node.take()
    rig.node.connection.reset_stream(1, NO_ERROR)
    rig.ups[0].data_received(first + rig.node.take())
    rig.pump()
    assert (bytes(rig.seen.data), rig.seen.trailers, rig.seen.reset) == (b"enough", TRAILERS, NO_ERROR)
    assert rig.empty()


def test_a_client_that_cancels_cancels_at_the_node_in_the_same_batch():
    rig = Rig()
    relay = rig.call(b"x", end=False)
    rig.client.connection.reset_stream(1, CANCEL)
    rig.front.push()
    rig.nodes[0].pull()
    assert rig.node.streams[1].reset == CANCEL
    assert relay.hooks == ["upstream_closed", ("finished", CANCEL)]
    assert rig.empty()


def test_a_client_that_opens_and_cancels_in_one_packet_never_reaches_the_node():
    rig = Rig()
    rig.client.request(body=b"x", end=False)
    first = rig.client.take()
    rig.client.connection.reset_stream(1, CANCEL)
    rig.down.data_received(first + rig.client.take())
    rig.pump()
    assert rig.node.streams == {}
    assert rig.relays[0].hooks == ["upstream_closed", ("finished", CANCEL)]
    assert rig.empty()


def test_a_client_that_vanishes_cancels_all_it_asked_for():
    rig = Rig()
    for _ in range(5):
        rig.call(b"x", end=False)
    rig.front.wire.lose()
    pump(*rig.nodes)
    assert [seen.reset for seen in rig.node.streams.values()] == [CANCEL] * 5
    assert all(relay.hooks == ["upstream_closed", ("finished", CANCEL)] for relay in rig.relays)
    assert rig.empty()


def test_a_node_lost_before_it_answered_gives_unavailable():
    rig = Rig()
    relay = rig.call(b"x")
    rig.nodes[0].wire.lose()
    rig.pump()
    answer = dict(rig.seen.headers)
    assert answer[b"grpc-status"] == b"14"
    assert b"node" in answer[b"grpc-message"]
    assert b"grpc-status-details-bin" in answer
    assert rig.seen.ended
    assert relay.hooks == [("lost", CANCEL, False), ("finished", 0)]
    assert relay.grpc_status == b"14"
    assert rig.empty()


def test_a_node_lost_in_the_middle_gives_trailers_after_what_came():
    rig = Rig()
    relay = rig.call(b"x", end=False)
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"part")
    rig.pump()
    rig.nodes[0].wire.lose()
    rig.pump()
    assert bytes(rig.seen.data) == b"part"
    assert rig.seen.trailers is not None
    assert dict(rig.seen.trailers)[b"grpc-status"] == b"14"
    assert rig.seen.reset == NO_ERROR
    assert relay.hooks == ["response", "first_byte", ("lost", CANCEL, False), ("finished", 0)]
    assert rig.empty()


def test_a_node_that_resets_says_so_by_its_code():
    rig = Rig()
    relay = rig.call(b"x")
    rig.node.connection.reset_stream(1, INTERNAL_ERROR)
    rig.pump()
    assert relay.hooks[0] == ("lost", INTERNAL_ERROR, False)
    assert dict(rig.seen.headers)[b"grpc-status"] == b"14"


def test_a_request_that_the_node_did_not_take_goes_to_another_whole():
    rig = Rig()
    rig.retry = True
    relay = rig.call(b"x" * 50_000, end=False)
    rig.client.connection.send_data(1, b"y" * 10_000, end_stream=True)
    rig.pump()
    rig.node.connection.send_goaway(0, last_stream_id=0)
    rig.pump()
    second = rig.nodes[1].raw
    assert bytes(second.streams[1].data) == b"x" * 50_000 + b"y" * 10_000
    assert second.streams[1].ended
    second.connection.send_response(1, RESPONSE)
    second.connection.send_trailers(1, TRAILERS)
    rig.pump()
    assert rig.seen.trailers == TRAILERS
    assert relay.hooks == [("lost", REFUSED_STREAM, True), "response", "trailers", "upstream_closed", ("finished", 0)]
    assert rig.empty()


def test_a_repeated_request_does_not_give_the_client_window_twice():
    rig = Rig(node_raw={"reads": False})
    rig.retry = True
    rig.call(b"x" * 40_000, end=False)
    rig.node.connection.reset_stream(1, REFUSED_STREAM)
    rig.pump()
    rig.client.connection.send_data(1, b"y" * 20_000)
    rig.pump()
    stream = next(iter(rig.down.table.values()))
    second = rig.nodes[1].raw if rig.nodes[1].raw.streams else rig.node
    sid = max(second.streams)
    assert len(second.streams[sid].data) == 60_000
    granted = 60_000 - stream.held + stream.taken
    assert granted == 60_000
    rig.client.connection.send_data(1, b"z" * 100_000)
    rig.pump()
    left = sum(up.table[i].queued for up in rig.ups for i in up.table)
    assert left <= 65_536


def test_a_long_request_is_not_kept_and_cannot_be_repeated():
    rig = Rig()
    rig.retry = True
    relay = rig.call(b"x" * 70_000, end=False)
    assert not relay.early_data()
    rig.node.connection.reset_stream(1, REFUSED_STREAM)
    rig.pump()
    assert relay.hooks[:1] == [("lost", REFUSED_STREAM, True)]
    assert dict(rig.seen.headers)[b"grpc-status"] == b"14"
    assert rig.nodes[1].raw.streams == {}
    assert rig.empty()


def test_what_the_node_has_begun_to_answer_is_not_kept():
    rig = Rig()
    relay = rig.call(b"x", end=False)
    assert relay.early_data() == [b"x"]
    rig.node.connection.send_response(1, RESPONSE)
    rig.pump()
    assert relay.early_data() == []
    assert not relay.can_replay


# Joined later.


def test_what_comes_before_the_join_is_sent_at_the_join():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    rig.client.connection.send_data(1, b"more", end_stream=True)
    rig.pump()
    assert b"".join(relay.early_data()) == b"earlymore"
    assert rig.node.streams == {}
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert (bytes(rig.node.streams[1].data), rig.node.streams[1].ended) == (b"earlymore", True)
    with pytest.raises(RuntimeError, match="joined"):
        relay.join(rig, REQUEST)


def test_a_late_join_of_a_request_that_goes_on():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert not rig.node.streams[1].ended
    rig.client.connection.send_trailers(1, [(b"x-t", b"1")])
    rig.pump()
    assert rig.node.streams[1].trailers == [(b"x-t", b"1")]


def test_a_late_join_sends_trailers_that_came_before():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    rig.client.connection.send_trailers(1, [(b"x-t", b"1")])
    rig.pump()
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert (bytes(rig.node.streams[1].data), rig.node.streams[1].trailers) == (b"early", [(b"x-t", b"1")])


def test_before_the_join_the_client_may_send_a_window_and_what_is_asked_for():
    rig = Rig(late=True)
    relay = rig.call(b"x" * 300_000, end=True)
    assert relay.bytes_in == 65_536
    relay.ask_more(65_536)
    rig.pump()
    assert relay.bytes_in == 131_072
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert len(rig.node.streams[1].data) == 300_000
    assert rig.node.streams[1].ended


def test_a_client_that_leaves_before_the_join_is_finished_with():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    rig.client.connection.reset_stream(1, CANCEL)
    rig.pump()
    assert relay.hooks == [("finished", CANCEL)]
    assert not relay.can_replay


def test_an_error_before_the_join_is_trailers_only():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    error = LayaError(Code.NOT_FOUND, "MODEL_NOT_FOUND", "No such model.")
    relay.fail(error)
    relay.fail(error)
    rig.pump()
    assert dict(rig.seen.headers)[b"grpc-status"] == b"5"
    assert rig.seen.reset == NO_ERROR
    assert relay.hooks == [("finished", 0)]


def test_an_error_of_ours_in_the_middle_cancels_the_node():
    rig = Rig()
    relay = rig.call(b"x")
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"part")
    rig.pump()
    relay.fail(LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", "Too late."))
    rig.pump()
    assert bytes(rig.seen.data) == b"part"
    assert rig.seen.trailers is not None
    assert dict(rig.seen.trailers)[b"grpc-status"] == b"4"
    assert rig.node.streams[1].reset == CANCEL
    assert relay.hooks == ["response", "first_byte", "upstream_closed", ("finished", 0)]
    assert rig.empty()


def test_no_upstream_means_no_join():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    for up in rig.ups:
        up.retire("")
    assert not relay.join(rig, REQUEST)
    assert relay.can_replay


# Back-pressure.


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
