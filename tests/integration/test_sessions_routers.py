"""Sessions off the ring, in running routers: every router and every worker sends one to the same node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.pb.laya.v1 import inference_pb2
from tests.support.grpc_node import GrpcNode
from tests.support.ports import eventually
from tests.support.router import Router, RouterWorld
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

REQUEST = inference_pb2.GenerateRequest(model="m", text="hello " * 200)


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


async def sent(router: Router, nodes: list[GrpcNode], session: str) -> str:
    """The node that a request of a session goes to, over a connection of its own."""
    for node in nodes:
        while not node.chunks.empty():
            node.chunks.get_nowait()
        node.chunks.put_nowait("x")
        node.chunks.put_nowait("")
    call = router.inference.Generate(REQUEST, metadata=(("laya-session", session),), timeout=10)
    node = str(dict(await call.initial_metadata())["laya-node"])
    async for _ in call:
        pass
    return node


async def moved(router: Router, nodes: list[GrpcNode], session: str) -> str:
    """Fill up the node of a session until it goes elsewhere; where that is."""
    home = await sent(router, nodes, session)
    full = next(node for node in nodes if node.what.node_id == home)
    await full.say(headroom_tokens=0)

    async def elsewhere() -> bool:
        return await sent(router, nodes, session) != home

    await eventually(elsewhere, "the session has moved")
    other = await sent(router, nodes, session)
    await full.say(headroom_tokens=65_536)
    await asyncio.sleep(0.1)
    return other


async def follows(router: Router, nodes: list[GrpcNode], session: str, where: str, times: int = 3) -> None:
    """Wait until a session goes to a node, time after time. It may have moved more than once on its way there."""

    async def agreed() -> bool:
        return [await sent(router, nodes, session) for _ in range(times)] == [where] * times

    await eventually(agreed, f"{session} goes to {where}")


async def test_a_session_that_has_moved_is_found_by_another_router_and_after_a_restart(
    world: RouterWorld, valkey: Valkey
) -> None:
    nodes = [await world.node(f"n{i}") for i in range(3)]
    flags = [flag for node in nodes for flag in ("--node", node.address)]
    one = await (await world.router("--redis", valkey.url, *flags)).ready(3)
    two = await (await world.router("--redis", valkey.url, *flags)).ready(3)
    where = await moved(one, nodes, "chat-1")
    await follows(two, nodes, "chat-1", where)
    assert await two.metric("laya_router_pins_taken_total") >= 1
    three = await (await world.router("--redis", valkey.url, *flags)).ready(3)
    await follows(three, nodes, "chat-1", where)
    assert await three.metric("laya_router_pins_taken_total") >= 1
    assert await one.metric("laya_router_pins_acknowledged_total") >= 1


async def test_workers_tell_each_other(world: RouterWorld, valkey: Valkey) -> None:
    nodes = [await world.node(f"n{i}") for i in range(3)]
    flags = [flag for node in nodes for flag in ("--node", node.address)]
    router = await (await world.router("--redis", valkey.url, "--workers", "2", *flags)).ready(3)
    where = await moved(router, nodes, "chat-1")
    await follows(router, nodes, "chat-1", where, 6)  # every worker sends it there


async def test_an_acknowledged_session_survives_the_end_of_router_and_store_at_once(world: RouterWorld) -> None:
    nodes = [await world.node(f"n{i}") for i in range(3)]
    store = Valkey(durable=True)
    try:
        store.start()
        flags = ["--redis", store.url, *(flag for node in nodes for flag in ("--node", node.address))]
        env = {"LAYA_ROUTER__MODE": "persistent"}
        one = await (await world.router(*flags, env=env)).ready(3)
        where = await moved(one, nodes, "chat-1")

        async def acknowledged() -> bool:
            return await one.metric("laya_router_pins_acknowledged_total") >= 1

        await eventually(acknowledged, "it is durable")
        one.proc.kill()
        store.stop()  # SIGKILL too
        store.start()
        two = await (await world.router(*flags, env=env)).ready(3)
        await follows(two, nodes, "chat-1", where)
        assert await two.metric("laya_router_pins_taken_total") >= 1
    finally:
        store.close()
