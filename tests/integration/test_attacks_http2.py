"""HTTP/2 used against the router: each attack ends with a counted reason, and a good client beside it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from shared.net.api import ENHANCE_YOUR_CALM
from tests.support import attack
from tests.support.attack import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GENERATE,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    Peer,
    aside,
    assert_at_rest,
    assert_logs_are_clean,
    bystander,
    call,
    ends,
    frame,
    message,
    settings,
    small_request,
)
from tests.support.processes import Cluster, Spec, cluster, metric

pytestmark = pytest.mark.integration

FLOOD_SECONDS = 0.6


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    env = {"LAYA_SERVER__HEADER_TIMEOUT": "1", "LAYA_SERVER__BODY_TIMEOUT": "1.5", "LAYA_SERVER__KEEPALIVE_TIME": "1"}
    env["LAYA_SERVER__KEEPALIVE_TIMEOUT"] = "1"
    with cluster(Spec(nodes=1, router=env)) as c:
        yield c
        assert_logs_are_clean(c)


def flood(address: str, data: bytes, seconds: float = FLOOD_SECONDS) -> int | None:
    """Send the same bytes until the router has had enough; the code of its GOAWAY, -1 when it just closed."""
    with Peer(address) as peer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not peer.send(data):
                return peer.goaway(0.5) or -1
        return peer.goaway(0.5)


FLOODS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "settings": (settings() * 500, ("flood", "settings_flood")),
    "settings that change windows": ((settings(w4=0) + settings(w4=65_535)) * 200, ("flood", "settings_flood")),
    "pings": (frame(PING, 0, 0, b"12345678") * 500, ("flood", "ping_flood")),
    "pongs": (frame(PING, 1, 0, b"12345678") * 500, ("oddity_flood",)),
    "window updates": (frame(WINDOW, 0, 0, b"\0\0\0\1") * 1500, ("window_update_flood", "flood")),
    "priorities": (frame(PRIORITY, 0, 1, b"\0\0\0\0\x10") * 1000, ("flood",)),
    "unknown frames": (frame(0xFA) * 2000, ("flood", "oddity_flood")),
    "priority updates": (frame(0x10, 0, 0, b"\0\0\0\1u=1") * 1000, ("flood", "oddity_flood")),
    "resets of idle streams": (frame(RST, 0, 1, b"\0\0\0\x08") * 500, ("protocol_error",)),
    "data without a stream": (frame(DATA, 0, 1, b"x") * 500, ("protocol_error",)),
    "pushes": (frame(5, 4, 1, b"\0\0\0\2") * 10, ("protocol_error",)),
    "garbage": (b"\xff\x00" * 3000, ("protocol_error",)),
    "frames that are too long": (b"\xff\xff\xff\0\0\0\0\0\1" * 50, ("protocol_error",)),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_own_connection_with_a_counted_reason(running: Cluster, name: str) -> None:
    data, reasons = FLOODS[name]
    before, began, memory = ends(running, *reasons), attack.cpu(running.router.popen.pid), attack.rss
    held = memory(running.router.popen.pid)
    async with bystander(running.address):
        code = await aside(lambda: flood(running.address, data))
    assert code is not None, "the connection is still there"
    assert ends(running, *reasons) > before
    assert attack.cpu(running.router.popen.pid) - began < 2.0
    assert memory(running.router.popen.pid) - held < 16 << 10
    await assert_at_rest(running)


async def test_goodbyes_without_end_are_a_flood_while_a_stream_is_open(running: Cluster) -> None:
    with Peer(running.address) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, call()) + frame(GOAWAY, 0, 0, b"\0" * 8) * 3000)
        assert await aside(peer.goaway) == ENHANCE_YOUR_CALM
    await assert_at_rest(running)


async def test_requests_cancelled_at_once_cost_a_few_of_them_and_then_the_connection(running: Cluster) -> None:
    before = ends(running, "rapid_reset", "reset_flood", "flood", "protocol_error")
    body = frame(DATA, 0, 0, message(small_request()))

    def reset() -> int | None:
        with Peer(running.address) as peer:
            for at in range(1, 30_001, 2):
                stream = at.to_bytes(4, "big")
                data = frame(HEADERS, END_HEADERS, at, call()) + body[:5] + stream + body[9:]
                if not peer.send(data + frame(RST, 0, at, b"\0\0\0\x08")):
                    break
            return peer.goaway(1.0) or -1

    async with bystander(running.address):
        assert await aside(reset) in (ENHANCE_YOUR_CALM, -1)
    assert ends(running, "rapid_reset", "reset_flood", "flood", "protocol_error") > before
    await assert_at_rest(running)


async def test_a_thousand_requests_in_one_write_are_served_and_keep_nobody_waiting(running: Cluster) -> None:
    def burst() -> int:
        data = [
            frame(HEADERS, END_HEADERS | END_STREAM, at, call("/laya.v1.Inference/Nope")) for at in range(1, 2000, 2)
        ]
        with Peer(running.address) as peer:
            peer.send(b"".join(data))
            return peer.answers(1000)

    async with bystander(running.address):
        assert await aside(burst) == 1000
    await assert_at_rest(running)


@pytest.mark.parametrize("bomb", ["one value", "many fields", "table", "continuations", "unfinished"])
async def test_a_header_bomb_is_refused_or_ends_its_own_connection(running: Cluster, bomb: str) -> None:
    pieces: list[bytes]
    if bomb == "one value":
        pieces = [call(GENERATE, (b"x-big", b"x" * 200_000))]
    elif bomb == "many fields":
        pieces = [call(GENERATE) + field_of(3) * 20_000]
    elif bomb == "table":  # one long entry, then references of a byte each to it
        pieces = [call(GENERATE) + b"\x40" + field_of(3500)[1:] + b"\xbe" * 15_000]
    elif bomb == "continuations":
        pieces = [call(GENERATE), *[b""] * 500]
    else:
        pieces = [call(GENERATE), b""]
    block = b"".join(pieces)
    if bomb in ("one value", "many fields", "table"):
        pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    held = attack.rss(running.router.popen.pid)

    def send() -> bool:
        with Peer(running.address) as peer:
            last = len(pieces) - 1 if bomb != "unfinished" else -1
            for i, piece in enumerate(pieces):
                kind = CONTINUATION if i else HEADERS
                peer.send(frame(kind, END_HEADERS * (i == last), 1, piece))
            return peer.answers() == 1 or peer.closed

    async with bystander(running.address):
        assert await aside(send), "neither refused nor closed"
    assert attack.rss(running.router.popen.pid) - held < 16 << 10
    await assert_at_rest(running)


def field_of(size: int) -> bytes:
    return attack.field(b"x", b"y" * size)


async def test_what_comes_too_slowly_is_not_waited_for(running: Cluster) -> None:
    """Half a preface, half a frame, no SETTINGS, and a request whose message never comes."""
    peers = {
        "preface": Peer(running.address, False),
        "settings": Peer(running.address, False),
        "frame": Peer(running.address),
        "message": Peer(running.address),
        "list": Peer(running.address),
        "health": Peer(running.address),
        "http": Peer(running.address),
    }
    peers["preface"].send(b"PRI * HTTP/2")
    peers["settings"].send(attack.PREFACE)
    peers["frame"].send(b"\0\0\x50\1\4\0\0\0\1abc")
    peers["message"].send(frame(HEADERS, END_HEADERS, 1, call()) + frame(DATA, 0, 1, b"\0\0\0\1"))
    peers["list"].send(frame(HEADERS, END_HEADERS, 1, call("/laya.v1.Inference/ListModels")))
    peers["health"].send(frame(HEADERS, END_HEADERS, 1, call("/grpc.health.v1.Health/Check")))
    peers["http"].send(frame(HEADERS, END_HEADERS, 1, call(attack.CHAT, grpc_call=False)) + frame(DATA, 0, 1, b"{"))
    async with bystander(running.address):
        for name in ("message", "list", "health", "http"):
            assert await aside(peers[name].answers) == 1, name
        for name in ("preface", "settings", "frame"):
            await aside(peers[name].read)
            assert peers[name].closed, name
    text = running.metrics()
    for reason in ("sniff_timeout", "no_settings", "slow_frame", "http_body_timeout"):
        assert metric(text, "laya_router_net_ends_total", reason=reason) >= 1, reason
    for peer in peers.values():
        peer.close()
    await assert_at_rest(running)


async def test_a_peer_that_answers_no_ping_is_gone_soon(running: Cluster) -> None:
    with Peer(running.address) as peer:
        peer.send(frame(SETTINGS, 1))
        await aside(peer.read)
        assert peer.closed
    assert ends(running, "keepalive_timeout") >= 1
