"""gRPC calls of ours: to our own server, to grpcio's, and to upstreams that misbehave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue, UInt32Value

from shared.errors import Code, LayaError
from shared.net.flusher import Flusher
from shared.net.grpc_client import stream, unary
from shared.net.grpc_wire import frame
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from tests.support.fake_streams import FakeClientStream, FakeUpstream
from tests.support.grpc_site import grpc_site, path
from tests.support.web import until

TIMEOUT = 5.0


@asynccontextmanager
async def pool(address: str) -> AsyncIterator[Pool]:
    made = Pool(address, NetSettings(), Flusher())
    made.start()
    try:
        await until(lambda: made.connected)
        yield made
    finally:
        await made.close()


def name(method: str) -> bytes:
    return path(method).encode()


async def refused(call: Any) -> LayaError:
    with pytest.raises(LayaError) as caught:
        await call
    return caught.value


async def test_unary_calls_carry_message_and_metadata():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        for size in (0, 10, 100_000, 8 << 20):
            body = os.urandom(size)
            answer = await unary(
                upstream, name("Echo"), BytesValue(value=body), BytesValue, [(b"x-one", b"1")], TIMEOUT
            )
            assert answer.value == body
        assert all(call.metadata[b"x-one"] == b"1" for call in site.calls)
        assert all(call.deadline is not None for call in site.calls)


async def test_streams_deliver_every_message_in_order():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        for total in (0, 1, 3000):
            answers = stream(upstream, name("Count"), UInt32Value(value=total), UInt32Value)
            assert [message.value async for message in answers] == list(range(total))
        await until(lambda: upstream.streams == 0)


async def test_errors_come_back_as_they_were_raised():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        error = await refused(unary(upstream, name("Fail"), StringValue(), StringValue))
        assert (error.code, error.reason, error.retry_after) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.5)
        assert error.message == "The queue is full. "
        got = []
        with pytest.raises(LayaError) as caught:
            async for message in stream(upstream, name("FailLate"), StringValue(), StringValue):
                got.append(message.value)
        assert got == ["first"]
        assert caught.value.reason == "QUEUE_FULL"
        error = await refused(unary(upstream, name("Nothing"), StringValue(), StringValue))
        assert error.code == Code.UNIMPLEMENTED


async def test_a_deadline_passes_on_both_sides():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        error = await refused(unary(upstream, name("Hang"), StringValue(), StringValue, timeout=0.05))
        assert error.code == Code.DEADLINE_EXCEEDED
        with pytest.raises(LayaError) as caught:
            async for _ in stream(upstream, name("HangLate"), StringValue(), StringValue, timeout=0.05):
                pass
        assert caught.value.code == Code.DEADLINE_EXCEEDED
        await until(lambda: site.server.calls == 0 and upstream.streams == 0)
        assert site.cancelled == 2


async def test_a_caller_that_leaves_stops_the_handler():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        task = asyncio.create_task(unary(upstream, name("Hang"), StringValue(), StringValue))
        await until(lambda: site.server.calls == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: site.cancelled == 1)
        async with aclosing(stream(upstream, name("HangLate"), StringValue(), StringValue)) as answers:
            assert (await anext(answers)).value == "first"
        await until(lambda: site.cancelled == 2 and upstream.streams == 0)


async def test_a_slow_reader_stops_the_server_and_loses_nothing():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        answers = stream(upstream, name("Flood"), UInt32Value(value=500), BytesValue)
        await anext(answers)
        await until(lambda: site.calls and site.calls[0]._stream.queued > 0)
        assert sum([1 async for _ in answers]) == 499


async def test_a_lost_connection_is_unavailable():
    async with grpc_site() as site, pool(site.listener.address) as upstream:
        call = asyncio.ensure_future(refused(unary(upstream, name("Hang"), StringValue(), StringValue)))
        await until(lambda: site.server.calls == 1)
        await site.listener.close()
        error = await call
        assert (error.code, error.reason) == (Code.UNAVAILABLE, "NODE_LOST")


async def test_grpcio_servers_are_understood():
    async def echo(request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-a", "1"),))
        return request

    async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for i in range(100):
            yield BytesValue(value=b"%d" % i).SerializeToString()

    async def fail(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no é % such")
        return b""

    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Many": grpc.unary_stream_rpc_method_handler(many),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
    }
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options, compression=grpc.Compression.Gzip)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with pool(f"127.0.0.1:{port}") as upstream:
            body = b"compressible " * 100_000
            answer = await unary(upstream, b"/t/Echo", BytesValue(value=body), BytesValue, timeout=TIMEOUT)
            assert answer.value == body
            got = [m.value async for m in stream(upstream, b"/t/Many", b"", BytesValue, timeout=TIMEOUT)]
            assert got == [b"%d" % i for i in range(100)]
            error = await refused(unary(upstream, b"/t/Fail", b"", BytesValue, timeout=TIMEOUT))
            assert (error.code, error.message) == (Code.NOT_FOUND, "no é % such")
    finally:
        await server.stop(None)


async def begin(call: Any) -> tuple[asyncio.Task[Any], FakeUpstream, FakeClientStream]:
    """A call over an upstream in memory, after it has sent its request."""
    upstream = FakeUpstream()
    task = asyncio.ensure_future(call(upstream))
    await asyncio.sleep(0)
    return task, upstream, upstream.last


def ask(upstream: FakeUpstream, **options: Any) -> Any:
    return unary(upstream, b"/t/M", b"request", BytesValue, **options)


async def test_the_request_is_one_frame_with_proper_headers():
    task, _, sent = await begin(lambda upstream: ask(upstream, timeout=2.0, metadata=[(b"laya-model", b"m")]))
    assert sent.headers[b":path"] == b"/t/M"
    assert sent.headers[b"te"] == b"trailers"
    assert sent.headers[b"content-type"] == b"application/grpc"
    assert sent.headers[b"grpc-timeout"] == b"2000000u"
    assert sent.headers[b"laya-model"] == b"m"
    assert (sent.data, sent.ended) == ([frame(b"request")], True)
    sent.answer(BytesValue(value=b"x").SerializeToString())
    assert (await task).value == b"x"
    assert sent.code == -1


async def test_no_connection_is_unavailable():
    upstream = FakeUpstream()
    upstream.full = True
    assert (await refused(ask(upstream))).code == Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda sent: sent.answer(), Code.INTERNAL),
        (lambda sent: sent.answer(b"", b""), Code.INTERNAL),
        (lambda sent: sent.answer(b"\xff\xff"), Code.INTERNAL),
        (lambda sent: sent.lose(8), Code.UNAVAILABLE),
        (lambda sent: sent.lose(7, True), Code.UNAVAILABLE),
        (lambda sent: sent.lose(2), Code.INTERNAL),
        (lambda sent: sent.lose(0), Code.INTERNAL),
        (lambda sent: sent.refuse([(b"grpc-status", b"5"), (b"grpc-message", b"no")]), Code.NOT_FOUND),
        (lambda sent: sent.refuse([(b"grpc-status", b"0")]), Code.INTERNAL),
        (lambda sent: sent.sink.on_response([(b":status", b"503")], True), Code.UNAVAILABLE),
        (
            lambda sent: sent.sink.on_response([(b":status", b"200"), (b"content-type", b"text/html")], False),
            Code.UNKNOWN,
        ),
        (lambda sent: sent.begin((b"grpc-encoding", b"snappy")), Code.UNIMPLEMENTED),
    ],
)
async def test_an_upstream_that_misbehaves_is_an_error_of_its_kind(fault: Any, code: Code):
    task, _, sent = await begin(ask)
    fault(sent)
    assert (await refused(task)).code == code


@pytest.mark.parametrize(
    ("data", "end", "code"),
    [
        (frame(b"x" * 2000), False, Code.RESOURCE_EXHAUSTED),
        (b"\7\0\0\0\0", False, Code.INVALID_ARGUMENT),
        (frame(b""), True, Code.INTERNAL),
    ],
)
async def test_bad_answers_are_reset(data: bytes, end: bool, code: Code):
    task, _, sent = await begin(lambda upstream: ask(upstream, max_message=1000))
    sent.begin()
    sent.sink.on_response_data(data, end)
    assert (await refused(task)).code == code
    assert sent.taken == len(data)
    assert end or sent.code == 8


async def test_an_answer_cut_inside_a_message_is_an_error():
    task, _, sent = await begin(ask)
    sent.begin()
    sent.sink.on_response_data(frame(b"abc")[:-1], False)
    sent.finish()
    assert (await refused(task)).reason == "BROKEN_FRAME"


async def test_a_message_larger_than_any_window_is_acknowledged_as_it_comes():
    task, _, sent = await begin(ask)
    sent.begin()
    message = BytesValue(value=bytes(200_000)).SerializeToString()
    data = frame(message)
    for i in range(0, len(data), 16_384):
        sent.sink.on_response_data(data[i : i + 16_384], False)
        if i + 16_384 < len(data):
            assert sent.taken == i + 16_384
    sent.finish()  # what is not acknowledged now, the connection settles itself
    assert len((await task).value) == 200_000


async def test_messages_that_nobody_takes_are_not_acknowledged():
    upstream = FakeUpstream()
    answers = stream(upstream, b"/t/M", b"", BytesValue)
    first = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    sent = upstream.last
    sent.begin()
    message = BytesValue(value=bytes(10_000)).SerializeToString()
    for _ in range(6):
        sent.sink.on_response_data(frame(message), False)
    await first
    taken = sent.taken
    assert taken < 6 * len(frame(message))
    for _ in range(5):
        await anext(answers)
    assert sent.taken == 6 * len(frame(message))
    await answers.aclose()
    assert sent.code == 8
