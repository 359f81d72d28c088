"""Nodes that a real store names: found, checked, followed, kept when the store is not what it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from router_node.discovery import membership as membership_module
from shared.errors import Code
from shared.pb.laya.v1 import inference_pb2
from tests.support.discovery import NodeWorld, ask, deregister, is_ready, links, refused, register, state
from tests.support.ports import until
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    async with NodeWorld() as world:
        yield world


async def test_a_registered_node_is_found_and_used(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node()
    side = await world.router("--redis", valkey.url)
    assert refused(side).code is Code.UNAVAILABLE
    await register(valkey, "n1", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    assert ask(side).node.id == "n1"


async def test_a_node_that_two_sources_name_has_one_link(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url, "--node", node.address)
    await until(lambda: [len(e.sources) for e in side.membership.entries()] == [2], "both sources name it")
    await until(is_ready(side, "n1"), "the node is ready")
    assert len(links(side)) == 1 and node.watching == 1


async def test_another_node_at_a_registered_address_is_not_used(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node("impostor")
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    detail = links(side)[0].detail
    assert "n1" in detail and "impostor" in detail
    assert side.dispatcher.nodes() == []


async def test_a_corrected_registration_is_acted_on_at_once(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node("n2")
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    await deregister(valkey, "n1")
    await register(valkey, "n2", node.address)
    await until(is_ready(side, "n2"), "the node is ready", timeout=5)


async def test_another_model_than_the_registered_one_is_not_used(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node(model="small")
    await register(valkey, "n1", node.address, model="large")
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    assert "large" in links(side)[0].detail and "small" in links(side)[0].detail


async def test_a_node_that_moves_is_followed_and_its_streams_finish(world: NodeWorld, valkey: Valkey) -> None:
    old = await world.node(boot_id="b1")
    await register(valkey, "n1", old.address, boot_id="b1")
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    await old.say(draining=True)
    new = await world.node(boot_id="b2")
    await register(valkey, "n1", new.address, boot_id="b2")
    await until(
        lambda: is_ready(side, "n1")() and side.dispatcher.node("n1").address == new.address,  # type: ignore[union-attr]
        "the new place is used",
    )
    assert ask(side).node.boot_id == "b2"


async def test_a_node_that_crashed_and_serves_elsewhere_is_shown_once(world: NodeWorld, valkey: Valkey) -> None:
    old = await world.node(boot_id="b1")
    await register(valkey, "n1", old.address, boot_id="b1")
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    await old.stop()
    new = await world.node(boot_id="b2")
    await register(valkey, "n1", new.address, boot_id="b2")
    await until(lambda: [one.address for one in links(side)] == [new.address], "its old place is forgotten", timeout=3)
    assert ask(side).node.boot_id == "b2"


async def test_a_draining_node_gets_nothing_new_and_leaves_when_it_ends(
    world: NodeWorld, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "laya.discovery")
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    await node.say(draining=True)
    await deregister(valkey, "n1")
    await until(lambda: state(side) == "draining", "the drain is seen")
    assert refused(side).reason == "NO_NODE"
    await node.stop()
    await until(lambda: not links(side), "the node has left", timeout=3)
    assert side.dispatcher.nodes() == []
    told = [record.message for record in caplog.records if record.name == "laya.discovery"]
    assert told == ["node_joined", "node_ready", "node_draining", "node_dark", "node_left"]


async def test_an_emptied_store_does_not_empty_the_pool(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    async with Redis.from_url(valkey.url) as redis:
        await redis.flushall()
    await until(lambda: [e for e in side.membership.entries() if e.orphaned_at], "the empty view was taken")
    assert ask(side).node.id == "n1"
    await node.say(running=1)
    await until(lambda: getattr(side.dispatcher.node("n1"), "running", 0) == 1, "reports still arrive")
    assert is_ready(side, "n1")()


async def test_a_node_gone_from_store_and_network_leaves(
    world: NodeWorld, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "LINGER", 0.2)
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    await deregister(valkey, "n1")
    await node.stop()
    await until(lambda: not links(side), "the node has left", timeout=5)


async def test_a_lost_store_changes_nothing_for_requests(world: NodeWorld, valkey: Valkey) -> None:
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    valkey.stop()
    source = side.membership.sources[0]
    await until(lambda: not source.health().up, "the loss is seen")
    assert ask(side).node.id == "n1"
    await node.stop()
    await until(lambda: state(side) == "dark", "the node is lost too")
    await node.start()
    await until(is_ready(side, "n1"), "the node is found again without the store")


async def test_a_link_that_leaves_lets_its_streams_finish(
    world: NodeWorld, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.net.grpc_client import stream

    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    link = links(side)[0]
    answers = stream(
        link.pool,
        b"/laya.v1.Inference/Generate",
        inference_pb2.GenerateRequest(),
        inference_pb2.GenerateResponse,
        [],
        10.0,
    )
    node.chunks.put_nowait("one")
    assert (await anext(answers)).text == "one"
    entry = next(iter(side.membership.entries()))
    side.membership._leave(entry)
    assert not links(side) and side.dispatcher.nodes() == []
    node.chunks.put_nowait("two")
    assert (await anext(answers)).text == "two"
    node.chunks.put_nowait("")
    assert [answer async for answer in answers] == []
