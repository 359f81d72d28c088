"""What many of them may hold at once: readers that stop, nodes that stop, half messages, and ten thousand idlers."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator

import grpc.aio
import pytest

from shared.net.grpc_wire import frame as grpc_frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import attack
from tests.support.attack import DATA, END_HEADERS, GENERATE, HEADERS, Peer, aside, call, frame, settings
from tests.support.ports import until
from tests.support.processes import Cluster, Spec, cluster
from tests.support.rogue_node import RogueCall, RogueNode
from tests.support.router import Router
from tests.support.uploader import WINDOW_AT_FIRST, Uploader

pytestmark = pytest.mark.integration

MIB = 1 << 10  # of the KiB that ``rss`` counts
STALLED = 200
STREAM = 64 << 20  # bytes of each stream that is not read
IDLE = 10_000
SDK = ((b"laya-model", b"m"), (b"laya-prompt-tokens", b"3"), (b"laya-max-tokens", b"3"))


@pytest.fixture
async def router(rogue: RogueNode, honest: RogueNode) -> AsyncIterator[Router]:
    honest.behave = answer
    made = await Router("--node", rogue.address, "--node", honest.address).start()
    try:
        yield await made.ready(2)
    finally:
        await made.stop()
        assert "Traceback" not in made.proc.output()


async def at_rest(router: Router, rogue: RogueNode) -> None:
    await router.metric_is("laya_router_requests_in_flight", 0)
    await router.metric_is("laya_router_reservations", 0)
    await until(lambda: rogue.open == 1, "the watch alone is open at the node")


def answer(node_call: RogueCall) -> None:
    """64 MiB to those who generate, one small message to the others."""
    if node_call.method == b"Generate":
        node_call.pour_out(grpc_frame(pb.GenerateResponse(text="x" * 16_000).SerializeToString()), STREAM)
    else:
        node_call.pour_out(grpc_frame(pb.CompleteResponse(model="m").SerializeToString()), 1)


async def silent(rogue: RogueNode) -> None:
    """Until nobody takes any more."""
    before = -1
    while rogue.poured != before:
        before = rogue.poured
        await asyncio.sleep(0.3)


async def quick(router: Router, model: str = "m") -> float:
    """How long a small call takes."""
    began = asyncio.get_running_loop().time()
    await router.inference.Complete(pb.CompleteRequest(request=pb.GenerateRequest(model=model, text="hi")), timeout=20)
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("shut", ["socket", "window"])
async def test_200_clients_that_stop_reading_64_mib_cost_under_64_mib_and_slow_nobody(
    router: Router, rogue: RogueNode, shut: str
) -> None:
    rogue.behave = answer
    await quick(router)
    held = attack.rss(router.proc.popen.pid)
    # Either the client reads nothing, or it leaves its streams' windows as they are and reads the socket no further.
    windows = (
        settings(w4=0x7FFF_FFFF) + frame(8, 0, 0, (0x7FFE_0000).to_bytes(4, "big")) if shut == "socket" else settings()
    )
    peers = [Peer(router.public, True, windows, buffer=4096) for _ in range(STALLED)]
    ask = frame(HEADERS, END_HEADERS, 1, call(GENERATE, *SDK)) + frame(DATA, 1, 1, attack.message(b""))
    assert attack.send_all(peers, ask) == STALLED
    await until(lambda: rogue.seen >= STALLED, "every stream is at the node")
    await silent(rogue)
    delays = [await quick(router) for _ in range(20)]
    taken = attack.rss(router.proc.popen.pid) - held
    assert taken < 64 * MIB, f"{taken / MIB:.1f} MiB"
    assert sorted(delays)[len(delays) // 2] < 0.25, delays
    for peer in peers:
        peer.close()
    await at_rest(router, rogue)


async def test_a_client_with_its_windows_shut_is_told_nothing_and_holds_little(
    router: Router, rogue: RogueNode
) -> None:
    rogue.behave = answer
    await quick(router)
    held = attack.rss(router.proc.popen.pid)
    with Peer(router.public, True, settings(w4=0)) as peer:
        asks = [
            frame(HEADERS, END_HEADERS, at, call(GENERATE, *SDK)) + frame(DATA, 1, at, attack.message(b""))
            for at in range(1, 400, 2)
        ]
        peer.send(b"".join(asks))
        await until(lambda: rogue.seen >= 200, "every stream is at the node")
        await asyncio.sleep(0.3)
        assert attack.rss(router.proc.popen.pid) - held < 40 * MIB
        assert await quick(router) < 1.0
    await at_rest(router, rogue)


@pytest.mark.parametrize("shut", ["socket", "window"])
async def test_200_uploads_of_64_mib_to_a_node_that_stops_reading_cost_under_64_mib_and_slow_nobody(
    router: Router, rogue: RogueNode, honest: RogueNode, shut: str
) -> None:
    rogue.behave = answer
    await quick(router)
    rogue.deaf, rogue.reads = shut == "socket", shut == "socket"
    held = attack.rss(router.proc.popen.pid)
    loop = asyncio.get_running_loop()
    uploads = [Uploader(router.public, STREAM, *SDK).start() for _ in range(STALLED)]
    try:
        delays: list[float] = []
        before, since = -1, loop.time()
        while loop.time() - since < 1.0:  # until nobody has been able to send for a second
            delays.append(await quick(router, "good"))
            taken = attack.rss(router.proc.popen.pid) - held
            sent = sum(upload.sent for upload in uploads)
            assert taken < 64 * MIB, f"{taken / MIB:.1f} MiB of {sent >> 20} MiB sent"
            if sent != before:
                before, since = sent, loop.time()
        assert all(WINDOW_AT_FIRST - 5 <= upload.sent < STREAM and not upload.over for upload in uploads)
        assert sorted(delays)[len(delays) // 2] < 0.25, delays
    finally:
        await asyncio.gather(*(upload.stop() for upload in uploads))
        rogue.reads = True
        rogue.hear_again()
    await at_rest(router, rogue)
    assert await quick(router) < 1.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=1, router={"LAYA_SERVER__MAX_BODY_BYTES": "4000000"})) as c:
        yield c
        attack.assert_logs_are_clean(c)


async def test_first_messages_that_are_never_whole_are_bounded_together(running: Cluster) -> None:
    held = attack.rss(running.router.popen.pid)
    body = attack.message(b"x" * 250_000)[:60_000]

    def upload() -> list[Peer]:
        peers = [Peer(running.address) for _ in range(3)]
        for at in range(1, 1000, 2):
            pieces = [frame(DATA, 0, at, body[i : i + 16_000]) for i in range(0, len(body), 16_000)]
            attack.send_all(peers, frame(HEADERS, END_HEADERS, at, call()) + b"".join(pieces))
        return peers

    async with attack.bystander(running.address):
        peers = await aside(upload)  # 90 MB, of which eight bodies' worth may be held
        assert attack.rss(running.router.popen.pid) - held < 72 * MIB
    assert attack.events(running, "uploads_full") > 0
    for peer in peers:
        peer.close()
    await attack.assert_at_rest(running)


async def test_ten_thousand_idle_connections_cost_under_32_kib_each(
    running: Cluster, record_property: pytest.RecordProperty
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE, (hard if hard != resource.RLIM_INFINITY else 1 << 20) - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 400), hard))
    held = attack.rss(running.router.popen.pid)
    writers: list[asyncio.StreamWriter] = []
    host, _, port = running.address.rpartition(":")

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=2048)
        writers.append(writer)
        writer.write(attack.PREFACE + settings() + frame(4, 1))
        await reader.readexactly(9)

    try:
        async with attack.bystander(running.address):
            for at in range(0, count, 250):
                await asyncio.gather(*(one() for _ in range(min(250, count - at))))
            each = (attack.rss(running.router.popen.pid) - held) / count
            record_property("kib_per_idle_connection", round(each, 1))
            print(f"{count} idle connections: {each:.1f} KiB each")
            assert each < 32
    finally:
        for writer in writers:
            writer.transport.abort()
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: attack.metric(running.metrics(), "laya_router_requests_in_flight") == 0, "at rest")
    async with grpc.aio.insecure_channel(running.address) as channel:
        await attack.Bystander(channel).once()
