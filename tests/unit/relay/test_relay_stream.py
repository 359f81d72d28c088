"""One gRPC call, in every order that its client, its node and the clock can put things."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from router_node.middleware.keys import KeyRecord
from shared import headers as names
from shared.errors import Code
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_calls import GENERATE, SDK, error_of, headers, request, settled
from tests.support.relay_rig import MODEL, Rig


async def test_metadata_routes_before_the_message_is_here_and_data_passes_untouched():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, *SDK), end=False)
    node = rig.used.last
    assert client.sink is not None
    client.sink.on_data(b"any bytes", True)
    assert node.data == [b"any bytes"]
    assert node.ended
    node.answer(b"token one", b"token two")
    assert client.data == [frame(b"token one"), frame(b"token two")]
    assert client.status()[b"grpc-status"] == b"0"
    client.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == 0
    assert rig.log.entries[-1]["bytes_in"] == 9
    assert rig.count("scan") == 0


async def test_the_node_gets_the_router_s_own_metadata_and_no_credentials():
    key = KeyRecord(id="a", hash=__import__("hashlib").sha256(b"laya-" + b"x" * 43).hexdigest(), tenant="acme")
    rig = Rig(keys=[key], cluster_token=b"cluster-secret", max_n=4, max_max_tokens=500)
    sent = headers(
        GENERATE,
        (b"authorization", b"Bearer laya-" + b"x" * 43),
        (b"cookie", b"c=1"),
        (names.TENANT, b"forged"),
        (names.PRIORITY, b"-50"),
        (names.REQUEST_ID, b"mine-1"),
        (b"traceparent", b"00-0123-45-01"),
        *SDK,
    )
    client = FakeServerStream().call(rig.front.accept, sent, request())
    got = rig.used.last.headers
    assert got[names.TENANT] == b"acme"
    assert got[names.CLUSTER_TOKEN] == b"cluster-secret"
    assert got[names.PRIORITY] == b"0"  # the key's best
    assert got[names.REQUEST_ID] == b"mine-1"
    assert got[names.CLAMPS] == b'{"max_n":4,"max_max_tokens":500}'
    assert got[names.DISPATCH].startswith(b"w0-")
    assert len(got[names.SALT]) == 32
    assert got[b"traceparent"] == b"00-0123-45-01"
    assert b"authorization" not in got
    assert b"cookie" not in got
    rig.used.last.answer(b"x")
    answered = dict(client.head)
    assert answered[names.REQUEST_ID] == b"mine-1"
    assert answered[names.NODE] in (b"n0", b"n1")
    assert int(answered[names.ROUTER_TIME]) >= 0
    client.settle()
    rig.assert_idle()


async def test_without_metadata_the_first_message_is_read_whole_however_it_is_cut():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    raw = frame(request(sampling=pb.SamplingParams(max_tokens=9, n=2), priority=4))
    for i in range(len(raw)):
        assert not any(upstream.streams for upstream in rig.upstreams.values())
        assert client.sink is not None
        client.sink.on_data(raw[i : i + 1], i == len(raw) - 1)
    node = rig.used.last
    assert b"".join(node.data) == raw
    assert node.ended
    assert node.headers[names.PRIORITY] == b"4"
    node.answer(b"x")
    client.settle()
    rig.assert_idle()
    assert rig.count("scan") == 1


async def test_a_compressed_first_message_is_inflated_within_bounds_and_passed_as_it_came():
    rig = Rig(max_scan_bytes=4096)
    packed = gzip.compress(request())
    raw = b"\1" + len(packed).to_bytes(4, "big") + packed
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(GENERATE, (b"grpc-encoding", b"gzip")), False)
    assert client.sink is not None
    client.sink.on_data(raw, True)
    assert rig.used.last.data == [raw]
    assert rig.used.last.headers[b"grpc-encoding"] == b"gzip"
    rig.used.last.answer(b"x")
    client.settle()

    bomb = gzip.compress(request(text="x" * 10_000_000))
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(GENERATE, (b"grpc-encoding", b"gzip")), False)
    assert client.sink is not None
    client.sink.on_data(b"\1" + len(bomb).to_bytes(4, "big") + bomb, True)
    assert error_of(client).code == Code.INVALID_ARGUMENT
    client.settle()
    rig.assert_idle()


async def test_every_typed_method_and_the_tunnel_are_read():
    rig = Rig()
    messages = {
        b"/laya.v1.Inference/Complete": pb.CompleteRequest(request=pb.GenerateRequest(model=MODEL, text="x")),
        b"/laya.v1.Inference/Chat": pb.ChatRequest(model="small", messages=[pb.ChatMessage(role="user", content="x")]),
        b"/laya.v1.Inference/Embed": pb.EmbedRequest(model=MODEL, inputs=["a"]),
        b"/laya.v1.OpenAI/Call": openai_pb2.HttpRequest(
            method="POST", target="/v1/completions", body=b'{"model":"smollm2","prompt":"x"}'
        ),
    }
    for path, message in messages.items():
        client = FakeServerStream().call(rig.front.accept, headers(path), message.SerializeToString())
        opened = [upstream for upstream in rig.upstreams.values() if upstream.streams]
        assert len(opened) == 1, path
        assert opened[0].last.headers[b":path"] == path
        opened[0].last.answer(b"x")
        client.settle()
        opened[0].streams.clear()
    rig.assert_idle()


async def test_a_request_that_names_no_model_takes_the_only_one():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request(model=""))
    rig.used.last.answer(b"x")
    client.settle()
    assert rig.log.entries[-1]["model"] == MODEL


@pytest.mark.parametrize(
    ("extra", "message", "code", "says"),
    [
        ([], request(model="gpt-9"), Code.NOT_FOUND, "smollm2"),
        ([], request(sampling=pb.SamplingParams(max_tokens=0)), Code.INVALID_ARGUMENT, "sampling.max_tokens"),
        ([], request(sampling=pb.SamplingParams(max_tokens=10**9)), Code.INVALID_ARGUMENT, "sampling.max_tokens"),
        ([], request(sampling=pb.SamplingParams(n=0)), Code.INVALID_ARGUMENT, "sampling.n"),
        ([], request(sampling=pb.SamplingParams(n=99)), Code.INVALID_ARGUMENT, "sampling.n"),
        ([], b"\xff\xff\xff", Code.INVALID_ARGUMENT, "not the protobuf message"),
        ([(names.PROMPT_TOKENS, b"lots")], request(), Code.INVALID_ARGUMENT, "laya-prompt-tokens"),
        ([(names.MAX_TOKENS, b"2000000000"), *SDK[:2]], request(), Code.INVALID_ARGUMENT, "laya-max-tokens"),
        ([], b"x" * 300_000, Code.INVALID_ARGUMENT, "laya-model"),
    ],
)
async def test_a_bad_request_gets_one_clear_error_and_leaves_nothing(extra, message, code, says):
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, *extra), message)
    error = error_of(client)
    assert error.code == code
    assert says in error.message
    client.settle()
    rig.assert_idle()
    assert not any(upstream.streams for upstream in rig.upstreams.values())
    assert rig.log.entries[-1]["code"] == code


async def test_a_compression_that_cannot_be_read_is_told_unless_the_message_is_plain():
    rig = Rig()
    for flag, status in ((b"\1", b"12"), (b"\0", b"0")):
        client = FakeServerStream()
        client.sink = rig.front.accept(client, headers(GENERATE, (b"grpc-encoding", b"br")), False)
        assert client.sink is not None
        client.sink.on_data(flag + frame(request())[1:], True)
        if flag == b"\0":
            rig.used.last.answer(b"x")
        assert client.status()[b"grpc-status"] == status
        client.settle()
    rig.assert_idle()


async def test_a_request_without_a_message_or_with_half_of_one_is_refused():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers())
    assert error_of(client).code == Code.INVALID_ARGUMENT
    client.settle()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    assert client.sink is not None
    client.sink.on_data(frame(request())[:-3], True)
    assert "middle of its first message" in error_of(client).message
    client.settle()
    rig.assert_idle()


async def test_a_large_first_message_passes_unread_when_metadata_names_the_model():
    rig = Rig(max_scan_bytes=1024)
    message = request(text="x" * 5000)
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, (names.MODEL, MODEL.encode())), message)
    assert rig.used.last.data == [frame(message)]
    rig.used.last.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_bytes_read_ahead_are_acknowledged_once():
    rig = Rig()
    raw = frame(request(text="x" * 100_000))
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    assert client.sink is not None
    for at in range(0, len(raw), 16_384):
        client.sink.on_data(raw[at : at + 16_384], at + 16_384 >= len(raw))
    assert client.taken >= len(raw) - 16_384  # else a client with a 64 KiB window would be stuck
    node = rig.used.last
    node.sink.on_request_sent(len(raw))
    assert client.taken == len(raw)
    node.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_acknowledgements_follow_what_has_left_on_the_other_side():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, *SDK), request())
    node = rig.used.last
    assert client.taken == 0
    node.sink.on_request_sent(len(node.data[0]))
    assert client.taken == len(node.data[0])
    node.begin()
    node.sink.on_response_data(b"x" * 1000, False)
    assert node.taken == 0
    client.drain()
    assert node.taken == 1000
    client.cancel()
    node.settle()
    rig.assert_idle()


async def test_a_client_that_goes_away_resets_the_node_at_once():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    client.cancel()
    assert rig.used.last.code == 8
    rig.used.last.settle()
    rig.assert_idle()
    assert rig.log.entries[-1]["code"] == Code.CANCELLED
    assert rig.count("client_gone") == 1


async def test_a_client_that_goes_away_while_it_waits_or_is_read_leaves_nothing():
    rig = Rig(headroom=0)
    waiting = FakeServerStream().call(rig.front.accept, headers(), request())
    assert rig.dispatcher.queued == 1
    reading = FakeServerStream()
    reading.sink = rig.front.accept(reading, headers(), False)
    waiting.cancel()
    reading.cancel()
    rig.assert_idle()
    rig.report("n0", 100_000)
    assert not any(upstream.streams for upstream in rig.upstreams.values())


async def test_a_waiting_request_goes_when_a_report_brings_room_with_the_time_it_has_left():
    rig = Rig(headroom=0)
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, (b"grpc-timeout", b"30S")), request())
    assert rig.dispatcher.queued == 1
    await asyncio.sleep(0.02)
    rig.report("n1", 100_000)
    node = rig.used.last
    assert node.data == [frame(request())]
    assert node.headers[b"grpc-timeout"] != b"30S"
    node.answer(b"x")
    client.settle()
    rig.assert_idle()


async def test_a_request_that_waits_too_long_is_told_when_to_come_again():
    rig = Rig(headroom=0, timeout=0.05)
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    await settled(lambda: client.ended)
    error = error_of(client)
    assert error.code == Code.RESOURCE_EXHAUSTED
    assert error.retry_after is not None
    client.settle()
    rig.assert_idle()


async def test_the_deadline_is_the_router_s_too():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, (b"grpc-timeout", b"30m")), request())
    node = rig.used.last
    assert node.headers[b"grpc-timeout"] == b"30m"
    await settled(lambda: client.ended)
    assert error_of(client).code == Code.DEADLINE_EXCEEDED
    assert node.code == 8
    node.settle()
    client.settle()
    rig.assert_idle()


async def test_a_client_that_never_sends_its_message_is_told_so():
    rig = Rig(body_timeout=0.03)
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(), False)
    await settled(lambda: client.ended)
    assert "did not arrive" in error_of(client).message
    client.settle()
    rig.assert_idle()
