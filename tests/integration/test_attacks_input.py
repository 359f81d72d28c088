"""What requests may say: lies, nonsense and giants. One clear error each, and nothing of it in logs or metrics."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from router_node.middleware.keys import KeyStore
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import attack
from tests.support.attack import (
    CHAT,
    COMPLETE,
    DATA,
    END_HEADERS,
    HEADERS,
    Peer,
    aside,
    assert_at_rest,
    assert_logs_are_clean,
    call,
    events,
    frame,
    message,
    small_request,
)
from tests.support.grpc_errors import reason
from tests.support.processes import Cluster, Spec, cluster

pytestmark = pytest.mark.integration

Code = grpc.StatusCode
Metadata = list[tuple[str, str | bytes]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A cluster with keys, and one of them."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    _, secret = KeyStore(path).add("acme")
    env = {"LAYA_SERVER__MAX_BODY_BYTES": "1000000"}
    with cluster(Spec(nodes=2, router={**env, "LAYA_SERVER__KEYS_FILE": str(path)}, node=env)) as c:
        yield c, secret
        assert_logs_are_clean(c, secret)


@pytest.fixture
def running(guarded: tuple[Cluster, str]) -> Cluster:
    return guarded[0]


@pytest.fixture
def key(guarded: tuple[Cluster, str]) -> str:
    return guarded[1]


@pytest.fixture
async def channel(running: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_metadata_size", 1 << 20), ("grpc.absolute_max_metadata_size", 1 << 20)]
    async with grpc.aio.insecure_channel(running.address, options=options) as c:
        yield c


async def told(channel: grpc.aio.Channel, raw: bytes, metadata: Metadata, path: str = COMPLETE) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(path)(raw, timeout=10, metadata=metadata)
    return caught.value


def auth(key: str, *more: tuple[str, str | bytes]) -> Metadata:
    return [("authorization", f"Bearer {key}"), *more]


def post(address: str, key: str, body: bytes, path: str = CHAT, **headers: str) -> tuple[int, dict[str, object]]:
    host, _, port = address.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        client.request("POST", path, body, {"authorization": f"Bearer {key}", **headers})
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        client.close()


def log_lines(running: Cluster) -> list[str]:
    """What the router wrote, line by line."""
    return Path(running.router.log.name).read_text("utf-8", "replace").splitlines()


def chat(more: bytes = b"") -> bytes:
    return b'{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":2' + more + b"}"


# The body, the status, and the field that is named ("" for none).
BODIES: dict[str, tuple[bytes, int, str]] = {
    "not a number": (chat(b',"temperature":NaN'), 400, ""),
    "infinity": (chat(b',"temperature":-Infinity'), 400, ""),
    "a number beyond floats": (chat(b',"temperature":1e400'), 400, ""),
    "an integer of 5000 digits": (chat(b',"n":' + b"9" * 5000), 400, "n"),
    "an unknown one of 100000": (chat(b',"zz":' + b"9" * 100_000), 400, ""),
    "deep lists": (chat(b',"zz":' + b"[" * 100_000 + b"]" * 100_000), 400, ""),
    "deep objects": (chat(b',"zz":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000), 400, ""),
    "deep messages": (b'{"model":"sim","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, ""),
    "the last of two models": (b'{"model":"nope",' + chat()[1:], 200, ""),
    "the last of two limits": (chat(b',"max_tokens":0'), 400, "max_tokens"),
    "an escaped name": (chat(b',"max_\\u0074okens":4000000'), 400, "max_tokens"),
    "a lone surrogate": (chat(b',"stop":["\\ud800"]'), 400, ""),
    "halves in the wrong order": (chat(b',"stop":["\\udc00\\ud83d"]'), 400, ""),
    "bytes that are no UTF-8": (chat(b',"stop":["\xff\xfe"]'), 400, ""),
    "a name that is no UTF-8": (chat(b',"\xff":1'), 400, ""),
    "UTF-16": (chat().decode().encode("utf-16"), 400, ""),
    "a byte order mark": (b"\xef\xbb\xbf" + chat(), 400, ""),
    "two bodies": (chat() + chat(), 400, ""),
    "a model that is a list": (b'{"model":["sim"],"messages":[]}', 400, "model"),
    "a model of a megabyte": (b'{"model":"' + b"x" * 900_000 + b'"}', 400, "model"),
    "a model with control characters": (b'{"model":"a\\nb\\u0000\\u001b[31m","messages":[]}', 404, "model"),
    "messages of nothing": (b'{"model":"sim","messages":[null]}', 400, "messages[0]"),
    "more than 64 bits": (chat(b',"max_tokens":18446744073709551616'), 400, "max_tokens"),
    "absurd n": (chat(b',"n":4000'), 400, "n"),
    "absurd best_of": (chat(b',"best_of":4000'), 400, "best_of"),
    "absurd priority": (chat(b',"priority":99999999999'), 400, "priority"),
    "absurd logprobs": (chat(b',"logprobs":true,"top_logprobs":100000'), 400, "logprobs"),
    "a hundred thousand stops": (chat(b',"stop":' + json.dumps(["a"] * 100_000).encode()), 400, "stop"),
    "fifty thousand keys": (chat(b"," + b",".join(b'"k%d":1' % i for i in range(50_000))), 200, ""),
    "a body over the limit": (chat(b',"x":"' + b"y" * 1_100_000 + b'"'), 413, ""),
}


async def test_each_body_that_makes_no_sense_is_one_openai_error(running: Cluster, key: str) -> None:
    for name, (body, want, param) in BODIES.items():
        status, answer = await aside(lambda body=body: post(running.address, key, body))
        assert status == want, (name, status, str(answer)[:300])
        if want != 200:
            error = answer["error"]
            assert isinstance(error, dict) and len(error["message"]) < 3000, name
            assert (error["param"] or "") == param, (name, error)
            assert error["message"].isprintable(), name
    await assert_at_rest(running)


async def test_a_compressed_body_is_refused_unread(running: Cluster, key: str) -> None:
    bomb = gzip.compress(b"x" * 50_000_000)
    status, answer = await aside(lambda: post(running.address, key, bomb, **{"content-encoding": "gzip"}))
    assert status == 415, answer


async def test_a_compressed_message_is_inflated_within_its_limit(running: Cluster, key: str) -> None:
    bomb = gzip.compress(pb.GenerateRequest(model="sim", text="x" * 30_000_000).SerializeToString())
    held = attack.rss(running.router.popen.pid)
    packed = b"\1" + len(bomb).to_bytes(4, "big") + bomb
    secret = (b"authorization", f"Bearer {key}".encode())
    block = call(COMPLETE, secret, (b"grpc-encoding", b"gzip"))
    named = call(
        COMPLETE,
        secret,
        (b"grpc-encoding", b"gzip"),
        *((b"laya-model", b"sim"), (b"laya-prompt-tokens", b"1"), (b"laya-max-tokens", b"1")),
    )
    with Peer(running.address) as peer:
        asks = [(2 * i + 1, named if i % 2 else block) for i in range(40)]
        pieces = [packed[at : at + 16_000] for at in range(0, len(packed), 16_000)]
        for at, fields in asks:
            peer.send(frame(HEADERS, END_HEADERS, at, fields))
            for i, piece in enumerate(pieces):
                peer.send(frame(DATA, i == len(pieces) - 1, at, piece))
        assert await aside(lambda: peer.answers(40)) == 40
    assert attack.rss(running.router.popen.pid) - held < 24 << 10
    await assert_at_rest(running)


async def test_bytes_that_are_no_message_are_one_typed_error(
    channel: grpc.aio.Channel, running: Cluster, key: str
) -> None:
    rng = random.Random(7)
    whole = small_request()
    raws = [rng.randbytes(rng.randrange(1, 200)) for _ in range(60)]
    raws += [whole[:at] for at in range(1, len(whole))]
    raws += [b"\x0b" * 200, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" + b"\x80" * 20, b"\x12\x02" * 1000]
    for raw in raws:
        try:
            await channel.unary_unary(COMPLETE)(raw, timeout=10, metadata=auth(key))
        except grpc.aio.AioRpcError as error:
            assert error.code() in (Code.INVALID_ARGUMENT, Code.NOT_FOUND), (raw, error.details())
            assert reason(error) and len(error.details() or "") < 3000
    await assert_at_rest(running)


async def test_metadata_that_makes_no_sense_is_named(channel: grpc.aio.Channel, running: Cluster, key: str) -> None:
    for name, value in (
        ("laya-prompt-tokens", "-1"),
        ("laya-prompt-tokens", "99999999999999999999"),
        ("laya-max-tokens", "1e9"),
        ("laya-max-tokens", "0"),
        ("laya-priority", "--5"),
        ("laya-priority", "2147483648"),
        ("laya-prefix", "zz"),
        ("laya-prefix", "0" * 17 * 65),
        ("laya-session", "s" * 300),
        ("laya-model", "m" * 300),
    ):
        error = await told(channel, small_request(), auth(key, (name, value)))
        assert (error.code(), reason(error)) == (Code.INVALID_ARGUMENT, "INVALID_REQUEST"), name
        assert name in (error.details() or ""), name
    error = await told(channel, small_request(), auth(key, ("traceparent", "x" * 65_000)))
    assert (error.code(), reason(error)) == (Code.RESOURCE_EXHAUSTED, "HEADERS_TOO_LARGE")
    await assert_at_rest(running)


async def test_what_only_a_router_may_say_is_not_believed_of_a_client(
    channel: grpc.aio.Channel, running: Cluster, key: str
) -> None:
    lies: Metadata = [
        ("laya-dispatch", "w0-1"),
        ("laya-tenant", "root"),
        ("laya-salt", "0"),
        ("laya-rewrite", "nope"),
        ("laya-clamps", '{"max_n":1,"max_max_tokens":1}'),
        ("laya-cluster-token", "guess"),
        ("laya-junk-bin", b"\xff\x00\x01"),
        ("cookie", "a=1"),
    ]
    answer = pb.CompleteResponse.FromString(
        await channel.unary_unary(COMPLETE)(small_request(max_tokens=5, ignore_eos=True), metadata=auth(key, *lies))
    )
    assert answer.usage.completion_tokens == 5  # neither clamped nor sent elsewhere
    await assert_at_rest(running)


@pytest.mark.parametrize("value", [b"a\r\nlaya-tenant: root", b"a\nb", b"a\0b"])
async def test_line_breaks_in_metadata_are_no_metadata(running: Cluster, key: str, value: bytes) -> None:
    secret = (b"authorization", f"Bearer {key}".encode())
    with Peer(running.address) as peer:
        block = call(COMPLETE, secret, (b"traceparent", value))
        peer.send(frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, 1, 1, message(small_request())))
        await aside(lambda: peer.read(2.0, lambda got: any(kind == attack.RST for kind, *_ in peer.frames())))
        assert any(kind == attack.RST and stream == 1 for kind, _, stream, _ in peer.frames())
    await assert_at_rest(running)


async def test_keys_that_are_wrong_are_refused_before_anything_is_read(
    channel: grpc.aio.Channel, running: Cluster, key: str
) -> None:
    table: list[tuple[Metadata, str]] = [
        ([], "KEY_MISSING"),
        ([("authorization", "Bearer")], "KEY_INVALID"),
        ([("authorization", f"Basic {key}")], "KEY_INVALID"),
        ([("authorization", f"Bearer {key[:-1]}")], "KEY_INVALID"),
        ([("authorization", f"Bearer {key}x")], "KEY_INVALID"),
        ([("authorization", f"Bearer {key.swapcase()}")], "KEY_INVALID"),
        ([("authorization", "Bearer " + "x" * 50_000)], "KEY_INVALID"),
        ([("x-api-key", key)], "KEY_MISSING"),
    ]
    for metadata, want in table:
        error = await told(channel, b"\xff" * 100, metadata)
        assert (error.code(), reason(error)) == (Code.UNAUTHENTICATED, want), metadata
    for address in (node.address for node in running.nodes):
        async with grpc.aio.insecure_channel(address) as direct:
            for metadata in ([], [("laya-cluster-token", "guess")], auth(key)):
                for path in (COMPLETE, "/laya.v1.Node/Drain", "/laya.v1.Node/Watch", "/laya.v1.OpenAI/Call"):
                    error = await told(direct, b"", metadata, path)
                    assert (error.code(), reason(error)) == (Code.UNAUTHENTICATED, "CLUSTER_TOKEN_INVALID"), path
    await assert_at_rest(running)


async def test_a_large_body_without_a_key_is_refused_at_its_headers(running: Cluster) -> None:
    before = attack.ends(running, "http_refused_early")
    for framing in (b"content-length: 900000", b"transfer-encoding: chunked"):
        with Peer(running.address, False) as peer:
            peer.send(b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % (CHAT.encode(), framing))
            got = await aside(peer.read)
            assert got.startswith(b"HTTP/1.1 401 ") and b"key_missing" in got and peer.closed
    with Peer(running.address) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, call(CHAT, (b"content-length", b"900000"), grpc_call=False)))
        assert await aside(peer.answers) == 1
    assert attack.ends(running, "http_refused_early") == before + 3
    await assert_at_rest(running)


async def test_names_of_a_client_s_choosing_forge_no_line_and_make_no_label(
    channel: grpc.aio.Channel, running: Cluster, key: str
) -> None:
    before = running.metrics().count("\n")
    for i in range(120):
        forged = f"x{i}\n2026-01-01T00:00:00.000Z grpc 1.2.3.4:5 Complete 0 - forged model=\x1b[31m"
        error = await told(channel, small_request(forged), auth(key))
        assert error.code() is Code.NOT_FOUND
        await told(channel, b"", auth(key), f"/laya.v1.Inference/Method{i}")
        if i % 4 == 0:
            body = json.dumps({"model": forged, "messages": []}).encode()
            assert (await aside(lambda body=body: post(running.address, key, body)))[0] == 404
            assert (await aside(lambda i=i: post(running.address, key, b"{}", f"/v1/none{i}%0a")))[0] == 404
    assert running.metrics().count("\n") - before < 20
    await asyncio.sleep(0.3)  # the access log writes ten times a second
    lines = log_lines(running)
    assert not any(line.startswith("2026-01-01T00:00:00") for line in lines)
    assert not any("\x1b" in line for line in lines)
    shape = re.compile(r"\S+Z (grpc|http) \S+ \S+ \d+ \S+ [\d.]+ms( \S+=\S*)+")
    for line in lines:
        if "forged" in line:
            assert shape.fullmatch(line), line


async def test_oversize_requests_do_not_make_a_node_rest(channel: grpc.aio.Channel, running: Cluster, key: str) -> None:
    said = (("laya-model", "sim"), ("laya-prompt-tokens", "5"), ("laya-max-tokens", "5"))
    large = pb.CompleteRequest(request=pb.GenerateRequest(model="sim", text="x" * 1_500_000)).SerializeToString()
    before = events(running, "node_refused")
    for _ in range(6):
        error = await told(channel, large, auth(key, *said))
        assert (error.code(), reason(error)) == (Code.RESOURCE_EXHAUSTED, "BODY_TOO_LARGE")
    assert events(running, "node_refused") == before
    began = asyncio.get_running_loop().time()
    await channel.unary_unary(COMPLETE)(small_request(), timeout=10, metadata=auth(key))
    assert asyncio.get_running_loop().time() - began < 0.5
    await assert_at_rest(running)
