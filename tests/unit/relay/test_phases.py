"""Each phase of a request has its limit; what is over is named, and the node is told to stop."""

from __future__ import annotations

import asyncio
import json

import pytest

from shared import headers as names
from shared.errors import Code, LayaError
from shared.net.api import CANCEL
from shared.net.grpc_wire import error_from_trailers, frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeServerStream
from tests.support.ports import until
from tests.support.relay_rig import MODEL, Rig

GENERATE = b"/laya.v1.Inference/Generate"
COMPLETE = b"/laya.v1.Inference/Complete"
MESSAGES = b'"model":"smollm2","messages":[{"role":"user","content":"hi"}]'


def call(rig: Rig, path: bytes = GENERATE, *extra: tuple[bytes, bytes]) -> FakeServerStream:
    opening = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]
    request = pb.GenerateRequest(model=MODEL, text="Hello")
    raw = request if path == GENERATE else pb.CompleteRequest(request=request)
    return FakeServerStream().call(rig.front.accept, opening, raw.SerializeToString())


async def error_of(client: FakeServerStream) -> LayaError:
    await until(lambda: client.ended, "the call has ended", 5)
    error = error_from_trailers(list(client.status().items()))
    assert error is not None and error.code is Code.DEADLINE_EXCEEDED and error.reason == "DEADLINE"
    assert error.metadata is not None
    return error


def settle(rig: Rig, client: FakeServerStream) -> None:
    """The node hears that it is to stop, and nothing is left."""
    node = rig.used.last
    assert node.code == CANCEL
    node.settle()
    client.settle()
    rig.assert_idle()


async def test_a_node_that_sends_no_first_token_is_given_up() -> None:
    rig = Rig(first_token=0.05)
    client = call(rig)
    error = await error_of(client)
    node = rig.used.last.sink
    assert node is not None and error.metadata is not None
    assert error.metadata["phase"] == "first_token" and error.metadata["retry_safe"] == "true"
    assert error.metadata["node"] in ("n0", "n1") and error.metadata["limit_seconds"] == "0.05"
    assert rig.count("deadline_first_token") == 1
    settle(rig, client)


async def test_headers_alone_are_no_first_token() -> None:
    rig = Rig(first_token=0.05)
    client = call(rig)
    rig.used.last.begin()
    assert (await error_of(client)).metadata["phase"] == "first_token"  # type: ignore[index]
    settle(rig, client)


async def test_a_stream_that_stands_still_is_given_up_after_its_limit_and_not_before() -> None:
    rig = Rig(first_token=5.0, between_tokens=0.2)
    client = call(rig)
    node = rig.used.last
    node.begin()
    loop = asyncio.get_running_loop()
    for _ in range(4):  # as long as it goes on it may take much longer than the limit
        node.sink.on_response_data(frame(b"token"), False)
        client.drain()
        last = loop.time()
        await asyncio.sleep(0.1)
        assert not client.ended
    error = await error_of(client)
    assert error.metadata is not None and error.metadata["phase"] == "between_tokens"
    assert error.metadata["retry_safe"] == "false"
    assert 0.2 <= loop.time() - last < 1.0
    settle(rig, client)


async def test_a_client_that_does_not_read_is_not_its_node_s_fault() -> None:
    rig = Rig(between_tokens=0.08)
    client = call(rig)
    rig.used.last.begin()
    rig.used.last.sink.on_response_data(frame(b"token"), False)
    await asyncio.sleep(0.3)
    assert not client.ended
    client.drain()  # now it does, and nothing more comes
    assert (await error_of(client)).metadata["phase"] == "between_tokens"  # type: ignore[index]
    settle(rig, client)


async def test_an_answer_that_comes_whole_may_take_its_time() -> None:
    rig = Rig(first_token=0.03, between_tokens=0.03)
    client = call(rig, COMPLETE)
    assert not rig.core.deadlines.live  # and costs nothing
    rig.used.last.answer(b"whole")
    client.settle()
    assert client.status()[b"grpc-status"] == b"0"
    rig.assert_idle()


@pytest.mark.parametrize("given, limit, whose", [(b"10S", "0.05", "router's"), (b"40m", "0.04", "call's")])
async def test_the_shorter_of_the_client_s_limit_and_the_router_s_counts(given: bytes, limit: str, whose: str) -> None:
    rig = Rig(total=0.05)
    client = call(rig, COMPLETE, (b"grpc-timeout", given))
    if whose == "router's":
        assert rig.used.last.headers[b"grpc-timeout"] != given  # the node is told what is left
    error = await error_of(client)
    assert error.metadata is not None
    assert (error.metadata["phase"], error.metadata["during"]) == ("total", "first_token")
    assert error.metadata["limit_seconds"] == limit and whose in error.message
    settle(rig, client)


