"""HTTP/2 used against the router: each attack ends with a counted reason, and a good client beside it goes on.

All of it runs on both engines.
"""

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
RAPID = 8  # connections that are cut off for it, one after another
MIB = 1 << 10  # of the KiB that ``rss`` counts


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(engine: str) -> Iterator[Cluster]:
    env = {"LAYA_SERVER__HEADER_TIMEOUT": "1", "LAYA_SERVER__BODY_TIMEOUT": "1.5", "LAYA_SERVER__KEEPALIVE_TIME": "1"}
    env["LAYA_SERVER__KEEPALIVE_TIMEOUT"] = "1"
    env["LAYA_ROUTER__HTTP2_ENGINE"] = engine
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


Reasons = dict[str, tuple[str, ...]]  # by engine; any of them will do


def both(reason: str) -> Reasons:
    """The engines' reasons where they are the same."""
    return {"ngh2": (reason,), "h2": (reason,)}


# libnghttp2 counts frames of no use itself, tells of none and calls too many a flood; h2 tells of each, so that our own
# budget for such frames acts, and names them.
USELESS: Reasons = {"ngh2": ("flood",), "h2": ("oddity_flood",)}
FLOODS: dict[str, tuple[bytes, Reasons]] = {
    "settings": (settings() * 500, both("settings_flood")),
    "settings that change windows": ((settings(w4=0) + settings(w4=65_535)) * 200, both("settings_flood")),
    # libnghttp2 allows as many answers that wait to be written as our budget allows pings: either may act.
    "pings": (frame(PING, 0, 0, b"12345678") * 500, {"ngh2": ("flood", "ping_flood"), "h2": ("ping_flood",)}),
    "pongs": (frame(PING, 1, 0, b"12345678") * 500, both("oddity_flood")),
    "window updates": (frame(WINDOW, 0, 0, b"\0\0\0\1") * 1500, both("window_update_flood")),
    "priorities": (frame(PRIORITY, 0, 1, b"\0\0\0\0\x10") * 1000, USELESS),
    "unknown frames": (frame(0xFA) * 2000, USELESS),
    "priority updates": (frame(0x10, 0, 0, b"\0\0\0\1u=1") * 1000, USELESS),
    "resets of idle streams": (frame(RST, 0, 1, b"\0\0\0\x08") * 500, both("protocol_error")),
    "data without a stream": (frame(DATA, 0, 1, b"x") * 500, both("protocol_error")),
    "pushes": (frame(5, 4, 1, b"\0\0\0\2") * 10, both("protocol_error")),
    "garbage": (b"\xff\x00" * 3000, both("protocol_error")),
    "frames that are too long": (b"\xff\xff\xff\0\0\0\0\0\1" * 50, both("protocol_error")),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_own_connection_with_a_counted_reason(running: Cluster, engine: str, name: str) -> None:
    data, by_engine = FLOODS[name]
    reasons = by_engine[engine]
    before, began, memory = ends(running, *reasons), attack.cpu(running.router.popen.pid), attack.rss
    held = memory(running.router.popen.pid)
    async with bystander(running.address):
        code = await aside(lambda: flood(running.address, data))
    assert code is not None, "the connection is still there"
    assert ends(running, *reasons) == before + 1
    assert attack.cpu(running.router.popen.pid) - began < 2.0
    assert memory(running.router.popen.pid) - held < 16 * MIB
    await assert_at_rest(running)


async def test_goodbyes_without_end_are_a_flood_while_a_stream_is_open(running: Cluster) -> None:
    before = ends(running, "oddity_flood")
    with Peer(running.address) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, call()) + frame(GOAWAY, 0, 0, b"\0" * 8) * 3000)
        assert await aside(peer.goaway) == ENHANCE_YOUR_CALM
    assert ends(running, "oddity_flood") == before + 1
    await assert_at_rest(running)


