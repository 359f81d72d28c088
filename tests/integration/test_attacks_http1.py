"""HTTP/1.1 used against the router: smuggling, halves, drips and floods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.support import attack
from tests.support.attack import CHAT, Peer, aside, assert_at_rest, assert_logs_are_clean, bystander, ends
from tests.support.processes import Cluster, Spec, cluster, metric

pytestmark = pytest.mark.integration

HOST = b"host: x\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    env = {
        "LAYA_SERVER__HEADER_TIMEOUT": "1",
        "LAYA_SERVER__BODY_TIMEOUT": "1",
        "LAYA_SERVER__MAX_BODY_BYTES": "8000000",
    }
    with cluster(Spec(nodes=1, router=env)) as c:
        yield c
        assert_logs_are_clean(c)


def chat(**fields: object) -> bytes:
    message = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "sim", "messages": message, "max_tokens": 2, **fields}).encode()


def post(*headers: bytes, body: bytes = b"", target: bytes = CHAT.encode()) -> bytes:
    return b"POST %b HTTP/1.1\r\n" % target + HOST + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body


SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
# Everything that two readers could take for different requests. None may be served, and nothing after it.
SMUGGLING: dict[str, bytes] = {
    "both lengths": post(b"content-length: 5", b"transfer-encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "both lengths, other order": post(
        b"transfer-encoding: chunked", b"content-length: 5", body=b"0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": post(b"content-length: 0", b"content-length: 5", body=b"01234" + SMUGGLED),
    "two equal lengths": post(b"content-length: 5", b"content-length: 5", body=b"01234" + SMUGGLED),
    "a list of lengths": post(b"content-length: 5, 5", body=b"01234" + SMUGGLED),
    "a signed length": post(b"content-length: +5", body=b"01234" + SMUGGLED),
    "a hex length": post(b"content-length: 0x5", body=b"01234" + SMUGGLED),
    "an empty length": post(b"content-length:", body=SMUGGLED),
    "a huge length": post(b"content-length: 99999999999999999999", body=SMUGGLED),
    "two codings": post(b"transfer-encoding: chunked", b"transfer-encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "another coding": post(b"transfer-encoding: gzip, chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "identity": post(b"transfer-encoding: identity", b"content-length: 5", body=b"01234" + SMUGGLED),
    "a coding with a tail": post(b"transfer-encoding: chunkedx", body=b"0\r\n\r\n" + SMUGGLED),
    "a coding with a tab": post(b"transfer-encoding:\x0bchunked", body=b"0\r\n\r\n" + SMUGGLED),
    "a space before the colon": post(b"transfer-encoding : chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "a folded header": post(b"x: a", b" transfer-encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "a bare LF in headers": b"POST / HTTP/1.1\nhost: x\ncontent-length: 0\n\n" + SMUGGLED,
    "a bare CR in a value": post(b"x: a\rcontent-length: 5", body=b"01234" + SMUGGLED),
    "a NUL in a value": post(b"x: a\0b", body=SMUGGLED),
    "a bad chunk size": post(b"transfer-encoding: chunked", body=b"-1\r\n\r\n" + SMUGGLED),
    "a huge chunk size": post(b"transfer-encoding: chunked", body=b"fffffffffffffffff\r\n" + SMUGGLED),
    "a chunk without its end": post(b"transfer-encoding: chunked", body=b"3\r\nabcX0\r\n\r\n" + SMUGGLED),
    "a chunk ended by LF": post(b"transfer-encoding: chunked", body=b"3\nabc\n0\n\n" + SMUGGLED),
    "an old version with chunks": b"POST / HTTP/1.0\r\n"
    + HOST
    + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two hosts": post(b"host: y", body=SMUGGLED),
    "no host": b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n" + SMUGGLED,
    "a bad host": b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n" + SMUGGLED,
    "a header without a name": post(b": x", body=SMUGGLED),
    "a method in lower case": b"get / HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED,
    "a space in the target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED,
    "another version": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n" + SMUGGLED,
    "connect": b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED,
    "binary": bytes(range(128, 256)) * 20 + b"\r\n\r\n" + SMUGGLED,
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_what_could_be_read_in_two_ways_is_refused_and_ends_the_connection(running: Cluster, name: str) -> None:
    with Peer(running.address, False) as peer:
        peer.send(SMUGGLING[name])
        got = await aside(peer.read)
        assert peer.closed
    heads = [line for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert len(heads) == 1, heads
    assert 400 <= int(heads[0].split()[1]) <= 505, heads
    assert b"smuggled" not in got
    error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"].endswith(".") and error["code"]


async def test_each_refusal_was_counted_and_nobody_else_noticed(running: Cluster) -> None:
    text = running.metrics()
    for reason in ("http_framing", "http_malformed", "http_host", "http_garbage", "http_version", "http_target"):
        assert metric(text, "laya_router_net_ends_total", reason=reason) >= 1, reason
    async with bystander(running.address):
        pass
    await assert_at_rest(running)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"G",
        b"GET /v1/mod",
        GET[:-2],
        post(b"content-length: 500", body=b"{"),
        post(b"transfer-encoding: chunked", body=b"5\r\nab"),
    ],
)
async def test_a_part_of_a_request_and_a_closed_socket_leave_nothing(running: Cluster, part: bytes) -> None:
    peers = [Peer(running.address, False) for _ in range(30)]
    assert attack.send_all(peers, part) == 30
    async with bystander(running.address):
        for peer in peers:
            peer.close()
    await assert_at_rest(running)


async def test_drips_have_their_time_and_no_more(running: Cluster) -> None:
    slow = {
        "http_header_timeout": Peer(running.address, False),
        "http_body_timeout": Peer(running.address, False),
    }
    slow["http_header_timeout"].send(b"GET / HTTP/1.1\r\nx-a: ")
    slow["http_body_timeout"].send(post(b"content-length: 50", body=b"{"))

    def drip() -> None:
        for _ in range(8):
            slow["http_header_timeout"].send(b"a")
            time.sleep(0.2)

    async with bystander(running.address):
        await aside(drip)
        for name, peer in slow.items():
            got = await aside(peer.read)
            assert got.startswith(b"HTTP/1.1 408 "), name
            assert peer.closed and ends(running, name) >= 1
            peer.close()
    await assert_at_rest(running)


async def test_a_body_in_chunks_of_two_bytes_takes_no_more_than_its_length(running: Cluster) -> None:
    held = attack.rss(running.router.popen.pid)
    with Peer(running.address, False) as peer:
        peer.send(post(b"transfer-encoding: chunked"))
        piece = b"2\r\nxx\r\n" * 5000

        def upload() -> int:
            return sum(peer.send(piece) for _ in range(300))  # 3 MB of content

        async with bystander(running.address):
            assert await aside(upload) == 300
        assert attack.rss(running.router.popen.pid) - held < 24 << 10
    await assert_at_rest(running)


async def test_a_large_body_costs_a_router_no_more_than_its_length(running: Cluster) -> None:
    body = chat(x="y" * 7_500_000)
    began = attack.cpu(running.router.popen.pid)
    with Peer(running.address, False) as peer:
        peer.send(post(b"content-length: %d" % len(body), body=body))
        got = await aside(lambda: peer.read(10.0, lambda got: b"chat.completion" in got))
        assert got.startswith(b"HTTP/1.1 200 "), got[:200]
    assert attack.cpu(running.router.popen.pid) - began < 0.5
    await assert_at_rest(running)


async def test_requests_ahead_without_a_reader_keep_nobody_waiting(running: Cluster) -> None:
    peers = [Peer(running.address, False, timeout=0.5) for _ in range(4)]

    def send() -> None:
        for _ in range(4):
            attack.send_all(peers, GET * 2000)

    async with bystander(running.address, worst=1.5):
        await aside(send)
    for peer in peers:
        peer.close()
    await assert_at_rest(running)


async def test_an_answer_cannot_be_split_by_what_a_client_sends(running: Cluster) -> None:
    for request in (
        GET.replace(b"\r\n\r\n", b"\r\nx-request-id: a b\r\n\r\n"),
        GET.replace(b"\r\n\r\n", b"\r\nx-request-id: " + b"x" * 300 + b"\r\n\r\n"),
        b"GET /v1/models/%0d%0aset-cookie:%20a=1 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /%0d%0ax HTTP/1.1\r\n" + HOST + b"\r\n",
    ):
        with Peer(running.address, False) as peer:
            peer.send(request)
            got = await aside(lambda peer=peer: peer.read(2.0, lambda all_of_it: all_of_it.endswith(b"}")))
            head = got.partition(b"\r\n\r\n")[0]
            assert b"set-cookie" not in head
            assert head.count(b"x-request-id: req-") == 1, head
