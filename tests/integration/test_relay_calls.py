"""gRPC calls of unusual shapes through a router process: large messages, early answers and late ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from shared.errors import invalid
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.attack import COMPLETE, GENERATE
from tests.support.grpc_errors import END, reason
from tests.support.ports import until
from tests.support.rogue_node import HEAD, OK, RogueCall, RogueNode
from tests.support.router import Router

pytestmark = pytest.mark.integration

SIZE = 6 << 20  # more than the 4 MiB that gRPC libraries take unless told otherwise
BIG = b"".join(i.to_bytes(4, "big") for i in range(SIZE // 4))
MODEL = ("laya-model", "m")
Metadata = tuple[tuple[str, str], ...]
SDK: Metadata = (MODEL, ("laya-prompt-tokens", "3"), ("laya-max-tokens", "3"))
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
async def router(rogue: RogueNode) -> AsyncIterator[Router]:
    made = await Router("--node", rogue.address).start()
    try:
        yield await made.ready()
    finally:
        await made.stop()
        assert "Traceback" not in made.proc.output()


@pytest.fixture
async def channel(router: Router) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(router.public, options=ANY_SIZE) as made:
        yield made


async def complete(channel: grpc.aio.Channel, message: bytes, metadata: Metadata = SDK) -> bytes:
    """The message that answers this one."""
    method: Any = channel.unary_unary(COMPLETE, request_serializer=None, response_deserializer=None)
    return bytes(await method(message, timeout=20, metadata=metadata))


def begin(channel: grpc.aio.Channel, path: str, metadata: Metadata = SDK) -> Any:
    """A call that goes on for as long as its client likes."""
    method: Any = channel.stream_stream(path, request_serializer=None, response_deserializer=None)
    return method(timeout=20, metadata=metadata)


async def at_rest(router: Router, rogue: RogueNode) -> None:
    await router.metric_is("laya_router_requests_in_flight", 0)
    await router.metric_is("laya_router_reservations", 0)
    await until(lambda: rogue.open == 1, "the watch alone is open at the node")


def echo(call: RogueCall) -> None:
    """Answer with the request as it came."""
    call.stream.respond(HEAD)
    call.stream.send(call.request)
    call.stream.trailers(OK)


def say_big(call: RogueCall) -> None:
    call.stream.respond(HEAD)
    call.stream.send(frame(BIG))
    call.stream.trailers(OK)


def say_size(call: RogueCall) -> None:
    """Answer whether the request was the big one."""
    call.stream.respond(HEAD)
    call.stream.send(frame(b"whole" if call.request == frame(BIG) else b"%d bytes" % len(call.request)))
    call.stream.trailers(OK)


async def test_an_answer_larger_than_4_mib_arrives_whole(
    router: Router, rogue: RogueNode, channel: grpc.aio.Channel
) -> None:
    rogue.behave = say_big
    assert await complete(channel, b"hi") == BIG
    await at_rest(router, rogue)


@pytest.mark.parametrize("metadata", [SDK, (MODEL,)], ids=["routed at once", "routed by the model's name"])
async def test_a_request_larger_than_4_mib_arrives_whole(
    router: Router, rogue: RogueNode, channel: grpc.aio.Channel, metadata: Metadata
) -> None:
    rogue.behave = say_size
    assert await complete(channel, BIG, metadata) == b"whole"
    await at_rest(router, rogue)


@pytest.mark.parametrize("after", [1, 1 << 20], ids=["at the first bytes", "after a MiB"])
@pytest.mark.parametrize("begun", [False, True], ids=["trailers alone", "after headers"])
async def test_an_error_that_comes_while_the_client_uploads_ends_the_call_with_it(
    router: Router, rogue: RogueNode, channel: grpc.aio.Channel, after: int, begun: bool
) -> None:
    status = invalid("The node has read enough.").grpc_trailers()
    answered: list[RogueCall] = []

    def refuse(call: RogueCall, data: bytes) -> None:
        if len(call.request) >= after and not answered:
            answered.append(call)
            rogue.reads = False  # so that the client never gets to the end
            if begun:
                call.stream.respond(HEAD)
                call.stream.trailers(status)
            else:
                call.stream.respond([*HEAD, *status], end=True)

    rogue.hears = refuse
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await complete(channel, bytes(64 << 20))
    assert answered and caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    assert (caught.value.details(), reason(caught.value)) == ("The node has read enough.", "INVALID_REQUEST")
    assert rogue.seen == 0, "the upload had ended"
    await at_rest(router, rogue)
    rogue.reads, rogue.behave = True, echo
    assert await complete(channel, b"hi") == b"hi"


@pytest.mark.parametrize(
    ("path", "metadata"),
    [(COMPLETE, SDK), (GENERATE, SDK), (GENERATE, ())],
    ids=["Complete", "Generate", "routed by its first message"],
)
async def test_an_answer_that_waits_for_the_end_of_the_request_comes_at_its_half_close_and_no_sooner(
    router: Router, rogue: RogueNode, channel: grpc.aio.Channel, path: str, metadata: Metadata
) -> None:
    rogue.behave = echo  # once the request has ended
    heard = 0

    def count(call: RogueCall, data: bytes) -> None:
        nonlocal heard
        heard += len(data)

    def has(size: int) -> bool:
        return heard == size

    rogue.hears = count
    messages = [pb.GenerateRequest(model="m", text="hi").SerializeToString(), BIG[:100_000], b"three"]
    call = begin(channel, path, metadata)
    size = 0
    for message in messages:
        await call.write(message)
        size += len(frame(message))
        await until(partial(has, size), "the node has the message")
        assert rogue.seen == 0, "the node took the request for ended"
    await call.done_writing()
    assert [await call.read() for _ in range(4)] == [*messages, END]
    assert await call.code() is grpc.StatusCode.OK
    await at_rest(router, rogue)
