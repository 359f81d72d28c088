"""The data plane over real sockets: bad input, clients and nodes that go away, and nothing left of any of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status

from router_node.middleware.keys import KeyStore
from shared.headers import NO_MIGRATE
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.calls import stub_of
from tests.support.ports import eventually, until
from tests.support.processes import Cluster, Spec, cluster, metric

GENERATE = "/laya.v1.Inference/Generate"
COMPLETE = "/laya.v1.Inference/Complete"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=2, router={"LAYA_SERVER__MAX_BODY_BYTES": "1000000"})) as c:
        yield c


@pytest.fixture
async def channel(running: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(running.address) as c:
        yield c


@pytest.fixture
async def model(channel: grpc.aio.Channel) -> str:
    listed = await stub_of(channel).ListModels(pb.ListModelsRequest())
    return str(listed.models[0].name)


async def assert_idle(running: Cluster) -> None:
    """Streams, reservations, waiting requests, holds and engine requests are all back to nothing."""

    def at_rest() -> bool:
        text = running.metrics()
        return (
            metric(text, "laya_router_requests_in_flight") == 0
            and metric(text, "laya_router_queue_depth") == 0
            and metric(text, "laya_router_reservations") == 0
            and metric(text, "laya_router_node_reserved_tokens") == 0
            and metric(text, "laya_router_node_running") == 0
            and metric(text, "laya_router_node_waiting") == 0
            and metric(text, "laya_router_node_headroom_tokens") == metric(text, "laya_router_node_capacity_tokens")
        )

    await until(at_rest, "everything is at rest")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    if status is None or not status.details:
        return ""
    from google.rpc import error_details_pb2

    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return str(info.reason)


async def call(channel: grpc.aio.Channel, path: str, message: bytes, metadata: list[tuple[str, str]] | None = None):
    """A raw unary call; the error it ends with."""
    method = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(message, timeout=20, metadata=metadata)
    return caught.value


def post(address: str, body: bytes, path: str = CHAT, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    host, _, port = address.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        client.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        client.close()


def chat(model: str, **fields: object) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


async def serves(channel: grpc.aio.Channel, model: str) -> None:
    stub = stub_of(channel)
    request = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="still there?"))
    request.request.sampling.max_tokens = 2
    assert (await stub.Complete(request, timeout=20)).completions[0].text


async def test_bad_grpc_input_gets_one_clear_error_each(
    running: Cluster, channel: grpc.aio.Channel, model: str
) -> None:
    def ask(**fields: object) -> bytes:
        sampling = fields.pop("sampling", None)
        request = pb.GenerateRequest(model=model, text="hi")
        for name, value in fields.items():
            setattr(request, name, value)
        if isinstance(sampling, dict):
            for name, value in sampling.items():
                setattr(request.sampling, name, value)
        return pb.CompleteRequest(request=request).SerializeToString()

    code = grpc.StatusCode
    table = [
        (COMPLETE, ask(model="gpt-9"), None, code.NOT_FOUND, model),
        (COMPLETE, ask(sampling={"max_tokens": 0}), None, code.INVALID_ARGUMENT, "max_tokens"),
        (COMPLETE, ask(sampling={"max_tokens": 4_000_000_000}), None, code.INVALID_ARGUMENT, "max_tokens"),
        (COMPLETE, ask(sampling={"n": 1000}), None, code.INVALID_ARGUMENT, "n"),
        (COMPLETE, ask(text="word " * 50_000), None, code.INVALID_ARGUMENT, "context"),
        (COMPLETE, b"\xff\xff\xff\xff", None, code.INVALID_ARGUMENT, "protobuf"),
        (COMPLETE, b"", None, code.INVALID_ARGUMENT, ""),
        (COMPLETE, ask(), [("laya-prompt-tokens", "many")], code.INVALID_ARGUMENT, "laya-prompt-tokens"),
        (COMPLETE, ask(), [("laya-model", "gpt-9")], code.NOT_FOUND, "gpt-9"),
        ("/laya.v1.Inference/Nothing", b"", None, code.UNIMPLEMENTED, "/laya.v1.Inference/Nothing"),
        ("/laya.v1.Node/Drain", b"", None, code.PERMISSION_DENIED, "Node"),
        ("/laya.v1.Admin/ListNodes", b"", None, code.PERMISSION_DENIED, "Admin"),
    ]
    for path, message, metadata, want, says in table:
        error = await call(channel, path, message, metadata)
        assert error.code() == want, (path, message[:40], error.code(), error.details())
        assert says in (error.details() or ""), (path, error.details())
        assert reason_of(error), path
    await serves(channel, model)
    await assert_idle(running)


async def test_lies_in_metadata_end_at_the_node(running: Cluster, channel: grpc.aio.Channel, model: str) -> None:
    request = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi"))
    request.request.sampling.n = 4000
    lies = [("laya-model", model), ("laya-prompt-tokens", "1"), ("laya-max-tokens", "1")]
    error = await call(channel, COMPLETE, request.SerializeToString(), lies)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    await assert_idle(running)


async def test_bad_http_input_gets_one_openai_error_each(
    running: Cluster, channel: grpc.aio.Channel, model: str
) -> None:
    long = [{"role": "user", "content": "word " * 50_000}]
    table: list[tuple[str, bytes, int, str | None]] = [
        (CHAT, b"{", 400, None),
        (CHAT, b"[]", 400, None),
        (CHAT, chat("gpt-9"), 404, "model"),
        (CHAT, b"{}", 400, "model"),
        (CHAT, chat(model, max_tokens=0), 400, "max_tokens"),
        (CHAT, chat(model, max_tokens=-1), 400, "max_tokens"),
        (CHAT, chat(model, max_tokens="x"), 400, "max_tokens"),
        (CHAT, chat(model, n=999), 400, "n"),
        (CHAT, chat(model, stream="x"), 400, "stream"),
        (CHAT, json.dumps({"model": model, "messages": long}).encode(), 400, None),
        (CHAT, b'{"model":"' + model.encode() + b'","x":"' + b"x" * 1_100_000 + b'"}', 413, None),
        ("/v1/nothing", chat(model), 404, None),
    ]
    for path, body, want, param in table:
        status, _, answer = await asyncio.to_thread(post, running.address, body, path)
        assert status == want, (path, body[:60], status, answer)
        error = json.loads(answer)["error"]
        assert error["message"] and error["type"], answer
        if param is not None:
            assert error["param"] == param, (body[:60], answer)
    await serves(channel, model)
    await assert_idle(running)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff" * 500,
        b"GARBAGE\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\5\0\0\0\1hello",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n{",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"GET /v1/mod",
        b"",
    ],
)
async def test_garbage_and_halves_of_requests_harm_nobody(
    running: Cluster, channel: grpc.aio.Channel, model: str, raw: bytes
) -> None:
    host, _, port = running.address.rpartition(":")
    sockets = []
    for _ in range(20):
        one = socket.create_connection((host, int(port)), timeout=5)
        one.sendall(raw)
        sockets.append(one)
    await serves(channel, model)
    for one in sockets:
        one.close()
    await serves(channel, model)
    await assert_idle(running)


async def test_a_cancelled_stream_frees_the_node_at_once(
    running: Cluster, channel: grpc.aio.Channel, model: str
) -> None:
    stub = stub_of(channel)
    calls = []
    for i in range(20):
        request = pb.GenerateRequest(model=model, text=f"count {i}")
        request.sampling.max_tokens = 4000
        request.sampling.ignore_eos = True
        stream = stub.Generate(request)
        await stream.read()
        calls.append(stream)
    assert running.metric("laya_router_requests_in_flight") == 20
    for stream in calls:
        stream.cancel()
    await assert_idle(running)


async def test_the_client_s_deadline_ends_both_sides(running: Cluster, channel: grpc.aio.Channel, model: str) -> None:
    request = pb.GenerateRequest(model=model, text="long")
    request.sampling.max_tokens = 4000
    request.sampling.ignore_eos = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub_of(channel).Generate(request, timeout=0.3):
            pass
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await assert_idle(running)


async def test_a_compressing_client_is_understood(running: Cluster, model: str) -> None:
    for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        async with grpc.aio.insecure_channel(running.address, compression=algorithm) as packed:
            await serves(packed, model)
    await assert_idle(running)


async def test_an_early_http_client_that_leaves_cancels_at_the_node(running: Cluster, model: str) -> None:
    host, _, port = running.address.rpartition(":")
    for stream in (False, True):
        body = chat(model, max_tokens=4000, stream=stream, ignore_eos=True)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        if stream:
            assert await reader.readuntil(b"data: ")
        else:
            await until(lambda: running.metric("laya_router_node_running") == 1, "the node runs it")
        writer.close()
        await assert_idle(running)


async def test_health_is_served_on_the_public_port(channel: grpc.aio.Channel) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest(service="laya.v1.Inference"), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_headers_name_the_node_the_request_and_the_router_s_time(channel: grpc.aio.Channel, model: str) -> None:
    stub = stub_of(channel)
    request = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi"))
    request.request.sampling.max_tokens = 1
    answer = stub.Complete(request, metadata=[("x-request-id", "mine-7"), ("laya-tenant", "forged")])
    headers = dict(await answer.initial_metadata())
    assert headers["laya-node"] in ("node-0", "node-1")
    assert headers["x-request-id"] == "mine-7"
    assert int(headers["laya-router-us"]) < 1_000_000
    await answer


async def test_a_missing_or_wrong_key_is_refused_on_every_way_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, secret = KeyStore(path).add("acme")
    with cluster(Spec(router={"LAYA_SERVER__KEYS_FILE": str(path)})) as guarded:
        async with grpc.aio.insecure_channel(guarded.address) as channel:
            stub = stub_of(channel)
            good = [("authorization", f"Bearer {secret}")]
            model = (await stub.ListModels(pb.ListModelsRequest(), metadata=good)).models[0].name
            message = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi")).SerializeToString()
            wrong = [("authorization", "Bearer laya-" + "x" * 43)]
            for metadata, reason in ((None, "KEY_MISSING"), (wrong, "KEY_INVALID")):
                error = await call(channel, COMPLETE, message, metadata)
                assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAUTHENTICATED, reason)
            status, _, answer = await asyncio.to_thread(post, guarded.address, chat(model))
            assert status == 401
            assert json.loads(answer)["error"]["code"] == "key_missing"
            body = chat(model, max_tokens=2)
            status, _, answer = await asyncio.to_thread(
                post, guarded.address, body, CHAT, authorization=f"Bearer {secret}"
            )
            assert status == 200, answer
        await assert_idle(guarded)
        assert secret not in guarded.router.output()
        assert secret not in "".join(node.output() for node in guarded.nodes)


async def test_a_lost_node_is_told_and_the_next_request_goes_elsewhere() -> None:
    with cluster(Spec(nodes=2)) as c:
        async with grpc.aio.insecure_channel(c.address) as channel:
            stub = stub_of(channel)
            model = (await stub.ListModels(pb.ListModelsRequest())).models[0].name
            request = pb.GenerateRequest(model=model, text="a long story")
            request.sampling.max_tokens = 4000
            request.sampling.ignore_eos = True
            stream = stub.Generate(request, metadata=((NO_MIGRATE.decode(), "1"),))
            await stream.read()
            node = dict(await stream.initial_metadata())["laya-node"]

            host, _, port = c.address.rpartition(":")
            body = chat(model, max_tokens=4000, stream=True, ignore_eos=True)
            events = []
            for _ in range(4):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(
                    b"POST %b HTTP/1.1\r\nhost: a\r\n%b: 1\r\ncontent-length: %d\r\n\r\n%b"
                    % (CHAT.encode(), NO_MIGRATE, len(body), body)
                )
                head = await reader.readuntil(b"\r\n\r\n")
                on = next(line for line in head.split(b"\r\n") if line.startswith(b"laya-node: "))[11:].decode()
                events.append((on, reader, writer))

            c.nodes[int(node[-1])].signal(signal.SIGKILL)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    pass
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert reason_of(caught.value) == "NODE_LOST"
            for on, reader, writer in events:
                if on == node:
                    rest = await asyncio.wait_for(reader.read(), 10) if reader.at_eof() else b""
                    while not rest.endswith(b"0\r\n\r\n"):
                        rest += await asyncio.wait_for(reader.read(65_536), 10)
                    assert b'"node_lost"' in rest
                    assert b"[DONE]" not in rest
                writer.close()

            for _ in range(5):
                small = pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi"))
                small.request.sampling.max_tokens = 2
                assert (await stub.Complete(small, timeout=20)).completions

            async def calm() -> bool:
                text = c.metrics()
                return "laya_router_requests_in_flight 0.0" in text and "laya_router_reservations 0.0" in text

            await eventually(calm, "nothing is left")
