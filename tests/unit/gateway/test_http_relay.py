"""One HTTP request through the tunnel, in every order that client and node can put things."""

from __future__ import annotations

import asyncio
import json

import pytest

from shared import headers as names
from shared.errors import Code, LayaError, exhausted, unavailable
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import openai_pb2 as pb
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeClientStream
from tests.support.relay_rig import Rig

CHAT = b"/v1/chat/completions"
BODY = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
JSON = ("content-type", "application/json")
SSE = ("content-type", "text/event-stream; charset=utf-8")


def ask(rig: Rig, body: bytes = BODY) -> FakeExchange:
    exchange = FakeExchange(b"POST", CHAT, [], body)
    rig.gateway.handle(exchange)
    return exchange


def head(status: int, *headers: tuple[str, str]) -> bytes:
    fields = [pb.HttpHeader(name=name, value=value) for name, value in headers]
    return frame(pb.HttpResponse(head=pb.HttpResponseHead(status=status, headers=fields)).SerializeToString())


def part(data: bytes) -> bytes:
    return frame(pb.HttpResponse(body=data).SerializeToString())


def say(stream: FakeClientStream, *data: bytes) -> None:
    for one in data:
        stream.sink.on_response_data(one, False)


def error_in(exchange: FakeExchange) -> dict[str, object]:
    error = json.loads(exchange.answer()[2])["error"]
    assert isinstance(error, dict)
    return error


async def test_a_json_answer_leaves_in_one_piece():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, JSON, ("server", "uvicorn"), ("x-own", "1")))
    assert exchange.state == "fresh"
    say(node, part(b'{"a":'), part(b'"bcd"}'))
    assert exchange.state == "fresh"
    node.finish()
    status, headers, body = exchange.answer()
    assert (status, body) == (200, b'{"a":"bcd"}')
    assert exchange.state == "responded"
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-own"] == b"1"
    assert b"server" not in headers and b"content-length" not in headers
    assert headers[names.REQUEST_ID].startswith(b"req-")
    assert headers[names.NODE] in (b"n0", b"n1")
    assert node.taken == sum(
        len(x)
        for x in (
            head(200, JSON, ("server", "uvicorn"), ("x-own", "1")),
            part(b'{"a":'),
            part(b'"bcd"}'),
        )
    )
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == 200
    assert rig.log.entries[-1]["method"] == "/v1/chat/completions"
    assert rig.log.entries[-1]["bytes_out"] == 11


async def test_events_pass_byte_for_byte_as_they_come_even_when_split():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    events = [b'data: {"x":"\xc3\xa9', b'"}\r\n\r\ndata:{"y":1}\n\n', b"data: [DONE]\n\n"]
    say(node, head(200, SSE))
    assert exchange.state == "fresh", "the head goes with the first event"
    for event in events:
        say(node, part(event))
        assert exchange.state == "started"
        assert exchange.parts[-1] == event
    node.finish()
    assert exchange.answer()[2] == b"".join(events)
    rig.assert_idle()


async def test_a_node_lost_behind_the_head_of_a_stream_is_replaced_by_another_one():
    rig = Rig()
    exchange = ask(rig)
    first = rig.used
    first.last.begin()
    say(first.last, head(200, SSE))
    first.last.lose()
    node = rig.other(first).last
    node.begin()
    say(node, head(200, SSE, ("x-own", "2")) + part(b"data: 1\n\n"))
    assert dict(exchange.reply_headers)[b"x-own"] == b"2"
    node.finish()
    assert exchange.answer()[2] == b"data: 1\n\n"
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == 200


async def test_a_stream_whose_nodes_are_lost_before_its_first_event_is_a_503_that_may_be_tried_again():
    rig = Rig()
    exchange = ask(rig)
    first = rig.used
    for upstream in (first, rig.other(first)):
        upstream.last.begin()
        say(upstream.last, head(200, SSE))
        upstream.last.lose()
    assert exchange.answer()[0] == 503
    assert "before the answer began" in str(error_in(exchange)["message"])
    assert b"retry-after" in exchange.answer()[1]
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == 503


async def test_a_stream_that_ends_without_an_event_is_whole():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, SSE))
    node.finish()
    assert (exchange.state, exchange.answer()[2]) == ("finished", b"")
    rig.assert_idle()


async def test_the_head_of_what_is_no_stream_of_events_goes_on_as_it_comes():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, ("content-type", "audio/wav")))
    assert exchange.state == "started"
    node.finish()
    rig.assert_idle()


async def test_a_client_that_does_not_read_holds_the_node_back():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    opening = head(200, SSE)
    say(node, opening, part(b"x" * 10_000))
    overhead = len(part(b"x" * 10_000)) - 10_000
    assert node.taken == len(opening) + overhead
    exchange.drain()
    assert node.taken == len(opening) + overhead + 10_000
    exchange.leave()
    node.settle()
    rig.assert_idle()


