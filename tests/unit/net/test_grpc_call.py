"""One call, with a stream in memory: when it waits, when it leaves, when it stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ngh2 import Role

from shared.net.api import Headers, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.grpc_call import HIGH_WATER, ServerCall
from shared.net.grpc_server import GrpcServer, Method
from shared.net.grpc_wire import frame
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from tests.support.fake_streams import FakeServerStream
from tests.support.h2_rig import ManualLoop, Raw, Wire
from tests.support.web import until

ASK: Headers = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/M"),
    (b":authority", b"a"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


def server(handler: Callable[[bytes, ServerCall], Awaitable[Any]], stream: bool = True, **options: Any) -> GrpcServer:
    return GrpcServer({b"/t.T/M": Method(handler, bytes, stream)}, **options)


async def settled(site: GrpcServer) -> None:
    await until(lambda: site.calls == 0)


async def test_sends_do_not_wait_below_the_high_water_mark():
    steps: list[int] = []

    async def handler(request: bytes, call: ServerCall) -> None:
        for i in range(10):
            await call.send(b"%d" % i)
            steps.append(i)

    site = server(handler)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await asyncio.sleep(0)
    assert steps == list(range(10))  # all of it in one turn of the event loop, with nobody reading
    assert stream.data == [frame(b"%d" % i) for i in range(10)]
    await settled(site)
    assert stream.status()[b"grpc-status"] == b"0"


async def test_a_sender_waits_above_the_mark_until_half_has_left():
    sent = 0

    async def handler(request: bytes, call: ServerCall) -> None:
        nonlocal sent
        for _ in range(12):
            await call.send(bytes(16_379))
            sent += 1

    site = server(handler)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await asyncio.sleep(0)
    assert (sent, stream.queued) == (4, 5 * 16_384)
    assert stream.queued > HIGH_WATER

    assert stream.sink is not None
    stream._unsent = HIGH_WATER // 2 + 1
    stream.sink.on_sent(1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == 4
    stream.drain()
    await until(lambda: sent == 9)
    stream.drain()
    await settled(site)
    assert sent == 12


async def test_two_senders_of_one_call_both_go_on():
    async def handler(request: bytes, call: ServerCall) -> None:
        await asyncio.gather(*(call.send(bytes(HIGH_WATER + 1)) for _ in range(3)))

    site = server(handler)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await until(lambda: len(stream.data) == 3)
    stream.drain()
    await settled(site)
    assert stream.status()[b"grpc-status"] == b"0"


@pytest.mark.parametrize("waiting", ["elsewhere", "in send"])
async def test_a_reset_cancels_the_handler_in_the_same_batch(waiting: str):
    ended: list[str] = []

    async def handler(request: bytes, call: ServerCall) -> None:
        try:
            if waiting == "in send":
                await call.send(bytes(HIGH_WATER + 1))
            else:
                await asyncio.Event().wait()
        finally:
            await call.send(b"too late")
            ended.append("cleaned up")

    site = server(handler)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await asyncio.sleep(0)
    (task,) = site._calls
    stream.cancel()
    assert task.cancelling() == 1
    await settled(site)
    assert ended == ["cleaned up"]
    assert stream.data[-1:] != [frame(b"too late")]
    assert not stream.ended


async def test_a_handler_that_swallows_its_cancellation_does_no_harm():
    async def handler(request: bytes, call: ServerCall) -> bytes:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return b"answer"

    site = server(handler, stream=False)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await asyncio.sleep(0)
    stream.cancel()
    await settled(site)
    assert stream.data == []


async def test_a_request_may_come_in_any_pieces():
    async def handler(request: bytes, call: ServerCall) -> bytes:
        return request

    site = server(handler, stream=False)
    stream = FakeServerStream().call(site.accept, ASK, end=False)
    body = frame(b"x" * 40)
    assert stream.sink is not None
    for byte in body:
        stream.sink.on_data(bytes((byte,)), False)
    assert stream.taken == len(body)
    assert len(site.uploads) == 1
    stream.sink.on_data(b"", True)
    assert len(site.uploads) == 0
    await settled(site)
    assert stream.data == [body]


async def test_a_request_that_stalls_or_is_left_holds_nothing():
    async def handler(request: bytes, call: ServerCall) -> bytes:
        raise AssertionError("never runs")

    site = server(handler, stream=False, body_timeout=0.02)
    stalled = FakeServerStream().call(site.accept, ASK, end=False)
    assert stalled.sink is not None
    stalled.sink.on_data(frame(b"half")[:6], False)
    await until(lambda: stalled.ended)
    assert stalled.status()[b"grpc-status"] == b"4"
    left = FakeServerStream().call(site.accept, ASK, end=False)
    left.cancel()
    assert len(site.uploads) == 0


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ((b"grpc-timeout", b"soon"), b"3"),
        ((b"grpc-encoding", b"snappy"), b"12"),
    ],
)
async def test_bad_headers_are_answered_at_once(extra: tuple[bytes, bytes], status: bytes):
    async def handler(request: bytes, call: ServerCall) -> bytes:
        raise AssertionError("never runs")

    site = server(handler, stream=False)
    stream = FakeServerStream()
    assert site.accept(stream, [*ASK, extra], False) is None
    assert stream.status()[b"grpc-status"] == status
    assert stream.status()[b"grpc-accept-encoding"] == b"identity,deflate,gzip"


async def test_a_get_is_no_call():
    async def handler(request: bytes, call: ServerCall) -> bytes:
        raise AssertionError("never runs")

    site = server(handler, stream=False)
    stream = FakeServerStream()
    assert site.accept(stream, [(b":method", b"GET"), *ASK[1:]], True) is None
    assert stream.status()[b"grpc-status"] == b"12"


async def test_initial_metadata_can_be_sent_before_the_first_message():
    gate = asyncio.Event()

    async def handler(request: bytes, call: ServerCall) -> None:
        call.initial_metadata.append((b"x-node", b"n1"))
        call.send_initial_metadata()
        await gate.wait()

    site = server(handler)
    stream = FakeServerStream().call(site.accept, ASK, b"go")
    await asyncio.sleep(0)
    assert (b"x-node", b"n1") in stream.head
    assert not stream.ended
    gate.set()
    await settled(site)
    assert stream.status() == {b"grpc-status": b"0"}


class OneLoop(ManualLoop):
    """Lets a connection in memory and the real event loop work together."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        return asyncio.get_running_loop().call_soon(callback, *args)