async def test_requests_cancelled_at_once_cost_their_connection_little_memory_and_nobody_else_a_call(
    running: Cluster,
) -> None:
    pid = running.router.popen.pid
    body = frame(DATA, 0, 0, message(small_request()))
    peak = 0

    def one_connection() -> int | None:
        nonlocal peak
        with Peer(running.address) as peer:
            for at in range(1, 30_001, 2):
                stream = at.to_bytes(4, "big")
                data = frame(HEADERS, END_HEADERS, at, call()) + body[:5] + stream + body[9:]
                if not peer.send(data + frame(RST, 0, at, b"\0\0\0\x08")):
                    break
                if at % 100 == 1:
                    peak = max(peak, attack.rss(pid))
            return peer.goaway(1.0) or -1

    before = ends(running, "rapid_reset")
    async with bystander(running.address) as good:
        assert await aside(one_connection) in (ENHANCE_YOUR_CALM, -1)  # takes what the first of them takes once
        held, served = attack.rss(pid), len(good.delays)
        for _ in range(RAPID):
            assert await aside(one_connection) in (ENHANCE_YOUR_CALM, -1)
        delays = good.delays[served:]
    assert ends(running, "rapid_reset") == before + 1 + RAPID
    assert peak - held < 16 * MIB, f"{(peak - held) / MIB:.1f} MiB"
    assert len(delays) >= RAPID
    assert sorted(delays)[len(delays) // 2] < 0.25, delays
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


def field_of(size: int) -> bytes:
    return attack.field(b"x", b"y" * size)


def block_of(fields: bytes) -> list[bytes]:
    """A request's header block with these fields behind the usual ones, in as many pieces as it needs."""
    block = call(GENERATE) + fields
    return [block[at : at + 16_000] for at in range(0, len(block), 16_000)]


# What each sends, and what it is counted as. Each is over one limit only, so that no other can stand in for it.
BOMBS: dict[str, tuple[list[bytes], Reasons]] = {
    # libnghttp2 takes no value over 64 KiB, whatever we set; h2 takes it, and we answer that it is too large.
    "one value": (
        block_of(attack.field(b"x-big", b"x" * 200_000)),
        {"ngh2": ("protocol_error",), "h2": ("headers_too_large",)},
    ),
    "many fields": (block_of(field_of(0) * 3000), both("flood")),
    "table": (block_of(b"\x40" + field_of(3500)[1:] + b"\xbe" * 1500), both("flood")),  # references of a byte each
    "continuations": ([call(GENERATE), *[b""] * 500], both("flood")),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_header_bomb_is_refused_or_ends_its_own_connection_at_once(
    running: Cluster, engine: str, bomb: str
) -> None:
    pieces, by_engine = BOMBS[bomb]
    (reason,) = by_engine[engine]
    before, by_keepalive = ends(running, reason), ends(running, "keepalive_timeout")
    held = attack.rss(running.router.popen.pid)

    def send() -> tuple[bool, list[int]]:
        with Peer(running.address) as peer:
            last = len(pieces) - 1
            for i, piece in enumerate(pieces):
                peer.send(frame(CONTINUATION if i else HEADERS, END_HEADERS * (i == last), 1, piece))
            answered = peer.answers() == 1
            return answered or peer.closed, [kind for kind, *_ in peer.frames()]

    async with bystander(running.address):
        over, told = await aside(send)
    assert over, "neither refused nor closed"
    assert ends(running, reason) == before + 1
    assert ends(running, "keepalive_timeout") == by_keepalive
    assert PING not in told, "it was the keep-alive that asked"
    assert attack.rss(running.router.popen.pid) - held < 16 * MIB
    await assert_at_rest(running)


async def test_a_header_block_that_never_ends_is_given_up_with_its_silent_peer(running: Cluster) -> None:
    before = ends(running, "keepalive_timeout")
    with Peer(running.address) as peer:
        peer.send(frame(HEADERS, 0, 1, call(GENERATE)) + frame(CONTINUATION, 0, 1, b""))
        async with bystander(running.address):
            await aside(peer.read)
        assert peer.closed
    assert ends(running, "keepalive_timeout") == before + 1
    await assert_at_rest(running)


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
    before = ends(running, "keepalive_timeout")
    with Peer(running.address) as peer:
        peer.send(frame(SETTINGS, 1))
        await aside(peer.read)
        assert peer.closed
    assert ends(running, "keepalive_timeout") == before + 1