@pytest.mark.parametrize("moment", ["before", "headed", "held", "streaming"])
async def test_a_client_gone_at_any_moment_cancels_at_the_node(moment):
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    if moment != "before":
        node.begin()
        say(node, head(200, JSON) if moment == "held" else head(200, SSE))
        if moment != "headed":
            say(node, part(b"x"))
    exchange.leave()
    assert node.code == 8
    rig.assert_idle()
    say(node, part(b"late"))
    node.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == 499


async def test_a_client_gone_while_it_waits_for_room_leaves_nothing():
    rig = Rig(headroom=0)
    exchange = ask(rig)
    assert rig.dispatcher.queued == 1
    exchange.leave()
    rig.assert_idle()
    rig.report("n0", 100_000)
    assert not any(upstream.streams for upstream in rig.upstreams.values())


async def test_a_request_waits_for_room_and_then_goes():
    rig = Rig(headroom=0)
    exchange = ask(rig)
    rig.report("n1", 100_000)
    node = rig.used.last
    node.begin()
    say(node, head(200, JSON), part(b"{}"))
    node.finish()
    assert exchange.answer()[2] == b"{}"
    rig.assert_idle()


async def test_a_request_that_waits_too_long_is_429_with_retry_after():
    rig = Rig(headroom=0, timeout=0.05)
    exchange = ask(rig)
    deadline = asyncio.get_running_loop().time() + 5
    while exchange.state == "fresh":
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)
    status, headers, _ = exchange.answer()
    assert status == 429
    assert int(headers[b"retry-after"]) >= 1
    assert error_in(exchange)["type"] == "rate_limit_error"
    rig.assert_idle()


async def test_a_node_lost_in_a_stream_ends_it_with_an_error_event_and_no_done():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, SSE), part(b'data: {"a":1}\n\n'))
    node.lose()
    body = exchange.answer()[2]
    first, last = body.split(b"\n\n")[:2]
    assert first == b'data: {"a":1}'
    assert json.loads(last[6:])["error"]["code"] == "node_lost"
    assert b"[DONE]" not in body
    rig.assert_idle()
    assert rig.log.entries[-1]["reason"] == "NODE_LOST"


async def test_a_node_lost_in_another_body_cuts_it_off():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, ("content-type", "audio/wav")), part(b"RIFF"))
    node.lose()
    assert exchange.state == "aborted"
    rig.assert_idle()


@pytest.mark.parametrize("held", [False, True])
async def test_a_node_lost_before_the_client_saw_anything_sends_the_request_elsewhere_once(held):
    rig = Rig()
    exchange = ask(rig)
    first = rig.used
    if held:
        first.last.begin()
        say(first.last, head(200, JSON), part(b"abc"))
    first.last.lose()
    second = rig.other(first)
    assert b"".join(second.last.data).endswith(BODY)
    second.last.lose()
    status, _, _ = exchange.answer()
    assert status == 503
    assert error_in(exchange)["code"] == "node_lost"
    rig.assert_idle()
    assert rig.log.entries[-1]["attempts"] == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_node_that_did_not_admit_the_request_passes_it_to_another(status):
    rig = Rig()
    exchange = ask(rig)
    first = rig.used
    first.last.begin()
    say(first.last, head(status, JSON, ("retry-after", "1")) + part(b"{}"))
    assert first.last.code == 8
    second = rig.other(first).last
    say(first.last, part(b"late"))
    first.last.settle()
    second.begin()
    say(second, head(200, JSON), part(b"[]"))
    second.finish()
    assert exchange.answer()[::2] == (200, b"[]")
    rig.assert_idle()


async def test_when_no_other_node_is_there_a_503_is_the_client_s():
    rig = Rig(1)
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(503, JSON), part(b"down"))
    node.finish()
    assert exchange.answer()[::2] == (503, b"down")
    rig.assert_idle()


async def test_a_429_of_the_only_node_waits_for_its_rest_and_goes_again():
    rig = Rig(1, timeout=10)
    exchange = ask(rig)
    first = rig.used.last
    first.begin()
    say(first, head(429, JSON, ("retry-after", "0")), part(b"{}"))
    first.settle()
    deadline = asyncio.get_running_loop().time() + 8
    while len(rig.node(0).streams) < 2:
        assert asyncio.get_running_loop().time() < deadline
        assert exchange.state == "fresh"
        rig.report("n0", 100_000)
        await asyncio.sleep(0.02)
    second = rig.used.last
    second.begin()
    say(second, head(200, JSON), part(b"ok"))
    second.finish()
    assert exchange.answer()[2] == b"ok"
    rig.assert_idle()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LayaError(Code.INVALID_ARGUMENT, "CONTEXT_TOO_LONG", "Too long."), 400),
        (LayaError(Code.UNAUTHENTICATED, "CLUSTER_TOKEN_INVALID", "No."), 401),
        (LayaError(Code.INTERNAL, "ENGINE_FAILED", "Broken."), 500),
    ],
)
async def test_a_node_s_own_grpc_error_becomes_an_openai_error(error, status):
    rig = Rig()
    exchange = ask(rig)
    rig.used.last.refuse(error.grpc_trailers())
    assert exchange.answer()[0] == status
    assert error_in(exchange)["message"] == error.message
    rig.assert_idle()


