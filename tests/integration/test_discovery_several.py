"""Nodes from every kind of source at once, and what stays when all that can be emptied are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from router_node.config import parse
from router_node.discovery import dns_source
from router_node.discovery import membership as membership_module
from router_node.discovery.consul_source import ConsulSource
from router_node.discovery.dns_source import DnsSource
from router_node.discovery.redis_source import RedisSource
from router_node.discovery.static import StaticSource
from router_node.node_side import NodeSide
from shared.config.schema import ConsulConfig, DnsConfig
from tests.support.discovery import NodeWorld, ask, is_ready, links, register, state
from tests.support.fake_consul import FakeConsul
from tests.support.fake_dns import FakeDns
from tests.support.ports import until
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

IDS = ("static", "stored", "named", "consul")


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    async with NodeWorld() as world:
        yield world


@pytest.fixture
async def dns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeDns]:
    monkeypatch.setattr(dns_source, "_LEAST", 0.05)
    server = await FakeDns().start()
    yield server
    server.close()


@pytest.fixture
async def consul() -> AsyncIterator[FakeConsul]:
    agent = await FakeConsul().start()
    yield agent
    await agent.close()


async def test_nodes_of_four_sources_serve_together_and_outlive_their_sources(
    world: NodeWorld, valkey: Valkey, dns: FakeDns, consul: FakeConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "LINGER", 0.2)
    static, stored, named, agents = [await world.node(node_id) for node_id in IDS]
    await register(valkey, "stored", stored.address)
    dns.records["nodes.test", "SRV"] = [f"0 0 {named.port} 127.0.0.1."]
    meta = {"node_id": "consul", "boot_id": "b1", "model": "m"}
    await consul.put("x", address="127.0.0.1", port=agents.port, meta=meta)
    sources = [
        StaticSource([static.address]),
        RedisSource(valkey.url, "laya", "", interval=0.1),
        DnsSource(DnsConfig(name="nodes.test", interval=1.0), servers=["127.0.0.1"], server_port=dns.port),
        ConsulSource(ConsulConfig(address=consul.address, wait=2.0)),
    ]
    side = NodeSide(parse(["--admin-port", "0"]).config, sources)
    world.sides.append(side)
    await side.start()
    for node_id in IDS:
        await until(is_ready(side, node_id), f"{node_id} is ready")
    assert side.membership.settled

    async with Redis.from_url(valkey.url) as redis:
        await redis.flushall()
    dns.records.clear()
    await consul.forget()
    await until(lambda: sum(bool(e.sources) for e in side.membership.entries()) == 1, "three sources name nobody")
    assert all(is_ready(side, node_id)() for node_id in IDS)  # each can be reached, and serves on
    ask(side).end()

    await agents.stop()
    await until(lambda: len(links(side)) == 3, "one that nobody names and nobody reaches leaves")
    assert all(is_ready(side, node_id)() for node_id in IDS if node_id != "consul")


async def test_a_node_of_consul_that_serves_another_model_is_reported_and_not_used(
    world: NodeWorld, consul: FakeConsul
) -> None:
    node = await world.node("n1", "other")
    meta = {"node_id": "n1", "boot_id": "b1", "model": "m", "revision": "r"}
    await consul.put("x", address="127.0.0.1", port=node.port, meta=meta)
    side = NodeSide(parse(["--admin-port", "0"]).config, [ConsulSource(ConsulConfig(address=consul.address, wait=2.0))])
    world.sides.append(side)
    await side.start()
    await until(lambda: state(side) == "mismatch", "seen")
    assert "registered model m but serves other" in links(side)[0].detail
    assert side.dispatcher.node("n1") is None
    await consul.put("x", address="127.0.0.1", port=node.port, meta={**meta, "model": "other", "revision": ""})
    await until(is_ready(side, "n1"), "a corrected registration is acted on")
