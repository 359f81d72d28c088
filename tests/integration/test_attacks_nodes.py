"""A node that misbehaves: its own calls fail clearly, its connection is replaced, and clients of other nodes go on."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest

from shared import errors
from shared.errors import LayaError
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import node_pb2, openai_pb2
from tests.support import attack
from tests.support.attack import CHAT, Peer, aside
from tests.support.grpc_errors import END, reason
from tests.support.ports import until
from tests.support.rogue_node import HEAD, OK, RogueCall, RogueNode
from tests.support.router import Router

pytestmark = pytest.mark.integration

TOKEN = "cluster-secret-of-this-test"


@pytest.fixture
async def router(rogue: RogueNode, honest: RogueNode) -> AsyncIterator[Router]:
    honest.behave = well
    env = {"LAYA_SERVER__CLUSTER_TOKEN": TOKEN}
    made = await Router("--node", rogue.address, "--node", honest.address, env=env).start()
    try:
        yield await made.ready(2)
    finally:
        await made.stop()
        output = made.proc.output()
        assert "Traceback" not in output, output
        assert TOKEN not in output


def well(call: RogueCall) -> None:
    call.stream.respond(HEAD)
    call.stream.send(frame(pb.CompleteResponse(model="good").SerializeToString()))
    call.stream.trailers(OK)


async def ask(router: Router, model: str, timeout: float = 10.0) -> None:
    request = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi"))
    await router.inference.Complete(request, timeout=timeout)


async def fails(router: Router, timeout: float = 10.0) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(router, "m", timeout)
    return caught.value


async def at_rest(router: Router, *nodes: RogueNode) -> None:
    await router.metric_is("laya_router_requests_in_flight", 0)
    await router.metric_is("laya_router_reservations", 0)
    await router.metric_is("laya_router_nodes", 2, state="ready")
    await until(lambda: all(node.open == 1 for node in nodes), "the watches alone are open")


def trailers(*fields: tuple[bytes, bytes]) -> Callable[[RogueCall], None]:
    def behave(call: RogueCall) -> None:
        call.stream.respond(HEAD)
        call.stream.trailers(list(fields))

    return behave


def raw(data: bytes) -> Callable[[RogueCall], None]:
    return lambda call: call.write_raw(data)


def endless_headers(call: RogueCall) -> None:
    """A header block that never ends: beyond what the engine takes of them."""
    opening = attack.frame(attack.HEADERS, 0, call.stream.id, attack.field(b":status", b"200"))
    more = attack.frame(attack.CONTINUATION, 0, call.stream.id, attack.field(b"x", b"y" * 1000))
    call.write_raw(opening + more * 60)


def huge_trailers(call: RogueCall) -> None:
    call.stream.respond(HEAD)
    call.stream.trailers([(b"grpc-status", b"0"), *((b"x-%d" % i, b"y" * 1000) for i in range(300))])


def no_message(call: RogueCall) -> None:
    call.stream.respond(HEAD)
    call.stream.send(b"\0\0\0\0\x09abc", True)


Code = grpc.StatusCode
BROKEN: dict[str, tuple[Callable[[RogueCall], None], set[grpc.StatusCode]]] = {
    "garbage frames": (raw(b"\xff\x00\x17" * 500), {Code.UNAVAILABLE}),
    "a frame that is too long": (raw(b"\xff\xff\xff\0\0\0\0\0\1"), {Code.UNAVAILABLE}),
    "endless headers": (endless_headers, {Code.UNAVAILABLE}),
    "huge trailers": (huge_trailers, {Code.UNAVAILABLE, Code.INTERNAL, Code.RESOURCE_EXHAUSTED}),
    "an HTTP answer": (lambda call: call.stream.respond([(b":status", b"500")], True), {Code.UNKNOWN, Code.INTERNAL}),
    "no status": (no_message, {Code.INTERNAL}),
    "a status that is no number": (trailers((b"grpc-status", b"many")), {Code.INTERNAL}),
    "a status of many digits": (trailers((b"grpc-status", b"9" * 5000)), {Code.INTERNAL}),
    "a status that does not exist": (trailers((b"grpc-status", b"99")), {Code.INTERNAL}),
    "no status in its trailers": (trailers((b"x-other", b"0")), {Code.INTERNAL}),
    "details that are none": (
        trailers((b"grpc-status", b"8"), (b"grpc-status-details-bin", b"!!!")),
        {Code.RESOURCE_EXHAUSTED, Code.UNKNOWN, Code.INTERNAL},
    ),
    "a reset": (lambda call: call.stream.reset(2), {Code.INTERNAL, Code.UNAVAILABLE}),
    "a closed connection": (lambda call: call.stream.conn.close(), {Code.UNAVAILABLE}),
}


async def test_a_broken_answer_is_one_clear_error_and_harms_no_other_node(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    for name, (behave, codes) in BROKEN.items():
        rogue.behave = behave
        error = await fails(router)
        assert error.code() in codes, (name, error.code(), error.details())
        if name != "details that are none":
            assert reason(error) in ("NODE_LOST", "NODE_PROTOCOL"), name
        await ask(router, "good")
        rogue.behave = well
        await router.metric_is("laya_router_nodes", 2, state="ready")
        await ask(router, "m")
    await at_rest(router, rogue, honest)


async def test_a_node_that_never_answers_holds_a_call_for_its_deadline_alone(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    error = await fails(router, 0.5)
    assert error.code() is Code.DEADLINE_EXCEEDED
    await ask(router, "good")
    await at_rest(router, rogue, honest)


async def test_a_stream_without_end_ends_with_its_client(router: Router, rogue: RogueNode, honest: RogueNode) -> None:
    rogue.behave = lambda call: call.pour_out(frame(pb.GenerateResponse(text="x" * 1000).SerializeToString()), 1 << 60)
    held = attack.rss(router.proc.popen.pid)
    stream = router.inference.Generate(pb.GenerateRequest(model="m", text="hi"), timeout=20)
    for _ in range(200):
        assert await stream.read() is not END
    await ask(router, "good")
    assert attack.rss(router.proc.popen.pid) - held < 16 << 10
    stream.cancel()
    await at_rest(router, rogue, honest)


def tunnel(*parts: bytes, end: bool = True) -> Callable[[RogueCall], None]:
    def behave(call: RogueCall) -> None:
        call.stream.respond(HEAD)
        for part in parts:
            call.stream.send(part)
        if end:
            call.stream.trailers(OK)

    return behave


def head(status: int, *fields: tuple[str, str]) -> bytes:
    headers = [openai_pb2.HttpHeader(name=name, value=value) for name, value in fields]
    return frame(
        openai_pb2.HttpResponse(head=openai_pb2.HttpResponseHead(status=status, headers=headers)).SerializeToString()
    )


EVENTS = head(200, ("content-type", "text/event-stream"))
TUNNELS: dict[str, Callable[[RogueCall], None]] = {
    "no head": tunnel(),
    "a body before its head": tunnel(frame(openai_pb2.HttpResponse(body=b"x").SerializeToString())),
    "no protobuf": tunnel(frame(b"\xff\xff\xff\xff\xff")),
    "a compressed message": tunnel(b"\1\0\0\0\1x"),
    "a length beyond everything": tunnel(b"\0\xff\xff\xff\xffx"),
    "half a message": tunnel(frame(b"x" * 50)[:20]),
    "a status that is none": tunnel(head(7)),
    "an informational status": tunnel(head(101)),
    "a huge status": tunnel(head(1 << 31)),
    "a reset": lambda call: call.stream.reset(2),
}


async def post(router: Router, end: bytes, **fields: object) -> bytes:
    """A chat request's whole answer, which ends with ``end``."""
    body = json.dumps({"model": "m", "messages": [], **fields}).encode()
    with Peer(router.public, False) as peer:
        peer.send(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        return await aside(lambda: peer.read(5.0, lambda got: got.endswith(end)))


async def test_a_broken_tunnel_is_one_openai_error(router: Router, rogue: RogueNode, honest: RogueNode) -> None:
    for name, behave in TUNNELS.items():
        rogue.behave = behave
        got = await post(router, b"}}")
        assert got.startswith(b"HTTP/1.1 5"), (name, got[:300])
        error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
        assert error["type"] == "server_error" and error["code"] in ("node_protocol", "node_lost"), (name, error)
    await at_rest(router, rogue, honest)


async def test_a_node_s_headers_cannot_become_a_client_s_answer(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    rogue.behave = tunnel(
        head(
            200,
            ("content-type", "text/plain"),
            ("x-split", "a\r\nset-cookie: b=1\r\n\r\nHTTP/1.1 200 OK"),
            ("set-cookie", "c=1"),
            ("laya-cluster-token", "leak"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
        ),
        frame(openai_pb2.HttpResponse(body=b"hello").SerializeToString()),
    )
    got = await post(router, b"0\r\n\r\n")
    assert b"set-cookie" not in got and b"laya-cluster-token" not in got
    assert got.count(b"HTTP/1.1") == 1 and got.count(b"transfer-encoding") == 1
    assert b"hello" in got
    await at_rest(router, rogue, honest)


async def test_a_stream_that_turns_into_garbage_ends_with_an_event_that_says_so(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    def behave(call: RogueCall) -> None:
        call.stream.respond(HEAD)
        call.stream.send(EVENTS + frame(openai_pb2.HttpResponse(body=b"data: 1\n\n").SerializeToString()))
        asyncio.get_running_loop().call_later(0.2, call.stream.send, b"\7garbage", True)

    rogue.behave = behave
    got = await post(router, b"0\r\n\r\n", stream=True)
    assert b"data: 1\n\n" in got and b'"node_protocol"' in got and b"[DONE]" not in got
    await at_rest(router, rogue, honest)


def nonsense(report: node_pb2.WatchResponse) -> None:
    report.headroom_tokens = (1 << 64) - 1
    report.queued_prefill_tokens = (1 << 64) - 1
    report.prefill_tokens_per_second = math.nan
    report.decode_tokens_per_second = -math.inf
    report.prefix_hit_rate = math.inf
    report.counted_dispatches.extend(["", "x" * 10_000, "a-b-c", "\0"])


async def test_reports_of_nonsense_leave_the_numbers_as_they_were(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    rogue.odd_report = nonsense
    before = rogue.reports
    await until(lambda: rogue.reports > before + 3, "some odd reports")
    rogue.behave = well
    await ask(router, "m")
    await ask(router, "good")
    text = (await router.get("/metrics"))[2].decode()
    assert "NaN" not in text and "Inf" not in text.replace('le="+Inf"', "")
    rogue.odd_report = lambda report: None
    await at_rest(router, rogue, honest)


async def test_one_request_too_large_for_a_node_leaves_that_node_to_the_others(
    router: Router, rogue: RogueNode, honest: RogueNode
) -> None:
    def refuse(call: RogueCall) -> None:
        error = LayaError(errors.Code.RESOURCE_EXHAUSTED, "BODY_TOO_LARGE", "Too large.")
        call.stream.respond([*HEAD, *error.grpc_trailers()], True)

    rogue.behave = refuse
    for _ in range(5):
        error = await fails(router)
        assert (error.code(), reason(error)) == (Code.RESOURCE_EXHAUSTED, "BODY_TOO_LARGE")
    assert await router.metric("laya_router_events_total", event="node_refused") == 0
    rogue.behave = well
    began = asyncio.get_running_loop().time()
    await ask(router, "m")
    assert asyncio.get_running_loop().time() - began < 0.5
    await at_rest(router, rogue, honest)
