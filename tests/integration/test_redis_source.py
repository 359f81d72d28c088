"""Nodes found in a real store: what is believed, how fast, and what happens when the store goes away."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from router_node.discovery import redis_source
from router_node.discovery.base import Candidate, Snapshot
from router_node.discovery.redis_source import RedisSource
from router_node.discovery.registration import Registration, events_channel, index_key, node_key, sign
from tests.support.ports import until
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

TOKEN = "a cluster token"


class World:
    """A source on a real store, and a hand to write into the store."""

    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.views: list[Snapshot] = []
        self.redis = Redis.from_url(valkey.url)
        self.source: RedisSource | None = None

    async def watch(self, token: str = TOKEN, interval: float = 0.1) -> RedisSource:
        self.source = RedisSource(self.valkey.url, "laya", token, interval=interval, op_timeout=0.3)
        await self.source.start(self.views.append)
        return self.source

    async def register(
        self, node_id: str, port: int, *, token: str = TOKEN, host: str = "127.0.0.1", ttl: float = 8.0
    ) -> None:
        record = Registration(
            node_id=node_id, boot_id="b1", address=f"{host}:{port}", model="m", issued_at=time.time(), ttl=ttl
        )
        await self.write(node_id, sign(record, "laya", token.encode()), ttl)

    async def write(self, node_id: str, raw: bytes, ttl: float = 8.0) -> None:
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.set(node_key("laya", node_id), raw, px=int(ttl * 1000))
            pipe.sadd(index_key("laya"), node_id)
            pipe.publish(events_channel("laya"), "1")
            await pipe.execute()

    @property
    def ids(self) -> list[str]:
        return [node.node_id for node in self.views[-1]] if self.views else []

    async def close(self) -> None:
        if self.source is not None:
            await self.source.close()
        await self.redis.aclose()


@pytest.fixture
async def world(valkey: Valkey) -> AsyncIterator[World]:
    world = World(valkey)
    try:
        yield world
    finally:
        await world.close()


async def test_registered_nodes_are_found(world: World) -> None:
    await world.register("n2", 9002)
    await world.register("n1", 9001)
    source = await world.watch()
    await until(lambda: world.views, "a first view")
    assert world.views == [(Candidate("127.0.0.1:9001", "n1", "b1", "m"), Candidate("127.0.0.1:9002", "n2", "b1", "m"))]
    assert source.health().up


async def test_an_empty_store_is_an_empty_view(world: World) -> None:
    await world.watch()
    await until(lambda: world.views, "a first view")
    assert world.views == [()]


async def test_an_announcement_hurries_the_next_read(world: World) -> None:
    await world.watch(interval=30.0)
    await until(lambda: world.views, "a first view")
    await until(lambda: _subscribed(world.valkey), "the subscription")
    start = time.monotonic()
    await world.register("n1", 9001)
    await until(lambda: world.ids == ["n1"], "the announced node")
    assert time.monotonic() - start < 5


async def test_a_node_that_falls_silent_leaves_the_view(world: World) -> None:
    await world.register("n1", 9001, ttl=0.4)
    await world.watch()
    await until(lambda: world.ids == ["n1"], "the node")
    await until(lambda: world.views[-1] == (), "the node's expiry")


async def test_bad_records_are_counted_by_reason_and_do_not_hide_good_ones(world: World) -> None:
    await world.register("good", 9001)
    await world.register("foreign", 9002, token="another token")
    await world.write("garbage", b"\x00" * 100)
    await world.write("huge", b"x" * 10_000)
    copied = await world.redis.get(node_key("laya", "good"))
    assert isinstance(copied, bytes)
    await world.write("moved", copied)
    await world.redis.sadd(index_key("laya"), "not a node id", b"\xff\xfe")
    source = await world.watch()
    await until(lambda: world.ids == ["good"], "the good node alone")
    counted = {reason for reason, count in source.rejected.items() if count}
    assert counted == {"foreign", "garbage", "oversize", "moved", "invalid"}


async def test_a_refused_record_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.register("n1", 9001, token="another token")
    source = await world.watch(interval=0.06)
    await until(lambda: source.rejected["foreign"] >= 3, "three reads")
    assert [r.message for r in caplog.records if r.name == "laya.discovery.redis"].count("record_rejected") == 1


async def test_without_a_token_only_loopback_nodes_are_believed(world: World) -> None:
    await world.register("near", 9001, token="")
    await world.register("far", 9002, token="", host="10.0.0.1")
    source = await world.watch(token="")
    await until(lambda: world.ids == ["near"], "the near node alone")
    assert source.rejected["untrusted"] >= 1


async def test_a_store_that_goes_away_publishes_nothing(world: World) -> None:
    await world.register("n1", 9001)
    source = await world.watch()
    await until(lambda: world.ids == ["n1"], "the node")
    world.valkey.stop()
    await until(lambda: not source.health().up, "the loss is seen")
    assert str(world.valkey.port) in source.health().detail
    views = len(world.views)
    world.valkey.start()
    await until(lambda: source.health().up, "the store is read again", timeout=15)
    await until(lambda: len(world.views) > views, "the emptied store is seen")
    assert world.views[-1] == ()


async def test_a_store_that_is_away_at_the_start_is_found_later(world: World) -> None:
    world.valkey.stop()
    source = await world.watch()
    await until(lambda: "cannot be read" in source.health().detail, "a failed read")
    assert world.views == []
    world.valkey.start()
    await until(lambda: world.views == [()], "a first view", timeout=15)


async def test_a_frozen_store_does_not_hang_a_read(world: World) -> None:
    source = await world.watch()
    await until(lambda: source.health().up, "a first read")
    world.valkey.freeze()
    await until(lambda: not source.health().up, "the half-open connection is seen", timeout=5)
    world.valkey.thaw()
    await until(lambda: source.health().up, "the store is read again", timeout=15)


async def test_a_half_open_subscription_is_dropped(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_source, "_PING_EVERY", 0.3)
    ends: list[str] = []

    class Watched(RedisSource):
        async def _hear(self, pubsub: Any) -> None:
            try:
                await super()._hear(pubsub)
            except Exception as error:
                ends.append(str(error))
                raise

    source = Watched(valkey.url, "laya", TOKEN, interval=0.1, op_timeout=0.3)
    await source.start(lambda view: None)
    try:
        await until(lambda: _subscribed(valkey), "the subscription")
        await asyncio.sleep(1.2)  # idle, but alive: PINGs are answered
        assert ends == []
        valkey.freeze()
        await until(lambda: ends, "the subscription is given up", timeout=5)
        valkey.thaw()
        await until(lambda: _subscribed(valkey), "a new subscription", timeout=15)
    finally:
        valkey.thaw()
        await source.close()


async def test_closing_does_not_wait_for_a_frozen_store(world: World) -> None:
    source = await world.watch()
    await until(lambda: source.health().up, "a first read")
    world.valkey.freeze()
    try:
        async with asyncio.timeout(3):
            await source.close()
    finally:
        world.valkey.thaw()


async def test_a_password_never_shows(caplog: pytest.LogCaptureFixture) -> None:
    server = Valkey(password="hunter2hunter2")
    server.start()
    views: list[Snapshot] = []
    source = RedisSource(server.url, "laya", TOKEN, interval=0.1, op_timeout=0.3)
    wrong = RedisSource(server.url.replace("hunter2hunter2", "wrongwrong"), "laya", TOKEN, interval=0.1)
    try:
        await source.start(views.append)
        await wrong.start(views.append)
        await until(lambda: source.health().up, "a read with the password")
        await until(lambda: "cannot be read" in wrong.health().detail, "a refused password")
        server.stop()
        await until(lambda: not source.health().up, "the loss is seen")
        said = source.health().detail + wrong.health().detail + caplog.text
        assert "hunter2" not in said and "wrongwrong" not in said
    finally:
        await source.close()
        await wrong.close()
        server.close()


def _subscribed(valkey: Valkey) -> bool:
    from redis import Redis as Plain

    with Plain.from_url(valkey.url) as client:
        return bool(client.pubsub_numsub(events_channel("laya"))[0][1])


async def test_records_of_a_foreign_type_or_size_cost_little_and_hide_nobody(world: World) -> None:
    await world.register("good", 9001)
    await world.write("giant", b"x" * (48 << 20))
    await world.redis.lpush(node_key("laya", "list"), "a", "b")
    await world.redis.hset(node_key("laya", "hash"), "a", "b")
    await world.redis.sadd(index_key("laya"), "list", "hash", "absent")
    tracemalloc.start()
    try:
        source = await world.watch()
        await until(lambda: world.ids == ["good"], "the good node alone")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert source.rejected["oversize"] >= 1 and source.rejected["garbage"] >= 2
    await world.redis.delete(node_key("laya", "list"), node_key("laya", "hash"))
