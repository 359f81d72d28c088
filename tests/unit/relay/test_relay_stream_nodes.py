"""One gRPC call whose node is lost, refuses it, drains or answers early."""

from __future__ import annotations

import asyncio

import pytest

from shared import headers as names
from shared.errors import Code, LayaError, exhausted, unavailable
from shared.net.grpc_wire import frame
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_calls import GENERATE, SDK, error_of, headers, request
from tests.support.relay_rig import Rig


async def test_a_node_lost_in_the_middle_of_an_answer_is_unavailable_and_not_tried_again():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.used.last
    node.begin()
    node.sink.on_response_data(frame(b"half"), False)
    node.lose()
    error = error_of(client)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NODE_LOST")
    assert error.metadata is not None
    assert (error.metadata["retry_safe"], error.metadata["delivered_bytes"]) == ("false", "9")
    assert not rig.other(rig.used).streams
    client.settle()
    rig.assert_idle()


@pytest.mark.parametrize("unprocessed", [True, False])
async def test_a_node_lost_before_the_answer_sends_the_request_to_another_once(unprocessed):
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    first = rig.used
    first.last.lose(unprocessed=unprocessed)
    second = rig.other(first)
    assert second.last.data == [frame(request())]
    assert second.last.ended
    assert second.last.headers[names.DISPATCH] != first.last.headers[names.DISPATCH]
    second.last.lose()
    error = error_of(client)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NODE_LOST")
    assert error.metadata is not None and error.metadata["retry_safe"] == "true"
    client.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["attempts"] == 2


async def test_the_only_node_is_asked_once_more_if_it_never_saw_the_request():
    rig = Rig(1)
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.node(0)
    node.last.lose(7, unprocessed=True)
    assert len(node.streams) == 2 and node.last.data == [frame(request())]
    node.last.answer(b"x")
    assert client.status()[b"grpc-status"] == b"0"
    client.settle()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node.last.lose()
    assert error_of(client).reason == "NODE_LOST"
    client.settle()
    rig.assert_idle()


async def test_a_node_that_refuses_for_ever_is_not_asked_for_ever():
    rig = Rig(1)
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    for _ in range(10):
        if client.ended:
            break
        rig.node(0).last.lose(7, unprocessed=True)
    assert error_of(client).reason == "NODE_LOST"
    client.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["attempts"] == len(rig.node(0).streams) <= 3


async def test_a_request_that_must_not_migrate_is_tried_again_only_if_no_node_saw_it():
    rig = Rig()
    marked = headers(GENERATE, (names.NO_MIGRATE, b"1"))
    client = FakeServerStream().call(rig.front.accept, marked, request())
    rig.used.last.lose()
    assert error_of(client).reason == "NODE_LOST"
    client.settle()
    for upstream in rig.upstreams.values():
        upstream.streams.clear()
    client = FakeServerStream().call(rig.front.accept, marked, request())
    first = rig.used
    first.last.lose(7, unprocessed=True)
    rig.other(first).last.answer(b"x")
    assert client.status()[b"grpc-status"] == b"0"
    client.settle()
    rig.assert_idle()


async def test_a_node_that_breaks_the_protocol_is_internal_and_not_tried_again():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    rig.used.last.lose(1)
    assert error_of(client).code == Code.INTERNAL
    client.settle()
    rig.assert_idle()


async def test_a_node_without_room_passes_the_request_to_another_and_rests():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    first = rig.used
    first.last.refuse(exhausted("Full.", "QUEUE_FULL", 0.5).grpc_trailers())
    second = rig.other(first)
    assert second.last.data == [frame(request())]
    second.last.answer(b"x")
    assert client.status()[b"grpc-status"] == b"0"
    assert dict(client.head)[names.NODE].decode() in rig.upstreams
    client.settle()
    rig.assert_idle()
    assert rig.count("node_refused") == 1


async def test_when_every_node_refuses_the_request_waits_and_the_node_s_answer_stands_in_the_end():
    rig = Rig(1, timeout=0.1)
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    rig.node(0).last.refuse(exhausted("Full.", "QUEUE_FULL", 30).grpc_trailers())
    assert rig.dispatcher.queued == 1 or len(rig.node(0).streams) == 2
    while not client.ended:
        if len(rig.node(0).streams) > 1 and not rig.node(0).last.closed:
            rig.node(0).last.refuse(exhausted("Full.", "QUEUE_FULL", 30).grpc_trailers())
        await asyncio.sleep(0.01)
    error = error_of(client)
    assert (error.code, error.message) == (Code.RESOURCE_EXHAUSTED, "Full.")
    client.settle()
    rig.assert_idle()


async def test_a_draining_node_gives_the_request_back_and_other_errors_are_the_client_s():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    first = rig.used
    first.last.refuse(unavailable("Draining.", "DRAINING").grpc_trailers())
    rig.other(first).last.refuse(LayaError(Code.INVALID_ARGUMENT, "CONTEXT_TOO_LONG", "Too long.").grpc_trailers())
    error = error_of(client)
    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "CONTEXT_TOO_LONG")
    client.settle()
    rig.assert_idle()


async def test_a_refusal_while_the_client_still_sends_goes_on_with_all_of_the_request():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(GENERATE, *SDK), False)
    assert client.sink is not None
    client.sink.on_data(b"one", False)
    first = rig.used
    stream = first.last
    stream.sink.on_response([(b":status", b"200"), *exhausted("Full.", "QUEUE_FULL", 1).grpc_trailers()], True)
    assert stream.code == 8
    client.sink.on_data(b"two", True)
    stream.settle()
    assert b"".join(rig.other(first).last.data) == b"onetwo"
    rig.other(first).last.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_a_client_that_leaves_between_a_refusal_and_the_next_node_leaves_nothing():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    stream = rig.used.last
    stream.sink.on_response([(b":status", b"200"), *exhausted("Full.", "QUEUE_FULL", 1).grpc_trailers()], True)
    client.cancel()
    stream.settle()
    rig.assert_idle()


async def test_a_node_without_a_connection_is_passed_over():
    rig = Rig()
    rig.node(0).full = rig.node(1).full = True
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    assert error_of(client).reason == "NODE_LOST"
    client.settle()
    rig.node(1).full = False
    for _ in range(4):
        client = FakeServerStream().call(rig.front.accept, headers(), request())
        rig.node(1).last.answer(b"x")
        assert client.status()[b"grpc-status"] == b"0"
        client.settle()
    rig.assert_idle()


async def test_an_answer_before_the_request_is_whole_is_delivered():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(GENERATE, *SDK), False)
    rig.used.last.answer(b"early")
    assert client.status()[b"grpc-status"] == b"0"
    client.settle()
    rig.assert_idle()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_defect_while_a_message_is_read_or_a_wait_ends_is_one_internal_error(waits, monkeypatch):
    rig = Rig(headroom=0 if waits else 100_000)
    if waits:
        client = FakeServerStream().call(rig.front.accept, headers(), request())
        monkeypatch.setattr(rig.node(0), "open", lambda *_: 1 / 0)
        rig.report("n0", 100_000)
    else:
        monkeypatch.setattr(rig.dispatcher, "resolve", lambda *_: 1 / 0)
        client = FakeServerStream().call(rig.front.accept, headers(), request())
    assert error_of(client).code == Code.INTERNAL
    client.settle()
    rig.assert_idle()
    assert rig.count("defect") == 1
