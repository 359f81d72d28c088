"""What a request may hold, and what a node's refusal means for the node and for the request."""

from __future__ import annotations

import pytest

from router_node.relay.faults import no_room, not_begun
from shared.errors import Code, LayaError
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_calls import error_of, headers, request
from tests.support.relay_rig import MODEL, Rig


def refusal(code: Code, reason: str) -> LayaError:
    return LayaError(code, reason, "No.")


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "QUEUE_TIMEOUT"])
def test_a_node_without_room_says_so_by_its_reason(reason: str):
    error = refusal(Code.RESOURCE_EXHAUSTED, reason)
    assert no_room(error) and not_begun(error)


@pytest.mark.parametrize("reason", ["BODY_TOO_LARGE", "HEADERS_TOO_LARGE", "RESOURCE_EXHAUSTED", ""])
def test_what_is_wrong_with_a_request_is_wrong_everywhere_and_rests_no_node(reason: str):
    error = refusal(Code.RESOURCE_EXHAUSTED, reason)
    assert not no_room(error) and not not_begun(error)


@pytest.mark.parametrize("reason", ["DRAINING", "NOT_READY", "UPLOADS_FULL"])
def test_a_node_that_cannot_begin_gives_the_request_back_without_a_rest(reason: str):
    assert not_begun(refusal(Code.UNAVAILABLE, reason)) and not no_room(refusal(Code.UNAVAILABLE, reason))


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.INTERNAL])
def test_no_other_code_is_a_refusal_whatever_its_reason(code: Code):
    assert not not_begun(refusal(code, "QUEUE_FULL"))


async def test_one_client_s_oversize_message_neither_rests_a_node_nor_visits_all_of_them():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.used
    node.last.refuse(refusal(Code.RESOURCE_EXHAUSTED, "BODY_TOO_LARGE").grpc_trailers())
    assert client.status()[b"grpc-status"] == b"8"
    assert not rig.other(node).streams
    client.settle()
    rig.assert_idle()
    assert rig.count("node_refused") == 0
    after = FakeServerStream().call(rig.front.accept, headers(), request(model=MODEL))
    assert len(node.streams) + len(rig.other(node).streams) == 2
    after.cancel()


def reading(rig: Rig, data: bytes) -> FakeServerStream:
    """A call whose first message is not whole yet."""
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    assert client.sink is not None
    client.sink.on_data(b"\0" + (200_000).to_bytes(4, "big") + data, False)
    return client


async def test_first_messages_may_take_so_much_together_and_then_the_largest_go():
    rig = Rig(max_body_bytes=10_000)  # eight of these in all
    small = reading(rig, b"x" * 100)
    large = [reading(rig, b"x" * 20_000) for _ in range(3)]
    gone = [client for client in large if client.ended]
    assert 1 <= len(gone) < 3 and not small.ended
    assert all(error_of(client).reason == "UPLOADS_FULL" for client in gone)
    assert rig.core.uploads.held <= 80_000
    assert rig.count("uploads_full") == len(gone)
    for client in (small, *large):
        client.cancel()
    rig.assert_idle()
    assert rig.core.uploads.held == len(rig.core.uploads) == 0


async def test_a_first_message_that_is_whole_is_in_no_account():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    assert client.sink is not None
    raw = frame(request())
    client.sink.on_data(raw[:7], False)
    assert rig.core.uploads.held == 14
    client.sink.on_data(raw[7:], True)
    assert rig.core.uploads.held == len(rig.core.uploads) == 0
    rig.used.last.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_request_trailers_are_the_end_of_a_request_and_nothing_else():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    assert client.sink is not None
    client.sink.on_data(frame(request()), False)
    client.sink.on_trailers([(b"authorization", b"Bearer laya-secret")])
    assert rig.used.last.ended and b"".join(rig.used.last.data) == frame(request())
    rig.used.last.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_an_http_body_counts_until_its_answer_has_begun():
    rig = Rig(max_body_bytes=100_000)
    body = b'{"model":"%b","messages":[],"stream":true,"x":"%b"}' % (MODEL.encode(), b"y" * 90_000)
    exchange = FakeExchange(b"POST", b"/v1/chat/completions", [], body)
    rig.gateway.handle(exchange)
    assert rig.core.uploads.kept == len(body)
    head = openai_pb2.HttpResponse()
    head.head.status = 200
    head.head.headers.add(name="content-type", value="text/event-stream")
    rig.used.last.sink.on_response([(b":status", b"200"), (b"content-type", b"application/grpc")], False)
    rig.used.last.sink.on_response_data(frame(head.SerializeToString()), False)
    assert rig.core.uploads.kept == len(body), "another node may have to be asked"
    event = openai_pb2.HttpResponse(body=b"data: 1\n\n")
    rig.used.last.sink.on_response_data(frame(event.SerializeToString()), False)
    assert exchange.state == "started" and exchange.body == b""
    assert rig.core.uploads.kept == 0
    exchange.leave()
    rig.used.last.settle()
    rig.assert_idle()


async def test_http_bodies_that_are_too_much_together_are_told_to_come_back():
    rig = Rig(max_body_bytes=100_000)
    body = b'{"model":"%b","messages":[],"x":"%b"}' % (MODEL.encode(), b"y" * 90_000)
    exchanges = [FakeExchange(b"POST", b"/v1/chat/completions", [], body) for _ in range(10)]
    for exchange in exchanges:
        rig.gateway.handle(exchange)
    refused = [exchange for exchange in exchanges if exchange.state == "responded"]
    assert len(refused) == 2
    status, reply, _ = refused[0].answer()
    assert (status, reply[b"retry-after"]) == (503, b"1")
    for exchange in exchanges:
        exchange.leave()
    for upstream in rig.upstreams.values():
        for stream in upstream.streams:
            stream.settle()
    rig.assert_idle()
    assert rig.core.uploads.held == 0


@pytest.mark.parametrize("status", [b"", b"many", b"17", b"9" * 5000])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_status_that_is_none_is_told_as_the_node_s_fault(status: bytes, whole: bool):
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.used.last
    tail = [(b"grpc-status", status)] if status else [(b"x", b"y")]
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    if whole:
        node.sink.on_response([*head, *tail], True)
    else:
        node.sink.on_response(head, False)
        node.sink.on_response_trailers(tail)
    error = error_of(client)
    assert (error.code, error.reason) == (Code.INTERNAL, "NODE_PROTOCOL")
    assert b":status" in dict(client.head) and b":status" not in dict(client.tail)
    node.settle() if node.code >= 0 else node.lose(0)
    client.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["reason"] == "NODE_PROTOCOL"


async def test_an_answer_that_is_no_grpc_is_told_as_the_node_s_fault():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.used.last
    node.sink.on_response([(b":status", b"503"), (b"content-type", b"text/html")], False)
    assert (error_of(client).code, error_of(client).reason) == (Code.UNAVAILABLE, "NODE_PROTOCOL")
    node.settle()
    client.settle()
    rig.assert_idle()
