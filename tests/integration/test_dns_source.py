"""Nodes behind DNS names, by a real resolver and a name server that says what it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from router_node.discovery import dns_source
from router_node.discovery.base import Candidate, Snapshot
from router_node.discovery.dns_source import DnsSource
from shared.config.schema import DnsConfig
from tests.support.fake_dns import FakeDns
from tests.support.ports import until

pytestmark = pytest.mark.integration


class World:
    def __init__(self, server: FakeDns) -> None:
        self.server = server
        self.views: list[Snapshot] = []
        self.sources: list[DnsSource] = []

    async def look(self, name: str = "tasks.node", port: int = 7000, **more: str) -> DnsSource:
        config = DnsConfig(name=name, port=port, interval=1.0, **more)  # type: ignore[arg-type]
        source = DnsSource(config, servers=["127.0.0.1"], server_port=self.server.port)
        self.sources.append(source)
        await source.start(self.views.append)
        return source

    @property
    def addresses(self) -> list[str]:
        return [candidate.address for candidate in self.views[-1]] if self.views else ["nothing yet"]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(dns_source, "_LEAST", 0.05)
    monkeypatch.setattr(dns_source, "_LIFETIME", 0.3)
    server = await FakeDns().start()
    made = World(server)
    yield made
    for source in made.sources:
        await source.close()
    server.close()


async def test_every_address_of_both_kinds_is_a_node_and_changes_are_followed(world: World) -> None:
    world.server.ttl = 0
    world.server.records["tasks.node", "A"] = ["10.0.0.2", "10.0.0.1"]
    world.server.records["tasks.node", "AAAA"] = ["fd00::1"]
    source = await world.look(model="m", revision="r")
    await until(lambda: source.health().up, "looked up")
    assert world.views == [
        (
            Candidate("10.0.0.1:7000", model="m", revision="r"),
            Candidate("10.0.0.2:7000", model="m", revision="r"),
            Candidate("[fd00::1]:7000", model="m", revision="r"),
        )
    ]
    world.server.records["tasks.node", "A"] = ["10.0.0.3"]
    await until(lambda: world.addresses == ["10.0.0.3:7000", "[fd00::1]:7000"], "the new answer")


async def test_srv_records_say_host_and_port(world: World) -> None:
    world.server.records["_laya._tcp.x", "SRV"] = ["0 0 7001 a.x.", "0 0 7002 b.x."]
    await world.look("_laya._tcp.x", 0)
    await until(lambda: world.addresses == ["a.x:7001", "b.x:7002"], "both")


async def test_a_name_without_records_is_empty_and_one_that_cannot_be_asked_keeps_its_view(world: World) -> None:
    world.server.ttl = 0
    world.server.records["tasks.node", "A"] = ["10.0.0.1"]
    source = await world.look()
    await until(lambda: world.addresses == ["10.0.0.1:7000"], "found")
    world.server.rcode = 2  # SERVFAIL
    await until(lambda: not source.health().up, "the failure is seen")
    assert "tasks.node cannot be looked up" in source.health().detail
    world.server.rcode = None
    world.server.silent = True
    asked = world.server.asked
    await until(lambda: world.server.asked > asked + 1, "asked again")
    assert len(world.views) == 1
    world.server.silent = False
    await until(lambda: source.health().up, "back")
    assert len(world.views) == 1
    del world.server.records["tasks.node", "A"]
    await until(lambda: world.addresses == [], "empty")


async def test_an_answer_is_kept_for_its_time_to_live_unless_a_node_was_lost(world: World) -> None:
    world.server.ttl = 60
    world.server.records["tasks.node", "A"] = ["10.0.0.1"]
    source = await world.look()
    await until(lambda: world.views, "found")
    asked = world.server.asked
    source.look_now()
    await until(lambda: world.server.asked > asked, "asked at once", 0.8)
