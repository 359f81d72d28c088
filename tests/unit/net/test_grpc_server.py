"""gRPC services: what grpcio's clients see, and what becomes of the handlers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue, UInt32Value
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from shared.errors import Code, LayaError, invalid, unavailable
from shared.net.api import Headers, ServerSink, ServerStream
from shared.net.grpc_server import ServerCall
from tests.support.grpc_site import GrpcSite, grpc_site, path
from tests.support.web import until

BIG = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@asynccontextmanager
async def channel(site: GrpcSite, **options: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(site.listener.address, options=BIG, **options) as made:
        yield made


def encode(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def unary(made: Any, name: str, answer: Any = BytesValue) -> Any:
    decode = bytes if answer is bytes else answer.FromString
    return made.unary_unary(path(name), request_serializer=encode, response_deserializer=decode)


def streaming(made: Any, name: str, answer: Any) -> Any:
    return made.unary_stream(path(name), request_serializer=encode, response_deserializer=answer.FromString)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_unary_call_carries_message_and_metadata_both_ways():
    async with grpc_site() as site, channel(site) as made:
        sent = (("x-one", "1"), ("x-one", "2"), ("x-data-bin", b"\0\xff"), ("x-request-id", "abc-1"))
        call = unary(made, "Echo")(BytesValue(value=b"hello"), metadata=sent)
        assert (await call).value == b"hello"
        assert dict(await call.initial_metadata())["x-first"] == "1"
        assert dict(await call.trailing_metadata())["x-last-bin"] == b"\0\1\2"
        assert await call.code() == grpc.StatusCode.OK
        (seen,) = site.calls
        assert seen.metadata[b"x-one"] == b"1,2"
        assert seen.metadata[b"x-data-bin"] in (b"AP8", b"AP8=")
        assert seen.request_id == b"abc-1"
        assert seen.peer.startswith("127.0.0.1:")
        assert seen.deadline is None
        assert seen.path == b"/test.Test/Echo"


async def test_a_call_without_a_sane_request_id_gets_one():
    async with grpc_site() as site, channel(site) as made:
        for metadata in ((), (("x-request-id", "no good"),)):
            await unary(made, "Echo")(BytesValue(), metadata=metadata)
        first, second = (call.request_id for call in site.calls)
        assert first.startswith(b"req-")
        assert first != second


async def test_a_stream_delivers_every_message_in_order_then_ok():
    async with grpc_site() as site, channel(site) as made:
        for total in (0, 1, 5000):
            call = streaming(made, "Count", UInt32Value)(UInt32Value(value=total))
            assert [message.value async for message in call] == list(range(total))
            assert await call.code() == grpc.StatusCode.OK


async def test_the_synchronous_client_is_served_too():
    async with grpc_site() as site:

        def talk() -> tuple[bytes, list[int], str]:
            with grpc.insecure_channel(site.listener.address) as made:
                one = unary(made, "Echo")(BytesValue(value=b"x"), timeout=5).value
                many = [m.value for m in streaming(made, "Count", UInt32Value)(UInt32Value(value=10), timeout=5)]
                with pytest.raises(grpc.RpcError) as caught:
                    unary(made, "Fail")(StringValue(), timeout=5)
                return one, many, caught.value.code().name

        assert await asyncio.to_thread(talk) == (b"x", list(range(10)), "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("late", [False, True])
async def test_an_error_arrives_with_its_details(late: bool):
    async with grpc_site() as site, channel(site) as made:
        call = streaming(made, "FailLate", StringValue) if late else unary(made, "Fail", StringValue)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if late:
                async for message in call(StringValue()):
                    assert message.value == "first"
            else:
                await call(StringValue())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # Its last character is a space, which HTTP/2 does not let a header value end with.
        assert caught.value.details() == "The queue is full. "
        status = rpc_status.from_call(cast(grpc.Call, caught.value))
        assert status is not None
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(info)
        assert status.details[1].Unpack(retry)
        assert (info.reason, info.domain) == ("QUEUE_FULL", "laya")
        assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 500_000_000)


async def test_any_other_exception_is_internal_and_keeps_its_secrets(caplog: pytest.LogCaptureFixture):
    async with grpc_site() as site, channel(site) as made:
        site.error = ValueError("private detail")
        code, details = await status_of(
            unary(made, "Fail", StringValue)(StringValue(), metadata=(("x-request-id", "r1"),))
        )
        assert code == grpc.StatusCode.INTERNAL
        assert "private" not in details
        assert "r1" in details
    (record,) = caplog.records
    assert record.getMessage() == "grpc_handler_failed"
    assert record.exc_info is not None


async def test_an_answer_of_the_wrong_type_is_internal(caplog: pytest.LogCaptureFixture):
    async with grpc_site() as site, channel(site) as made:

        async def wrong(request: Any, call: ServerCall) -> object:
            return object()

        site.server._routes[b"/test.Test/Echo"] = type(site.server._routes[b"/test.Test/Echo"])(wrong, BytesValue)
        assert (await status_of(unary(made, "Echo")(BytesValue())))[0] == grpc.StatusCode.INTERNAL
    assert len(caplog.records) == 1


async def test_an_unknown_method_is_named():
    async with grpc_site() as site, channel(site) as made:
        code, details = await status_of(unary(made, "Nothing")(BytesValue()))
        assert code == grpc.StatusCode.UNIMPLEMENTED
        assert "/test.Test/Nothing" in details


async def test_other_paths_go_to_the_fallback():
    seen: list[bytes] = []

    def fallback(stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        seen.append(dict(headers)[b":path"])
        stream.respond([(b":status", b"200"), *unavailable("elsewhere", "X").grpc_trailers()], end=True)
        return None

    async with grpc_site(fallback=fallback) as site, channel(site) as made:
        assert (await status_of(unary(made, "Nothing")(BytesValue())))[0] == grpc.StatusCode.UNAVAILABLE
        await unary(made, "Echo")(BytesValue())
        assert seen == [b"/test.Test/Nothing"]


async def test_a_check_refuses_calls_before_their_handlers_run():
    def check(call: ServerCall) -> None:
        if call.metadata.get(b"x-token") != b"good":
            raise LayaError(Code.UNAUTHENTICATED, "CLUSTER_TOKEN_INVALID", "The token is wrong.")

    async with grpc_site(check=check) as site, channel(site) as made:
        code, details = await status_of(unary(made, "Echo")(BytesValue()))
        assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "The token is wrong.")
        assert site.calls == []
        await unary(made, "Echo")(BytesValue(), metadata=(("x-token", "good"),))


async def test_a_deadline_ends_the_handler_and_the_call():
    async with grpc_site() as site, channel(site) as made:
        for name, make in (("Hang", unary), ("HangLate", streaming)):
            code, _ = await status_of(make(made, name, StringValue)(StringValue(), timeout=0.1))
            assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: site.server.calls == 0)
        assert site.cancelled == 2
        assert all(call.deadline is not None for call in site.calls)


async def test_the_server_enforces_a_deadline_that_the_client_does_not():
    async with grpc_site() as site, channel(site) as made:
        # A header of ours, so that grpcio keeps no clock of its own.
        call = unary(made, "Hang", StringValue)(StringValue(), metadata=(("grpc-timeout", "50m"),))
        code, details = await status_of(call)
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "deadline" in details
        assert site.flusher.counters.reasons == {"grpc_deadline": 1}


@pytest.mark.parametrize("name", ["Hang", "HangLate"])
async def test_a_client_that_cancels_stops_the_handler(name: str):
    async with grpc_site() as site, channel(site) as made:
        make = unary if name == "Hang" else streaming
        call = make(made, name, StringValue)(StringValue())
        if name == "HangLate":
            assert (await call.read()).value == "first"
        await asyncio.wait_for(site.running.wait(), 5)
        call.cancel()
        await until(lambda: site.server.calls == 0)
        assert site.cancelled == 1
        assert site.calls[0].cancelled


async def test_a_client_that_disconnects_stops_its_handlers():
    async with grpc_site() as site, channel(site) as made:
        calls = [unary(made, "Hang", StringValue)(StringValue()) for _ in range(5)]
        await until(lambda: site.server.calls == 5)
        await made.close(None)
        await until(lambda: site.server.calls == 0)
        assert site.cancelled == 5
        await asyncio.gather(*calls, return_exceptions=True)


async def test_messages_far_over_4_mib_pass_both_ways():
    async with grpc_site() as site, channel(site) as made:
        body = os.urandom(8 << 20)
        assert (await unary(made, "Echo")(BytesValue(value=body))).value == body


async def test_a_message_over_the_limit_is_refused():
    async with grpc_site(max_message=1 << 20) as site, channel(site) as made:
        code, details = await status_of(unary(made, "Echo")(BytesValue(value=bytes(8 << 20))))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1048576" in details
        assert site.calls == []
        assert (await unary(made, "Echo")(BytesValue(value=b"x"))).value == b"x"


@pytest.mark.parametrize("method", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests_are_inflated(method: grpc.Compression):
    async with grpc_site() as site, channel(site, compression=method) as made:
        body = b"compressible " * 10_000
        assert (await unary(made, "Echo")(BytesValue(value=body))).value == body
        assert site.calls[0].metadata[b"grpc-encoding"] == method.name.lower().encode()


async def test_a_compression_bomb_is_refused():
    async with grpc_site(max_message=1 << 20) as site, channel(site, compression=grpc.Compression.Gzip) as made:
        code, _ = await status_of(unary(made, "Echo")(BytesValue(value=bytes(32 << 20))))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_request_that_is_no_message_of_the_type_is_invalid():
    async with grpc_site() as site, channel(site) as made:
        call = unary(made, "Echo", bytes)(b"\xff\xff\xff")
        code, details = await status_of(call)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "BytesValue" in details
        assert await unary(made, "Raw", bytes)(b"abc") == b"cba"


async def test_requests_of_no_or_two_messages_are_refused():
    async def messages(n: int) -> AsyncIterator[bytes]:
        for _ in range(n):
            yield b""

    async with grpc_site() as site, channel(site) as made:
        for n in (0, 2):
            code, _ = await status_of(
                made.stream_unary(path("Raw"), request_serializer=bytes, response_deserializer=bytes)(messages(n))
            )
            assert code == grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_does_not_read_stops_the_handler_not_the_server():
    async with grpc_site() as site, channel(site) as made:
        call = streaming(made, "Flood", BytesValue)(UInt32Value(value=3000))
        await until(lambda: site.calls)
        (flooding,) = site.calls

        async def still() -> bool:
            before = flooding._stream.queued
            await asyncio.sleep(0.05)
            return before == flooding._stream.queued > 0

        while not await still():
            pass
        assert flooding._stream.queued < (64 << 10) + 20_000
        assert (await unary(made, "Echo")(BytesValue(value=b"x"))).value == b"x"
        assert len([message async for message in call]) == 3000


async def test_close_waits_for_handlers_then_stops_them():
    async with grpc_site() as site, channel(site) as made:
        release = asyncio.Event()

        async def wait(request: Any, call: ServerCall) -> BytesValue:
            site.running.set()
            await release.wait()
            return BytesValue(value=b"done")

        site.server._routes[b"/test.Test/Echo"] = type(site.server._routes[b"/test.Test/Echo"])(wait, BytesValue)
        slow = asyncio.ensure_future(unary(made, "Echo")(BytesValue()))
        await asyncio.wait_for(site.running.wait(), 5)
        site.running.clear()
        stuck = asyncio.ensure_future(status_of(unary(made, "Hang", StringValue)(StringValue())))
        await until(lambda: site.server.calls == 2)
        closing = asyncio.create_task(site.server.close(grace=0.3))
        await asyncio.sleep(0)
        assert (await status_of(unary(made, "Echo")(BytesValue())))[0] == grpc.StatusCode.UNAVAILABLE
        release.set()
        assert (await slow).value == b"done"
        assert not closing.done()
        await closing
        code, _ = await stuck
        assert code == grpc.StatusCode.UNAVAILABLE
        assert site.cancelled == 1


async def test_errors_raised_by_many_calls_at_once_leave_nothing():
    async with grpc_site() as site, channel(site) as made:
        site.error = invalid("no", "prompt")
        kinds: list[Callable[[], Any]] = [
            lambda: unary(made, "Fail", StringValue)(StringValue()),
            lambda: unary(made, "Echo")(BytesValue(value=b"x" * 1000)),
            lambda: unary(made, "Hang", StringValue)(StringValue(), timeout=0.05),
            lambda: streaming(made, "FailLate", StringValue)(StringValue()).read(),
        ]
        await asyncio.gather(*(kinds[i % 4]() for i in range(200)), return_exceptions=True)
        await until(lambda: site.server.calls == 0 and site.listener.streams == 0)
