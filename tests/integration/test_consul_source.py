"""Nodes in Consul: found by blocking queries, registered with two checks, gone when they drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from inference_node import consul_register
from inference_node.consul_register import ConsulRegistrar
from inference_node.state import NodeState
from router_node.discovery.base import Candidate, Snapshot
from router_node.discovery.consul_source import ConsulSource
from shared.config import Config
from shared.config.schema import ConsulConfig, InferenceConfig, ServerConfig, TlsConfig
from tests.support.fake_consul import FakeConsul
from tests.support.grpc_node import GrpcNode
from tests.support.ports import until

pytestmark = pytest.mark.integration


class World:
    def __init__(self, consul: FakeConsul) -> None:
        self.consul = consul
        self.views: list[Snapshot] = []
        self.open: list[ConsulSource | ConsulRegistrar] = []

    def config(self, **more: object) -> ConsulConfig:
        return ConsulConfig(address=self.consul.address, wait=2.0, ttl=2.0, **more)  # type: ignore[arg-type]

    async def look(self, **more: object) -> ConsulSource:
        source = ConsulSource(self.config(**more))
        self.open.append(source)
        await source.start(self.views.append)
        return source

    def node(
        self, address: str = "127.0.0.1:7000", tls: TlsConfig | None = None, **more: object
    ) -> tuple[NodeState, ConsulRegistrar]:
        inference = InferenceConfig(served_model_name="m")
        server = ServerConfig(consul=self.config(**more), tls=tls or TlsConfig())
        state = NodeState(Config(server=server, inference=inference), "n1")
        registrar = ConsulRegistrar(state, address, logging.getLogger("test"))
        self.open.append(registrar)
        registrar.start("rev")
        return state, registrar

    @property
    def addresses(self) -> list[str]:
        return [candidate.address for candidate in self.views[-1]] if self.views else ["nothing yet"]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(consul_register, "BEATS", 20)
    consul = await FakeConsul().start()
    made = World(consul)
    yield made
    for one in made.open:
        await one.close()
    await consul.close()


@pytest.fixture
async def node() -> AsyncIterator[GrpcNode]:
    made = await GrpcNode().start()
    yield made
    await made.stop()


async def test_a_change_is_heard_at_once_and_meta_says_what_the_node_is(world: World) -> None:
    source = await world.look()
    await until(lambda: world.views == [()], "an empty view")
    meta = {"node_id": "n1", "boot_id": "b", "model": "m", "revision": "r"}
    await world.consul.put("x", address="10.0.0.1", port=7000, meta=meta)
    await until(lambda: world.views[-1] == (Candidate("10.0.0.1:7000", "n1", "b", "m", "r"),), "found", 1.0)
    await world.consul.put("y", port=7001)
    await until(lambda: world.addresses == ["10.0.0.1:7000", "10.0.0.9:7001"], "the agent's own address")
    assert source.health().up
    query = world.consul.queries[-1]
    assert query["passing"] == "1" and "index" in query and 1 <= int(query["wait"].rstrip("s")) <= 2


async def test_an_index_that_goes_back_begins_anew(world: World) -> None:
    await world.look()
    await world.consul.put("x", address="10.0.0.1", port=7000)
    await until(lambda: world.addresses == ["10.0.0.1:7000"], "found")
    world.consul.services.clear()
    await world.consul.change(index=1)
    await until(lambda: world.addresses == [], "seen")
    await until(lambda: any("index" not in query for query in world.consul.queries[1:]), "asked without an index")


async def test_tags_and_token_and_datacenter_go_along(world: World) -> None:
    world.consul.token = "secret"
    source = await world.look(tags=["gpu"], datacenter="dc2")
    await until(lambda: "Permission denied" in source.health().detail or "403" in source.health().detail, "refused")
    other = await world.look(tags=["gpu"], datacenter="dc2", token="secret")
    await until(lambda: other.health().up, "accepted")
    assert world.consul.queries[-1]["tag"] == "gpu" and world.consul.queries[-1]["dc"] == "dc2"


async def test_an_agent_that_talks_nonsense_or_is_away_keeps_the_view(world: World) -> None:
    source = await world.look()
    await world.consul.put("x", address="10.0.0.1", port=7000)
    await until(lambda: world.addresses == ["10.0.0.1:7000"], "found")
    for nonsense in ("junk", "HTTP/1.0 500 X\r\n\r\noh no", "HTTP/1.0 200 OK\r\nX-Consul-Index: 99\r\n\r\n{"):
        world.consul.broken = nonsense
        await world.consul.change()
        await until(lambda: not source.health().up, "noticed")
        world.consul.broken = ""
        await until(lambda: source.health().up, "well again", 15)
    assert world.addresses == ["10.0.0.1:7000"]
    await world.consul.put("bad", address="10.0.0.1", port=0)
    await until(lambda: source.rejections()["invalid"] >= 1, "counted")


async def test_an_agent_without_a_leader_keeps_the_view(world: World) -> None:
    source = await world.look()
    await world.consul.put("x", address="10.0.0.1", port=7000)
    await until(lambda: world.addresses == ["10.0.0.1:7000"], "found")
    world.consul.leader = False
    await world.consul.change()
    await until(lambda: "No cluster leader" in source.health().detail, "said")
    assert world.addresses == ["10.0.0.1:7000"]
    world.consul.leader = True
    await until(lambda: source.health().up, "well again")


async def test_a_node_registers_with_both_checks_and_leaves_when_it_drains(world: World, node: GrpcNode) -> None:
    await node.say_health(True)
    state, registrar = world.node(node.address, tags=["gpu"])
    await until(lambda: registrar.up, "registered")
    (service,) = world.consul.services.values()
    assert (service["address"], service["port"], service["tags"]) == ("127.0.0.1", node.port, ["gpu"])
    assert service["meta"]["model"] == "m" and service["meta"]["revision"] == "rev"
    grpc, ttl = service["checks"]
    assert grpc["grpc"] == f"{node.address}/laya.v1.Inference" and ttl["ttl"] == "2s"
    source = await world.look()
    await until(lambda: world.addresses == [node.address], "routers see it")
    await world.consul.forget()
    await until(lambda: world.consul.services, "an agent that forgot is told again")
    state.drain()
    await until(lambda: not world.consul.services, "gone at once", 1.0)
    state.drain(undo=True)
    await until(lambda: world.consul.services, "back")
    await registrar.close()
    assert not world.consul.services and source.health().up


async def test_a_node_that_does_not_serve_leaves_the_view_and_comes_back(world: World, node: GrpcNode) -> None:
    await node.say_health(True)
    world.node(node.address)
    await world.look()
    await until(lambda: world.addresses == [node.address], "found")
    await node.say_health(False)
    await until(lambda: world.addresses == [], "its health check fails")
    await node.say_health(True)
    await until(lambda: world.addresses == [node.address], "back")


async def test_a_node_that_falls_silent_is_critical_and_in_the_end_taken_out(
    world: World, node: GrpcNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.say_health(True)
    state, registrar = world.node(node.address)
    await world.look()
    await until(lambda: world.addresses == [node.address], "found")
    monkeypatch.setattr(consul_register, "BEATS", 0.2)  # the next word comes long after the time to live
    await until(lambda: world.addresses == [], "its time to live is over")
    world.consul.forget_scale = 0.001
    await until(lambda: world.consul.reaped == ["laya-node:n1"], "critical for too long")
    monkeypatch.setattr(consul_register, "BEATS", 20)
    world.consul.forget_scale = 1.0
    for wake in state.on_change:
        wake()
    await until(lambda: world.addresses == [node.address], "a node that speaks again is told anew")
    assert registrar.up


async def test_a_node_that_asks_for_certificates_keeps_only_the_time_to_live(world: World) -> None:
    _, registrar = world.node(tls=TlsConfig(cert_file="c", key_file="k", ca_file="a"))
    await until(lambda: registrar.up, "registered")
    (service,) = world.consul.services.values()
    assert [check["name"] for check in service["checks"]] == ["heartbeat"]
    await world.look()
    await until(lambda: world.addresses == ["127.0.0.1:7000"], "found")


async def test_an_agent_that_does_not_let_a_node_register_is_asked_again(world: World, node: GrpcNode) -> None:
    await node.say_health(True)
    world.consul.token = "secret"
    _, registrar = world.node(node.address)
    other, _ = await asyncio.gather(world.look(token="secret"), asyncio.sleep(0.1))
    await until(lambda: other.health().up, "read")
    assert not registrar.up and world.addresses == []
    world.consul.token = ""
    await until(lambda: registrar.up, "registered")
    await until(lambda: world.addresses == [node.address], "found")
