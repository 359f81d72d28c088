"""Nodes join, prove who they are, go dark, come back and leave, over real sockets and a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from redis.asyncio import Redis

from router_node.config import parse
from router_node.discovery import link as link_module
from router_node.discovery import membership as membership_module
from router_node.discovery.link import Link
from router_node.discovery.registration import Registration, events_channel, index_key, node_key, sign
from router_node.dispatch import Ask, Reservation
from router_node.node_side import NodeSide, configured_sources
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2
from tests.support.certs import Authority, Pair
from tests.support.grpc_node import GrpcNode
from tests.support.ports import free_port, until
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration


class World:
    """Nodes, a store, and the side of a router that looks for nodes."""

    def __init__(self) -> None:
        self.nodes: list[GrpcNode] = []
        self.sides: list[NodeSide] = []

    async def node(self, node_id: str = "n1", model: str = "m", **more: str) -> GrpcNode:
        node = await GrpcNode(node_id, model, **more).start()
        self.nodes.append(node)
        return node

    async def router(self, *flags: str) -> NodeSide:
        config = parse(["--admin-port", "0", *flags]).config
        side = NodeSide(config, configured_sources(config))
        self.sides.append(side)
        await side.start()
        return side

    async def close(self) -> None:
        for side in self.sides:
            await side.close()
        for node in self.nodes:
            await node.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        await world.close()


async def register(
    valkey: Valkey, node_id: str, address: str, *, token: str = "", boot_id: str = "b1", model: str = "m"
) -> None:
    record = Registration(
        node_id=node_id, boot_id=boot_id, address=address, model=model, issued_at=time.time(), ttl=60.0
    )
    async with Redis.from_url(valkey.url) as redis:
        await redis.set(node_key("laya", node_id), sign(record, "laya", token.encode()), ex=60)
        await redis.sadd(index_key("laya"), node_id)
        await redis.publish(events_channel("laya"), "1")


async def deregister(valkey: Valkey, node_id: str) -> None:
    async with Redis.from_url(valkey.url) as redis:
        await redis.delete(node_key("laya", node_id))
        await redis.srem(index_key("laya"), node_id)
        await redis.publish(events_channel("laya"), "1")


def mutual_tls(pair: Pair, authority: Authority) -> grpc.ServerCredentials:
    """Credentials of a server that lets in only whom the authority knows."""
    chain = (Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())
    return grpc.ssl_server_credentials([chain], Path(authority.file).read_bytes(), require_client_auth=True)


def links(side: NodeSide) -> list[Link]:
    return [entry.link for entry in side.membership.entries()]


def state(side: NodeSide, at: int = 0) -> str:
    found = links(side)
    return found[at].state if len(found) > at else "absent"


def is_ready(side: NodeSide, node_id: str) -> Callable[[], bool]:
    def look() -> bool:
        node = side.dispatcher.node(node_id)
        return node is not None and node.state == "ready"

    return look


def ask(side: NodeSide, model: str = "m") -> Reservation:
    granted = side.dispatcher.submit(Ask(model, prompt_tokens=10, max_new_tokens=10), _unexpected, _unexpected)
    assert isinstance(granted, Reservation)
    granted.end()
    return granted


def refused(side: NodeSide, model: str = "m") -> LayaError:
    with pytest.raises(LayaError) as caught:
        side.dispatcher.submit(Ask(model, prompt_tokens=10, max_new_tokens=10), _unexpected, _unexpected)
    return caught.value


def _unexpected(what: object) -> None:
    raise AssertionError(f"called with {what}")


async def test_a_static_node_is_described_watched_and_used(world: World) -> None:
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    granted = ask(side)
    assert granted.node.id == "n1" and granted.node.upstream is links(side)[0].pool
    spec = granted.node.spec
    assert (spec.model, spec.aliases, spec.max_seq_len, spec.engine) == ("m", ("m-alias",), 4096, "sim")
    assert (spec.kv_capacity_tokens, spec.max_num_seqs, spec.default_max_tokens) == (65_536, 64, 128)
    assert granted.id.startswith(node.watchers[0].encode() + b"-")
    assert [info.name for info in side.table.models()] == ["m"]
    assert ask(side, "m-alias").node.id == "n1"


async def test_a_registered_node_is_found_and_used(world: World, valkey: Valkey) -> None:
    node = await world.node()
    side = await world.router("--redis", valkey.url)
    assert refused(side).code is Code.NOT_FOUND
    await register(valkey, "n1", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    assert ask(side).node.id == "n1"


async def test_a_node_that_two_sources_name_has_one_link(world: World, valkey: Valkey) -> None:
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url, "--node", node.address)
    await until(lambda: [len(e.sources) for e in side.membership.entries()] == [2], "both sources name it")
    await until(is_ready(side, "n1"), "the node is ready")
    assert len(links(side)) == 1 and node.watching == 1


async def test_reports_reach_the_dispatcher(world: World) -> None:
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await node.say(headroom_tokens=1024, running=3)
    await until(lambda: getattr(side.dispatcher.node("n1"), "headroom", 0) == 1024, "the report arrived")
    await node.say(closed_reason="memory is short")
    await until(lambda: state(side) == "closed", "the closed admission is seen")
    assert links(side)[0].detail == "memory is short"
    await node.say(closed_reason="", ready=False)
    await until(lambda: state(side) == "starting", "a node that warms up is seen")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"protocol": 2}, "protocol 2"),
        ({"protocol": 0}, "protocol 0"),
        ({"node_id": ""}, "does not say its id"),
    ],
)
async def test_a_node_that_speaks_otherwise_is_reported_and_not_used(
    world: World, change: dict[str, object], said: str
) -> None:
    node = await world.node()
    for name, value in change.items():
        setattr(node.what, name, value)
    side = await world.router("--node", node.address)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    assert said in links(side)[0].detail
    assert refused(side).code is Code.NOT_FOUND and node.watchers == []


async def test_another_node_at_a_registered_address_is_not_used(world: World, valkey: Valkey) -> None:
    node = await world.node("impostor")
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    detail = links(side)[0].detail
    assert "n1" in detail and "impostor" in detail
    assert side.dispatcher.nodes() == []


async def test_a_corrected_registration_is_acted_on_at_once(world: World, valkey: Valkey) -> None:
    node = await world.node("n2")
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    await deregister(valkey, "n1")
    await register(valkey, "n2", node.address)
    await until(is_ready(side, "n2"), "the node is ready", timeout=5)


async def test_another_model_than_the_registered_one_is_not_used(world: World, valkey: Valkey) -> None:
    node = await world.node(model="small")
    await register(valkey, "n1", node.address, model="large")
    side = await world.router("--redis", valkey.url)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    assert "large" in links(side)[0].detail and "small" in links(side)[0].detail


async def test_a_node_with_another_token_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "our-secret")
    node = await world.node(token="theirs")
    side = await world.router("--node", node.address)
    await until(lambda: state(side) == "mismatch", "the refusal is seen")
    assert "refuses this router" in links(side)[0].detail and "our-secret" not in links(side)[0].detail


async def test_the_token_goes_with_every_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "our-secret")
    node = await world.node(token="our-secret")
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "described and watched with the token")
    await links(side)[0].drain(0, undo=False)
    assert len(node.drains) == 1


async def test_nodes_are_spoken_to_over_mutual_tls(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    theirs, ours = authority.pair("node"), authority.pair("router")
    node = GrpcNode()
    node.credentials = mutual_tls(theirs, authority)
    world.nodes.append(await node.start())
    monkeypatch.setenv("LAYA_ROUTER__NODE_TLS__CA_FILE", authority.file)
    stranger = await world.router("--node", node.address)
    monkeypatch.setenv("LAYA_ROUTER__NODE_TLS__CERT_FILE", ours.cert)
    monkeypatch.setenv("LAYA_ROUTER__NODE_TLS__KEY_FILE", ours.key)
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await until(lambda: links(stranger)[0].pool.last_error, "a router without a certificate is not let in")
    assert stranger.dispatcher.nodes() == []


async def test_a_node_that_dies_is_dark_at_once_and_back_when_it_returns(world: World) -> None:
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await node.stop()
    await until(lambda: state(side) == "dark", "the loss is seen", timeout=2)
    assert refused(side).reason == "NO_NODE"
    node.what.boot_id = node.report.boot_id = "b2"
    await node.start()
    await until(is_ready(side, "n1"), "the node is used again")
    assert ask(side).node.boot_id == "b2"


async def test_a_node_that_is_away_at_the_start_is_found_later(world: World) -> None:
    node = GrpcNode()
    node.port = free_port()
    world.nodes.append(node)
    side = await world.router("--node", node.address)
    await until(lambda: links(side)[0].pool.last_error, "a failed dial")
    assert links(side)[0].trouble and side.not_ready().startswith("no node is ready")
    await node.start()
    await until(is_ready(side, "n1"), "the node is used")


async def test_a_node_that_comes_back_as_another_is_known_as_that(world: World) -> None:
    node = await world.node("n1", "m")
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await node.stop()
    await until(lambda: state(side) == "dark", "the loss is seen")
    node.what.node_id, node.what.model.name = "n2", "m2"
    await node.start()
    await until(is_ready(side, "n2"), "the new node is used")
    assert side.dispatcher.node("n1") is None
    assert [info.name for info in side.table.models()] == ["m2"]


async def test_two_nodes_with_one_id_are_not_both_used(world: World) -> None:
    first = await world.node("n1")
    side = await world.router("--node", first.address)
    await until(is_ready(side, "n1"), "the first node is ready")
    second = await world.node("n1", boot_id="b2")
    other = await world.router("--node", first.address, "--node", second.address)
    await until(lambda: sorted(link.state for link in links(other)) == ["mismatch", "ready"], "one of them is refused")
    refused_link = next(link for link in links(other) if link.state == "mismatch")
    assert "already in use" in refused_link.detail


async def test_a_node_with_two_addresses_is_used_through_one(world: World) -> None:
    node = await world.node()
    side = await world.router("--node", node.address, "--node", f"localhost:{node.port}")
    await until(lambda: sorted(link.state for link in links(side)) == ["mismatch", "ready"], "one of them is enough")
    assert len(side.dispatcher.nodes()) == 1
    assert "linked at" in next(link.detail for link in links(side) if link.state == "mismatch")


async def test_a_node_that_moves_is_followed_and_its_streams_finish(world: World, valkey: Valkey) -> None:
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


async def test_a_draining_node_gets_nothing_new_and_leaves_when_it_ends(
    world: World, valkey: Valkey, caplog: pytest.LogCaptureFixture
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


async def test_an_emptied_store_does_not_empty_the_pool(world: World, valkey: Valkey) -> None:
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
    world: World, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "LINGER", 0.2)
    node = await world.node()
    await register(valkey, "n1", node.address)
    side = await world.router("--redis", valkey.url)
    await until(is_ready(side, "n1"), "the node is ready")
    await deregister(valkey, "n1")
    await node.stop()
    await until(lambda: not links(side), "the node has left", timeout=5)


async def test_a_lost_store_changes_nothing_for_requests(world: World, valkey: Valkey) -> None:
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


async def test_a_silent_watch_is_opened_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENCE", 0.3)
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await until(lambda: len(node.watchers) >= 2, "a second watch", timeout=5)
    assert len(set(node.watchers)) == 1
    assert is_ready(side, "n1")(), "a late report does not black out a node"
    await until(lambda: node.watching <= 1, "the old watch was ended")


async def test_a_frozen_node_goes_dark(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENCE", 0.3)
    monkeypatch.setattr(link_module, "CALL_TIMEOUT", 0.3)
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    node.silent = True
    await until(lambda: state(side) == "dark", "the silence is seen", timeout=5)
    assert "does not answer" in links(side)[0].detail
    assert refused(side).reason == "NO_NODE"
    node.silent = False
    await node.say(ready=True)
    await until(is_ready(side, "n1"), "the node is used again", timeout=10)


async def test_what_answers_but_is_no_node_is_said_to_be_none(world: World) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        side = await world.router("--node", f"127.0.0.1:{port}")
        await until(lambda: "cannot be asked" in links(side)[0].detail, "the wrong server is seen")
        assert state(side) == "dark" and side.dispatcher.nodes() == []
    finally:
        await server.stop(None)


async def test_closing_leaves_no_task_and_no_connection(world: World) -> None:
    node = await world.node()
    before = {task for task in asyncio.all_tasks() if not task.done()}
    side = await world.router("--node", node.address, "--node", f"127.0.0.1:{free_port()}")
    await until(is_ready(side, "n1"), "the node is ready")
    async with asyncio.timeout(5):
        await side.close()
    await until(lambda: node.watching == 0, "the watch ended")
    ours = {t for t in asyncio.all_tasks() if not t.done()} - before
    assert not [task.get_name() for task in ours if task.get_name().startswith(("link-", "membership", "leave-"))]
    world.sides.clear()


async def test_a_link_that_leaves_lets_its_streams_finish(
    world: World, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
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