@pytest.mark.parametrize("refusal", [exhausted("Full.", "QUEUE_FULL", 0.2), unavailable("Draining.", "DRAINING")])
async def test_a_node_that_refuses_by_grpc_passes_the_request_to_another(refusal):
    rig = Rig()
    exchange = ask(rig)
    first = rig.used
    first.last.refuse(refusal.grpc_trailers())
    second = rig.other(first).last
    second.begin()
    say(second, head(200, JSON), part(b"ok"))
    second.finish()
    assert exchange.answer()[2] == b"ok"
    rig.assert_idle()


async def test_an_error_status_after_a_held_body_replaces_it():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, JSON), part(b"abc"))
    node.finish(b"13")
    assert exchange.answer()[0] == 500
    rig.assert_idle()


@pytest.mark.parametrize("raw", [b"\1\0\0\0\1x", head(200, JSON)[:-3], frame(b"\xff")])
async def test_a_node_that_talks_nonsense_is_a_500(raw):
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, raw)
    if exchange.state == "fresh":
        node.finish()
    node.settle()
    assert exchange.answer()[0] == 500
    rig.assert_idle()


async def test_a_large_json_answer_streams_on():
    rig = Rig()
    exchange = ask(rig)
    node = rig.used.last
    node.begin()
    say(node, head(200, JSON))
    for _ in range(20):
        say(node, part(b"x" * 16_000))
    assert exchange.state == "started"
    node.finish()
    assert len(exchange.answer()[2]) == 320_000
    rig.assert_idle()


async def test_a_large_body_is_sent_without_being_copied_into_one_piece():
    rig = Rig()
    body = b'{"model":"smollm2","prompt":"' + b"x" * 50_000 + b'"}'
    exchange = ask(rig, body)
    stream = rig.used.last
    assert stream.data[1] is body
    assert pb.HttpRequest.FromString(b"".join(stream.data)[5:]).body == body
    exchange.leave()
    stream.settle()
    rig.assert_idle()


async def test_a_defect_when_a_wait_ends_is_one_500(monkeypatch):
    rig = Rig(headroom=0)
    exchange = ask(rig)
    monkeypatch.setattr(rig.node(0), "open", lambda *_: 1 / 0)
    rig.report("n0", 100_000)
    assert exchange.answer()[0] == 500
    rig.assert_idle()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_must_not_migrate_is_tried_again_only_if_no_node_saw_it(streams):
    rig = Rig()
    body = BODY[:-1] + b',"stream":true}' if streams else BODY
    exchange = FakeExchange(b"POST", CHAT, [(names.NO_MIGRATE, b"1")], body)
    rig.gateway.handle(exchange)
    rig.used.last.lose()
    assert exchange.answer()[0] == 503
    assert error_in(exchange)["code"] == "node_lost"
    rig.assert_idle()
    for upstream in rig.upstreams.values():
        upstream.streams.clear()
    exchange = FakeExchange(b"POST", CHAT, [(names.NO_MIGRATE, b"1")], body)
    rig.gateway.handle(exchange)
    first = rig.used
    first.last.lose(7, unprocessed=True)
    node = rig.other(first).last
    node.begin()
    say(node, head(200, JSON), part(b"{}"))
    node.finish()
    assert exchange.answer()[2] == b"{}"
    rig.assert_idle()


async def test_a_node_that_is_first_to_find_the_time_over_does_not_hide_whose_time_it_was():
    rig = Rig()
    exchange = FakeExchange(b"POST", CHAT, [(b"laya-timeout-ms", b"2000")], BODY)
    rig.gateway.handle(exchange)
    error = LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", "The deadline passed.", metadata={"phase": "total"})
    rig.used.last.refuse(error.grpc_trailers())
    assert exchange.answer()[0] == 504
    assert error_in(exchange)["message"] == "The call's deadline of 2 s passed before the answer was complete."
    assert rig.count("deadline_total") == 1
    rig.assert_idle()


async def test_the_only_node_is_asked_once_more_if_it_never_saw_the_request():
    rig = Rig(1)
    exchange = ask(rig)
    rig.node(0).last.lose(7, unprocessed=True)
    assert len(rig.node(0).streams) == 2
    node = rig.node(0).last
    node.begin()
    say(node, head(200, JSON), part(b"{}"))
    node.finish()
    assert exchange.answer()[2] == b"{}"
    rig.assert_idle()