async def test_a_wait_for_room_is_named_for_what_it_is() -> None:
    rig = Rig(headroom=0, timeout=0.03)
    client = call(rig)
    await until(lambda: client.ended, "the wait is over", 5)
    error = error_from_trailers(list(client.status().items()))
    assert error is not None and error.metadata == {"phase": "admission"}
    client.settle()
    rig.assert_idle()
    rig = Rig(headroom=0, timeout=5.0)
    client = call(rig, GENERATE, (b"grpc-timeout", b"40m"))
    error = await error_of(client)
    assert error.metadata is not None
    assert (error.metadata["phase"], error.metadata["during"]) == ("total", "admission")
    client.settle()
    rig.assert_idle()


async def test_nodes_without_a_connection_are_named_as_such() -> None:
    rig = Rig()
    for upstream in rig.upstreams.values():
        upstream.full = True
    client = call(rig)
    error = error_from_trailers(list(client.status().items()))
    assert error is not None and error.reason == "NODE_LOST" and error.metadata is not None
    assert (error.metadata["phase"], error.metadata["retry_safe"]) == ("connect", "true")
    client.settle()
    rig.assert_idle()


# Over HTTP.


def post(rig: Rig, stream: bool, *headers: tuple[bytes, bytes]) -> FakeExchange:
    body = b"{%b%b}" % (MESSAGES, b',"stream":true' if stream else b"")
    exchange = FakeExchange(b"POST", b"/v1/chat/completions", list(headers), body)
    rig.gateway.handle(exchange)
    return exchange


def head() -> bytes:
    fields = [openai_pb2.HttpHeader(name="content-type", value="text/event-stream")]
    return frame(
        openai_pb2.HttpResponse(head=openai_pb2.HttpResponseHead(status=200, headers=fields)).SerializeToString()
    )


def part(data: bytes) -> bytes:
    return frame(openai_pb2.HttpResponse(body=data).SerializeToString())


async def test_http_has_a_header_for_the_whole_time_and_passes_it_on() -> None:
    rig = Rig()
    exchange = post(rig, False, (names.TIMEOUT, b"50"))
    node = rig.used.last
    assert b"grpc-timeout" in node.headers
    await until(lambda: exchange.state == "responded", "it is answered", 5)
    status, _, body = exchange.answer()
    assert status == 504 and json.loads(body)["error"]["type"] == "timeout_error"
    assert node.code == CANCEL
    node.settle()
    rig.assert_idle()


@pytest.mark.parametrize("value", [b"0", b"soon", b"-4", b"9999999999"])
async def test_a_limit_that_is_none_is_the_client_s_mistake(value: bytes) -> None:
    rig = Rig()
    status, _, body = post(rig, False, (names.TIMEOUT, value)).answer()
    assert status == 400 and b"laya-timeout-ms" in body
    rig.assert_idle()


async def test_events_that_stop_end_with_an_error_event() -> None:
    rig = Rig(between_tokens=0.08)
    exchange = post(rig, True)
    node = rig.used.last
    node.begin()
    node.sink.on_response_data(head(), False)
    node.sink.on_response_data(part(b"data: {}\n\n"), False)
    exchange.drain()
    await until(lambda: exchange.state == "finished", "it is ended", 5)
    last = exchange.parts[-1]
    assert last.startswith(b"data: ") and b"timeout_error" in last and b"between_tokens" in last
    node.settle()
    rig.assert_idle()


async def test_http_streams_have_a_limit_for_the_first_token() -> None:
    rig = Rig(first_token=0.05)
    exchange = post(rig, True)
    await until(lambda: exchange.state == "responded", "it is answered", 5)
    assert exchange.answer()[0] == 504
    rig.used.last.settle()
    rig.assert_idle()


async def test_a_request_that_waits_over_http_has_its_limit_too() -> None:
    rig = Rig(headroom=0, timeout=5.0)
    exchange = post(rig, False, (names.TIMEOUT, b"40"))
    await until(lambda: exchange.state == "responded", "it is answered", 5)
    assert exchange.answer()[0] == 504
    rig.assert_idle()
