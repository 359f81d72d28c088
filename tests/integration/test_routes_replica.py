"""The table of routes in a real store: one table on every router, whatever happens to the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from router_node.routes import replica as module
from router_node.routes.saved import Saver
from router_node.routes.wire import keys_of
from shared.errors import LayaError
from tests.support.ports import until
from tests.support.routes import Sites, rule
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

KEYS = keys_of("c")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits that guard against what other routers may know, shortened."""
    for name, seconds in (("FRESH", 0.05), ("FIRST", 0.3), ("SETTLE", 0.5), ("BLOCK", 0.2)):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
async def sites(valkey: Valkey) -> AsyncIterator[Sites]:
    made = Sites(valkey.url)
    yield made
    await made.close()


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Any]:
    client = Redis.from_url(valkey.url)
    yield client
    await client.aclose()


async def test_a_change_reaches_every_router_in_order(sites: Sites) -> None:
    one, two, three = [await sites.one() for _ in range(3)]
    await one.put(rule("a"))
    await two.shows("a")
    outcome = await two.put(rule("b"))
    assert outcome.change is not None and outcome.change.number == 2
    await three.shows("a", "b")
    await three.remove("a")
    for site in (one, two, three):
        await site.shows("b")
    assert {site.version for site in (one, two, three)} == {(one.version[0], 3)}
    assert [change.author for change in one.manager.history] == ["test", "test"]
    late = await sites.one()
    await late.shows("b")
    assert late.version == one.version
    assert [change.number for change in late.manager.history] == [2, 3]


async def test_of_two_changes_to_one_version_one_is_told_to_look_again(sites: Sites) -> None:
    one, two = await sites.one(), await sites.one()
    await one.put(rule("a"))
    await two.shows("a")
    results = await asyncio.gather(one.put(rule("b")), two.put(rule("c")), return_exceptions=True)
    failed = [result for result in results if isinstance(result, LayaError)]
    assert len(failed) == 1 and failed[0].reason == "VERSION_MOVED"
    with pytest.raises(LayaError, match="version 2"):
        await one.put(rule("d"), expected=1)
    await until(lambda: one.version == two.version == (one.version[0], 2), "both at version 2")
    await until(lambda: one.names == two.names and len(one.names) == 2, "requests go by it")


async def test_rules_of_the_configuration_begin_the_table_only_where_there_is_none(sites: Sites) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await one.put(rule("b"))
    two = await sites.one(rule("other"))
    await two.shows("a", "b")
    assert two.version == one.version


