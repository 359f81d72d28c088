"""Pins in a real store: written behind, heard by others, found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from router_node.sessions import store as module
from router_node.sessions.pins import Pin
from router_node.sessions.store import PinStore
from tests.support.ports import eventually, until
from tests.support.routes import Sites, rule
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration


class World:
    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.stores: list[PinStore] = []

    async def store(self, name: str, heard: list[Pin], **more: Any) -> PinStore:
        more.setdefault("limit", 1000)
        made = PinStore(self.valkey.url, "c", name, heard.extend, op_timeout=0.5, **more)
        self.stores.append(made)
        await made.start()
        await until(lambda: made.up, "the store was reached")
        return made


@pytest.fixture
async def world(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "BLOCK", 0.2)
    made = World(valkey)
    yield made
    await asyncio.gather(*(store.close() for store in made.stores))


async def test_a_pin_is_acknowledged_and_heard_by_others_alone(world: World) -> None:
    mine: list[Pin] = []
    others: list[Pin] = []
    one = await world.store("one", mine)
    await world.store("two", others)
    pins = [Pin(2**64 - 1 - i, f"node-{i % 3}", i * 100) for i in range(500)]
    for pin in pins:
        one.offer(pin)
    await until(lambda: one.acknowledged == 500, "all are written")
    await until(lambda: len(set(others)) == 500, "all are heard")
    # On a slow machine some are written, or read, twice.
    assert sorted(set(others)) == sorted(pins) and not mine and not len(one.backlog)


async def test_a_restarted_router_finds_what_was_written(world: World) -> None:
    one = await world.store("one", [])
    one.offer(Pin(7, "a", 10))
    await until(lambda: one.acknowledged == 1, "written")
    one.offer(Pin(7, "b", 20))
    await until(lambda: one.acknowledged == 2, "written")
    heard: list[Pin] = []
    await world.store("later", heard)
    await until(lambda: heard, "read")
    assert heard == [Pin(7, "b", 20)]


async def test_of_several_slices_of_time_the_newest_word_comes_last_and_old_ones_expire(world: World) -> None:
    now = 1_000_000.0
    one = await world.store("one", [], clock=lambda: now)
    one.offer(Pin(1, "old", 1))
    await until(lambda: one.acknowledged == 1, "written")
    now += module.TTL / 2
    one.offer(Pin(1, "new", 2))
    await until(lambda: one.acknowledged == 2, "written")
    heard: list[Pin] = []
    await world.store("later", heard, clock=lambda: now)
    await until(lambda: len(heard) == 2, "read")
    assert heard[-1] == Pin(1, "new", 2)
    redis = Redis.from_url(world.valkey.url)
    keys = [key async for key in redis.scan_iter("laya:c:pins:1*")]
    assert len(keys) == 2 and all([0 < await redis.ttl(key) <= module.TTL * 1.25 + 1 for key in keys])
    await redis.aclose()


async def test_a_store_that_is_away_costs_nothing_and_gets_everything_in_the_end(world: World) -> None:
    one = await world.store("one", [], limit=50)
    world.valkey.stop()
    for i in range(80):
        one.offer(Pin(i, "a", 1))
    await until(lambda: not one.up, "the loss is noticed")
    assert (len(one.backlog), one.backlog.dropped) == (50, 30)
    world.valkey.start()
    await until(lambda: one.acknowledged == 50, "written after all", 15)
    heard: list[Pin] = []
    await world.store("two", heard)
    await until(lambda: len(heard) == 50, "all there")


async def test_what_is_not_of_our_making_is_passed_over(world: World) -> None:
    heard: list[Pin] = []
    one = await world.store("one", heard)
    redis = Redis.from_url(world.valkey.url)
    await redis.xadd("laya:c:pins:log", {"pins": b"junk"})
    await redis.xadd("laya:c:pins:log", {"else": b"x"})
    await redis.hset(one._slice(one._clock()), mapping={b"short": b"1 a", b"12345678": b"x a", b"87654321": b"5 a"})
    await redis.aclose()
    late: list[Pin] = []
    await world.store("two", late)
    await until(lambda: late, "read")
    assert [pin.node_id for pin in late] == ["a"] and all(pin.node_id == "a" for pin in heard)


async def test_persistent_mode_says_what_the_store_does_not_do(world: World) -> None:
    one = await world.store("one", [], durable=True)
    await until(lambda: "appendonly yes" in one.trouble, "named")
    redis = Redis.from_url(world.valkey.url)
    await redis.config_set("appendonly", "yes")
    await redis.config_set("appendfsync", "always")
    await redis.aclose()
    two = await world.store("two", [], durable=True)
    two.offer(Pin(1, "a", 1))
    await until(lambda: two.acknowledged == 1, "acknowledged")
    assert two.trouble == ""


async def test_acknowledged_pins_survive_a_killed_store() -> None:
    valkey = Valkey(durable=True)
    world = World(valkey)
    try:
        valkey.start()
        one = await world.store("one", [], durable=True)
        for i in range(300):
            one.offer(Pin(i, "a", i))
        await until(lambda: one.acknowledged == 300, "acknowledged")
        assert one.trouble == ""
        valkey.stop()  # SIGKILL
        valkey.start()
        heard: list[Pin] = []
        await world.store("later", heard)
        await until(lambda: len(heard) == 300, "all there")
        assert sorted(heard) == [Pin(i, "a", i) for i in range(300)]
    finally:
        await asyncio.gather(*(store.close() for store in world.stores))
        valkey.close()


async def test_with_a_replica_a_pin_is_acknowledged_once_the_replica_has_it_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.0)
    monkeypatch.setattr(module, "_WAIT_MS", 200)
    one = await world.store("one", [], durable=True)
    one.offer(Pin(1, "a", 1))
    await until(lambda: one.acknowledged == 1, "without a replica")
    replica = Valkey()
    try:
        replica.start()
        await _follow(world.valkey, replica)
        replica.freeze()
        one.offer(Pin(2, "a", 1))
        await until(lambda: not one.up, "it is not there, and that is said")
        assert one.acknowledged == 1
        replica.thaw()
        await until(lambda: one.acknowledged == 2, "now it is", 15.0)
    finally:
        replica.close()


async def _follow(master: Valkey, replica: Valkey) -> None:
    """Make one the replica of the other, in step with it."""
    first, second = Redis.from_url(master.url), Redis.from_url(replica.url)
    try:
        await first.config_set("repl-diskless-sync-delay", "0")
        await second.replicaof("127.0.0.1", str(first.connection_pool.connection_kwargs["port"]))

        async def online() -> bool:
            info = await first.info("replication")
            return info["connected_slaves"] == 1 and info["slave0"]["state"] == "online"

        await eventually(online, "the replica is in step")
    finally:
        await first.aclose()
        await second.aclose()


async def test_a_user_with_few_rights_is_enough(world: World) -> None:
    redis = Redis.from_url(world.valkey.url)
    rights = ["+@read", "+@write", "+@scripting", "+@connection", "+@transaction", "+wait", "+time"]
    await redis.execute_command("ACL", "SETUSER", "router", "on", ">pw", "resetkeys", "~laya:*", "-@all", *rights)
    await redis.aclose()
    url = world.valkey.url.replace("redis://", "redis://router:pw@")
    heard: list[Pin] = []
    one = PinStore(url, "c", "one", heard.extend, limit=100, durable=True, op_timeout=0.5)
    world.stores.append(one)
    await one.start()
    one.offer(Pin(1, "a", 1))
    await until(lambda: one.acknowledged == 1, "written")
    assert "is not known" in one.trouble
    sites = Sites(url)
    try:
        site = await sites.one()
        await site.put(rule("a"))
        await site.shows("a")
    finally:
        await sites.close()
