"""A router stays awake between requests that come one after another, and goes to sleep when they stop."""

from __future__ import annotations

import asyncio

import pytest

from shared.cpus import usable_cpus
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.rogue_node import RogueCall, RogueNode
from tests.support.router import Router

pytestmark = pytest.mark.integration

WINDOW = 10_000  # microseconds: a request of a slow machine still comes within it
TURNS = "laya_router_busy_poll_turns_total"


def answer(call: RogueCall) -> None:
    call.pour_out(frame(pb.CompleteResponse(model="m").SerializeToString()), 1)


@pytest.mark.parametrize("window", [WINDOW, 0])
async def test_it_is_awake_between_requests_and_asleep_after_them(rogue: RogueNode, window: int) -> None:
    router = Router("--node", rogue.address, env={"LAYA_ROUTER__BUSY_POLL_US": str(window)})
    try:
        await (await router.start()).ready()
        rogue.behave = answer
        stub = router.inference
        request = pb.CompleteRequest(request=pb.GenerateRequest(model="m", text="hi"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 30
        while not await router.metric(TURNS):
            for _ in range(100):
                await stub.Complete(request, timeout=10)
            if not window or usable_cpus() < 2:
                assert not await router.metric(TURNS)
                return
            assert loop.time() < deadline, "it was never awake"
        while True:  # looking is no request: once the window has passed nothing keeps it awake
            before = await router.metric(TURNS)
            await asyncio.sleep(0.05)
            if await router.metric(TURNS) == before:
                break
            assert loop.time() < deadline, "it does not go to sleep"
    finally:
        await router.stop()