async def test_tokens_that_are_ready_together_leave_in_one_write_and_the_first_at_once():
    gate = asyncio.Event()

    async def handler(request: bytes, call: ServerCall) -> None:
        await call.send(b"first")
        await gate.wait()
        for i in range(20):
            await call.send(b"token %d" % i)

    site = server(handler)
    loop = OneLoop()
    wire = Wire(loop)
    raw = Raw(Role.CLIENT)

    def accept(stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        return site.accept(stream, headers, end)

    wire.attach(H2ServerProtocol(accept, NetSettings(), Flusher(loop)))  # type: ignore[arg-type]
    raw.request(ASK, frame(b"go"))
    wire.protocol.data_received(raw.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    raw.feed(wire.take())
    assert bytes(raw.streams[1].data) == frame(b"first")
    wire.writes = 0
    gate.set()
    await settled(site)
    await until(lambda: wire.out)
    raw.feed(wire.take())
    assert wire.writes == 1
    assert raw.streams[1].data.count(b"token") == 20
    assert raw.streams[1].trailers == [(b"grpc-status", b"0")]


async def test_requests_that_run_may_hold_so_much_together_and_then_large_ones_are_refused():
    async def handler(request: bytes, call: ServerCall) -> None:
        await asyncio.Event().wait()

    site = server(handler, max_message=100_000)  # eight of these in all
    streams = [FakeServerStream().call(site.accept, ASK, b"x" * 90_000) for _ in range(10)]
    await asyncio.sleep(0)
    refused = [stream for stream in streams if stream.ended]
    assert len(refused) == 2
    assert all(stream.status()[b"grpc-status"] == b"8" for stream in refused)
    assert site.uploads.held == site.uploads.kept == 8 * 90_000
    small = FakeServerStream().call(site.accept, ASK, b"small")
    await asyncio.sleep(0)
    assert not small.ended
    for stream in (*streams, small):
        stream.cancel()
    await settled(site)
    assert site.uploads.held == 0
    await site.close()
