"""Clients that leave: at every moment of a request, in every way, and nothing of them stays."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.attack import (
    CHAT,
    COMPLETE,
    DATA,
    END_HEADERS,
    GENERATE,
    HEADERS,
    RST,
    Peer,
    aside,
    assert_at_rest,
    assert_logs_are_clean,
    bystander,
    call,
    frame,
    message,
)
from tests.support.ports import until
from tests.support.processes import Cluster, Spec, cluster

pytestmark = pytest.mark.integration

MANY = 12
LONG = {"max_tokens": 3000, "ignore_eos": True}
SDK = ((b"laya-model", b"sim"), (b"laya-prompt-tokens", b"3"), (b"laya-max-tokens", b"3000"))


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=2)) as c:
        yield c
        assert_logs_are_clean(c)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Cluster]:
    """One node with room for two requests at most, so that others wait."""
    with cluster(
        Spec(nodes=1, node={"LAYA_INFERENCE__SIM__KV_TOKENS": "8192", "LAYA_INFERENCE__MAX_SEQ_LEN": "4096"})
    ) as c:
        yield c
        assert_logs_are_clean(c)


def generate(**sampling: object) -> bytes:
    request = pb.GenerateRequest(model="sim", text="hi")
    for name, value in sampling.items():
        setattr(request.sampling, name, value)
    return request.SerializeToString()


def complete(**sampling: object) -> bytes:
    request = pb.CompleteRequest()
    request.request.ParseFromString(generate(**sampling))
    return request.SerializeToString()


def over_grpc(path: str, raw: bytes) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, call(path)) + frame(DATA, 1, 1, message(raw))


def body(**fields: object) -> bytes:
    return json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def over_http1(raw: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(raw), raw)


def over_http2(raw: bytes) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, call(CHAT, grpc_call=False)) + frame(DATA, 1, 1, raw)


def close(peer: Peer) -> None:
    peer.close()


def tear(peer: Peer) -> None:
    """A TCP reset."""
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def half_close(peer: Peer) -> None:
    peer.sock.shutdown(socket.SHUT_WR)


def reset(peer: Peer) -> None:
    """The stream alone."""
    peer.send(frame(RST, 0, 1, b"\0\0\0\x08"))


WAYS: dict[str, Callable[[Peer], None]] = {"close": close, "tear": tear, "half-close": half_close}
REQUESTS: dict[str, tuple[bool, bytes]] = {
    "a streamed call": (True, over_grpc(GENERATE, generate(**LONG))),
    "a unary call": (True, over_grpc(COMPLETE, complete(**LONG))),
    "a streamed chat": (False, over_http1(body(stream=True, **LONG))),
    "a whole chat": (False, over_http1(body(**LONG))),
    "a streamed chat over HTTP/2": (True, over_http2(body(stream=True, **LONG))),
    "a whole chat over HTTP/2": (True, over_http2(body(**LONG))),
}


@pytest.mark.parametrize("request_kind", REQUESTS)
async def test_who_leaves_while_it_runs_ends_it_at_the_node(running: Cluster, request_kind: str) -> None:
    http2, data = REQUESTS[request_kind]
    ways = {**WAYS, "reset": reset} if http2 else WAYS
    async with bystander(running.address):
        peers: list[Peer] = []
        for way in ways.values():
            count = MANY // len(ways)
            here = [Peer(running.address, http2) for _ in range(count)]
            for peer in here:
                assert peer.send(data)
            await until(
                lambda count=count: running.metric("laya_router_requests_in_flight") >= count, "they are all in"
            )
            if "streamed" in request_kind:
                wanted = 3 if http2 else 200
                for peer in here:
                    await aside(lambda peer=peer, wanted=wanted: peer.read(5.0, lambda got: len(got) > wanted * 40))
            for peer in here:
                way(peer)
            peers += here
    await assert_at_rest(running)
    for peer in peers:
        peer.close()


UPLOADS: dict[str, tuple[bool, bytes]] = {
    "a header block": (True, frame(HEADERS, 0, 1, call(GENERATE))),
    "a call without its message": (True, frame(HEADERS, END_HEADERS, 1, call(GENERATE))),
    "a call that is routed, without its message": (True, frame(HEADERS, END_HEADERS, 1, call(GENERATE, *SDK))),
    "half a message": (
        True,
        frame(HEADERS, END_HEADERS, 1, call(GENERATE)) + frame(DATA, 0, 1, message(generate(**LONG))[:9]),
    ),
    "half a routed message": (
        True,
        frame(HEADERS, END_HEADERS, 1, call(GENERATE, *SDK)) + frame(DATA, 0, 1, message(generate(**LONG))[:9]),
    ),
    "half a body": (False, over_http1(body(**LONG))[:-20]),
    "half a body over HTTP/2": (
        True,
        frame(HEADERS, END_HEADERS, 1, call(CHAT, grpc_call=False)) + frame(DATA, 0, 1, body(**LONG)[:30]),
    ),
    "a chunk": (False, b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{" % CHAT.encode()),
    "a list that is not asked for": (True, frame(HEADERS, END_HEADERS, 1, call("/laya.v1.Inference/ListModels"))),
    "a health check": (True, frame(HEADERS, END_HEADERS, 1, call("/grpc.health.v1.Health/Check"))),
}


async def test_who_leaves_during_the_upload_leaves_nothing(running: Cluster) -> None:
    async with bystander(running.address):
        for name, (http2, data) in UPLOADS.items():
            for way_name, way in {**WAYS, "reset": reset}.items():
                if way is reset and (not http2 or name == "a header block"):
                    continue
                peer = Peer(running.address, http2)
                assert peer.send(data), (name, way_name)
                way(peer)
                peer.close()
    await assert_at_rest(running)


@pytest.mark.parametrize("request_kind", ["a streamed call", "a whole chat", "a streamed chat over HTTP/2"])
async def test_who_leaves_the_line_leaves_it_to_others(narrow: Cluster, request_kind: str) -> None:
    http2, data = REQUESTS[request_kind]
    peers = [Peer(narrow.address, http2) for _ in range(MANY)]
    for peer in peers:
        assert peer.send(data)
    await until(lambda: narrow.metric("laya_router_queue_depth") >= MANY // 2, "most wait")
    for peer in peers[MANY // 4 :]:
        tear(peer)
    for peer in peers[: MANY // 4]:
        peer.close()
    await assert_at_rest(narrow)
    async with bystander(narrow.address):
        pass


async def test_who_leaves_and_comes_back_a_thousand_times_costs_nothing_that_stays(running: Cluster) -> None:
    data = over_grpc(GENERATE, generate(**LONG))
    chat = over_http1(body(stream=True, **LONG))

    def storm() -> None:
        for i in range(300):
            with Peer(running.address, bool(i % 2)) as peer:
                peer.send(data if i % 2 else chat)

    async with bystander(running.address):
        await aside(storm)
    await assert_at_rest(running)
