"""One gRPC call, in every order that its client, its node and the clock can put things."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from router_node.middleware.keys import KeyRecord
from shared import headers as names
from shared.errors import Code, LayaError, exhausted, unavailable
from shared.net.grpc_wire import error_from_trailers, frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL, Rig

GENERATE = b"/laya.v1.Inference/Generate"
SDK = [(names.MODEL, MODEL.encode()), (names.PROMPT_TOKENS, b"12"), (names.MAX_TOKENS, b"64")]


def headers(path: bytes = GENERATE, *extra: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]


def request(**fields: object) -> bytes:
    values: dict[str, object] = {"model": MODEL, "text": "Hello"}
    values.update(fields)
    return pb.GenerateRequest(**values).SerializeToString()  # type: ignore[arg-type]


def error_of(stream: FakeServerStream) -> LayaError:
    error = error_from_trailers(list(stream.status().items()))
    assert error is not None
    return error


async def settled(condition, seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


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
