"""Clients that stop reading answers that could go on elsewhere cost no more than those of any other answer."""

from __future__ import annotations

import asyncio

import pytest

from shared import headers as names
from shared.net.grpc_wire import frame as grpc_frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import attack
from tests.support.attack import DATA, END_HEADERS, GENERATE, HEADERS, Peer, call, frame, settings
from tests.support.ports import until
from tests.support.rogue_node import HEAD, RogueCall, RogueNode
from tests.support.router import Router

pytestmark = pytest.mark.integration

MIB = 1 << 10  # of the KiB that ``rss`` counts
STALLED = 200
STREAM = 64 << 20  # bytes of each stream that is not read
SDK = ((b"laya-model", b"m"), (b"laya-prompt-tokens", b"3"), (b"laya-max-tokens", b"3"))
ASKED = pb.GenerateRequest(model="m", text="hi").SerializeToString()


@pytest.mark.parametrize("size", [16_000, 100_000, 250_000])
async def test_200_clients_that_stop_reading_journalled_streams_cost_under_64_mib(rogue: RogueNode, size: int) -> None:
    piece = grpc_frame(pb.GenerateResponse(text="x" * size, token_ids=[1]).SerializeToString())

    def pour(node_call: RogueCall) -> None:
        node_call.pour_out(piece, STREAM, [*HEAD, (names.JOURNAL, b"1")])

    rogue.behave = pour
    router = Router("--node", rogue.address)
    try:
        await (await router.start()).ready()
        held = attack.rss(router.proc.popen.pid)
        peers = [Peer(router.public, True, settings(), buffer=4096) for _ in range(STALLED)]
        ask = frame(HEADERS, END_HEADERS, 1, call(GENERATE, *SDK)) + frame(DATA, 1, 1, attack.message(ASKED))
        assert attack.send_all(peers, ask) == STALLED
        await until(lambda: rogue.seen >= STALLED, "every stream is at the node")
        before = -1
        while rogue.poured != before:  # until nobody takes any more
            before = rogue.poured
            await asyncio.sleep(0.3)
        taken = attack.rss(router.proc.popen.pid) - held
        assert taken < 64 * MIB, f"{taken / MIB:.1f} MiB"
        for peer in peers:
            peer.close()
        await router.metric_is("laya_router_requests_in_flight", 0)
    finally:
        await router.stop()
