"""Two streams joined: bytes, ends and losses go through in every order."""

from __future__ import annotations

import pytest

from shared.net.api import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    REFUSED_STREAM,
)
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    pump,
)
from tests.support.splice_rig import HEAD, Rig

pytestmark = pytest.mark.usefixtures("engine_name")


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