async def test_an_emptied_store_is_written_anew_and_a_deleted_route_stays_deleted(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"), rule("b"))
    await one.shows("a", "b")
    behind = await sites.one()
    await behind.shows("a", "b")
    await behind.replica.close()  # it misses what follows, and comes back first
    await one.remove("a")
    await one.replica.close()
    await redis.flushall()
    await behind.replica.start()
    await until(lambda: behind.replica.reseeds == 1, "the older table was written")
    await one.replica.start()
    await behind.shows("b")
    await one.shows("b")
    assert one.version == behind.version
    fresh = await sites.one(rule("a"))
    await fresh.shows("b")
    await one.put(rule("c"))
    await fresh.shows("b", "c")


async def test_no_change_slips_in_while_the_newest_table_finds_its_way_back(
    sites: Sites, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE", 1.5)
    one = await sites.one(rule("a"))
    await one.shows("a")
    behind = await sites.one()
    await behind.shows("a")
    await behind.replica.close()
    await one.put(rule("b"))
    await one.replica.close()
    await redis.flushall()
    await behind.replica.start()
    await until(lambda: behind.replica.reseeds == 1, "the older table was written")
    late = asyncio.create_task(behind.put(rule("x")))
    await one.replica.start()
    await behind.shows("a", "b")
    with pytest.raises(LayaError, match="VERSION_MOVED"):
        await late
    await behind.put(rule("x"))
    await one.shows("a", "b", "x")


async def test_writes_lost_in_a_fail_over_come_back_from_the_routers(sites: Sites, redis: Any) -> None:
    one, two = await sites.one(rule("a")), await sites.one()
    await two.shows("a")
    kept = {key: await redis.dump(key) for key in KEYS}
    await one.put(rule("b"))
    await two.shows("a", "b")
    for key, raw in kept.items():
        await redis.restore(key, 0, raw, replace=True)
    await until(lambda: one.replica.reseeds + two.replica.reseeds == 1, "written anew by one of them")
    await two.put(rule("c"))
    await one.shows("a", "b", "c")


async def test_another_lineage_in_the_store_wins(sites: Sites, redis: Any, valkey: Valkey) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    other = Sites(valkey.url.replace("/0", "/1"))
    elsewhere = await other.one(rule("z"))
    await elsewhere.shows("z")
    await other.close()
    for key in KEYS:
        await redis.delete(key)
        await redis.execute_command("MOVE", key, 1)
    second = Redis.from_url(valkey.url.replace("/0", "/1"))
    pipe = redis.pipeline()
    for key in KEYS:
        pipe.restore(key, 0, await second.dump(key), replace=True)
    await pipe.execute()
    await second.aclose()
    await one.shows("z")
    assert one.replica.reloads["lineage"] == 1 and one.replica.reseeds <= 1


async def test_a_trimmed_log_is_noticed_and_the_table_read_whole(sites: Sites, redis: Any) -> None:
    one, two = await sites.one(rule("a")), await sites.one()
    await two.shows("a")
    await two.replica.close()
    for i in range(5):
        await one.put(rule(f"b{i}"))
    await redis.xtrim(KEYS.log, maxlen=2, approximate=False)
    await two.replica.start()
    await two.shows("a", *(f"b{i}" for i in range(5)))
    assert sum(two.replica.reloads.values()) == 2
    assert [change.number for change in two.manager.history] == [5, 6]


async def test_a_log_that_is_gone_does_not_stop_the_table(sites: Sites, redis: Any) -> None:
    one, two = await sites.one(rule("a")), await sites.one()
    await two.shows("a")
    await redis.delete(KEYS.log)
    await one.put(rule("b"))
    await two.shows("a", "b")


async def test_a_rule_that_is_not_ours_is_left_out_and_counted(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"), rule("b"))
    await one.shows("a", "b")
    stored = await redis.hget(KEYS.table, "b")
    await redis.hset(KEYS.table, mapping={"junk": "x", "moved": stored, "b": stored.replace(b'"p"', b'"q"')})
    two = await sites.one()
    await two.shows("a")
    assert two.replica.rejected == 3
    stranger = await sites.one(token="another")
    await until(lambda: stranger.replica.rejected, "nothing is believed under another token")
    assert stranger.names == []


async def test_a_router_that_cannot_read_all_rules_neither_keeps_nor_tells_what_it_has(
    sites: Sites, redis: Any, tmp_path: Path
) -> None:
    one = await sites.one(rule("a"), rule("b"))
    await one.shows("a", "b")
    await one.put(rule("c"))
    stranger = await sites.one(token="another")
    saver = Saver(tmp_path / "routes")
    stranger.manager.listeners.append(saver.heard)
    await until(lambda: stranger.replica.trouble, "said")
    assert "cluster_token" in stranger.replica.trouble and not one.replica.trouble
    await one.remove("b")
    await until(lambda: stranger.version == one.version, "it follows all the same")
    await saver.close()
    assert not (tmp_path / "routes").exists()
    await one.close()
    await redis.flushall()
    await until(lambda: not stranger.replica.up, "it writes nothing")
    assert "could not read all" in stranger.replica.detail and not await redis.exists(*KEYS)


async def test_a_count_left_behind_by_a_writer_that_knows_of_none_means_nothing(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"), rule("b"))
    await one.shows("a", "b")
    assert await redis.hmget(KEYS.head, "rules", "counted") == [b"2", b"1"]
    await one.remove("b")
    assert await redis.hmget(KEYS.head, "rules", "counted") == [b"1", b"2"]
    await redis.hset(KEYS.head, mapping={"rules": 7, "counted": 1})
    two = await sites.one()
    await two.shows("a")
    assert not two.replica.trouble


async def test_junk_among_the_rules_does_not_keep_a_router_from_writing_them_anew(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await redis.hset(KEYS.table, "junk", "x")
    two = await sites.one()
    await two.shows("a")
    await one.close()
    await redis.flushall()
    await until(lambda: two.replica.reseeds, "written anew")
    assert await redis.hkeys(KEYS.table) == [b"a"]


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_of_somebody_elses_kind_is_named_and_nothing_is_lost(sites: Sites, redis: Any, key: str) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await redis.delete(key)
    await redis.set(key, "x")
    with pytest.raises(LayaError) as caught:
        await one.put(rule("b"))
    assert key in str(caught.value) or "WRONGTYPE" in str(caught.value) or "cannot be read" in str(caught.value)
    assert one.names == ["a"]
    await redis.delete(key)
    await until(lambda: one.replica.up, "the store can be used again")
    if key == KEYS.table:
        await redis.delete(KEYS.head)  # nobody but its owner can know that rules are missing
        await until(lambda: one.replica.reseeds, "written anew")
        await asyncio.sleep(module.SETTLE)
    await one.put(rule("b"))
    await one.shows("a", "b")


async def test_a_table_of_a_newer_format_is_left_alone(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await redis.hset(KEYS.head, "format", "9")
    await until(lambda: "format '9'" in one.replica.detail, "the format is named")
    assert one.names == ["a"]
    with pytest.raises(LayaError, match="format"):
        await one.put(rule("b"))
    assert await redis.hget(KEYS.head, "format") == b"9"


async def test_a_store_without_memory_refuses_the_change_whole(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await redis.config_set("maxmemory", "1")
    with pytest.raises(LayaError, match="maxmemory"):
        await one.put(rule("b"), rule("c"))
    assert (await redis.hget(KEYS.head, "number"), await redis.hlen(KEYS.table)) == (b"1", 1)
    assert one.names == ["a"]
    await redis.config_set("maxmemory", "0")
    await one.put(rule("b"))
    await one.shows("a", "b")


async def test_a_read_only_store_is_said_to_be_so(sites: Sites, redis: Any) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(LayaError, match="(?i)read.?only|MASTERDOWN|cannot be read"):
        await one.put(rule("b"))
    assert one.names == ["a"]


async def test_a_frozen_store_is_noticed_and_caught_up_with(sites: Sites, valkey: Valkey) -> None:
    one, two = await sites.one(rule("a")), await sites.one()
    await two.shows("a")
    valkey.freeze()
    began = time.monotonic()
    await until(lambda: not one.replica.up and not two.replica.up, "both notice", 5.0)
    assert time.monotonic() - began < 3.0
    assert one.names == ["a"]
    valkey.thaw()
    await one.up()
    await one.put(rule("b"))
    await two.shows("a", "b")


async def test_a_restarted_empty_store_gets_the_table_back(sites: Sites, valkey: Valkey) -> None:
    one = await sites.one(rule("a"))
    await one.shows("a")
    version = one.version
    valkey.stop()
    await until(lambda: not one.replica.up, "the loss is noticed")
    with pytest.raises(LayaError, match="Nothing was changed"):
        async with asyncio.timeout(8.0):
            await one.put(rule("b"))
    valkey.start()
    await until(lambda: one.replica.reseeds == 1, "written anew")
    late = await sites.one()
    await late.shows("a")
    assert late.version == version == one.version


async def test_many_quick_changes_are_all_taken_in_order_with_few_swaps(sites: Sites) -> None:
    writer = await sites.one(rule("a"))
    readers = [await sites.one() for _ in range(3)]
    await asyncio.gather(*(reader.shows("a") for reader in readers))
    before = readers[0].manager.swaps
    began = time.monotonic()
    for i in range(60):
        await writer.put(rule("a", pool=f"p{i}"))
    spent = time.monotonic() - began
    for reader in readers:
        await until(lambda reader=reader: reader.version == writer.version, "all at the last version")
        await until(lambda reader=reader: reader.table.live.number == writer.version[1], "and live")
        assert reader.table.live is not None and reader.table.live.rules["a"].targets[0].pool == "p59"
        assert [change.number for change in reader.manager.history] == list(range(2, 62))
        assert reader.replica.reloads.total() == 1  # the first one
    assert readers[0].manager.swaps - before <= spent / 0.02 + 3
