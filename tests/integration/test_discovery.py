"""Nodes join, prove who they are, go dark and come back, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from router_node.discovery import link as link_module
from shared.errors import Code
from tests.support.certs import Authority
from tests.support.discovery import NodeWorld, ask, is_ready, links, mutual_tls, refused, state
from tests.support.grpc_node import GrpcNode
from tests.support.ports import free_port, until

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    async with NodeWorld() as world:
        yield world


async def test_a_static_node_is_described_watched_and_used(world: NodeWorld) -> None:
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


async def test_reports_reach_the_dispatcher(world: NodeWorld) -> None:
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
    world: NodeWorld, change: dict[str, object], said: str
) -> None:
    node = await world.node()
    for name, value in change.items():
        setattr(node.what, name, value)
    side = await world.router("--node", node.address)
    await until(lambda: state(side) == "mismatch", "the mismatch is seen")
    assert said in links(side)[0].detail
    assert refused(side).code is Code.UNAVAILABLE and node.watchers == []


async def test_a_node_with_another_token_is_not_used(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "our-secret")
    node = await world.node(token="theirs")
    side = await world.router("--node", node.address)
    await until(lambda: state(side) == "mismatch", "the refusal is seen")
    assert "refuses this router" in links(side)[0].detail and "our-secret" not in links(side)[0].detail


async def test_the_token_goes_with_every_call(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_SERVER__CLUSTER_TOKEN", "our-secret")
    node = await world.node(token="our-secret")
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "described and watched with the token")
    await links(side)[0].drain(0, undo=False)
    assert len(node.drains) == 1


async def test_nodes_are_spoken_to_over_mutual_tls(
    world: NodeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


async def test_a_node_that_dies_is_dark_at_once_and_back_when_it_returns(world: NodeWorld) -> None:
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


async def test_a_node_that_is_away_at_the_start_is_found_later(world: NodeWorld) -> None:
    node = GrpcNode()
    node.port = free_port()
    world.nodes.append(node)
    side = await world.router("--node", node.address)
    await until(lambda: links(side)[0].pool.last_error, "a failed dial")
    assert links(side)[0].trouble and side.not_ready().startswith("no node is ready")
    await node.start()
    await until(is_ready(side, "n1"), "the node is used")


async def test_a_node_that_comes_back_as_another_is_known_as_that(world: NodeWorld) -> None:
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


async def test_two_nodes_with_one_id_are_not_both_used(world: NodeWorld) -> None:
    first = await world.node("n1")
    side = await world.router("--node", first.address)
    await until(is_ready(side, "n1"), "the first node is ready")
    second = await world.node("n1", boot_id="b2")
    other = await world.router("--node", first.address, "--node", second.address)
    await until(lambda: sorted(link.state for link in links(other)) == ["mismatch", "ready"], "one of them is refused")
    refused_link = next(link for link in links(other) if link.state == "mismatch")
    assert "already in use" in refused_link.detail


async def test_a_node_with_two_addresses_is_used_through_one(world: NodeWorld) -> None:
    node = await world.node()
    side = await world.router("--node", node.address, "--node", f"localhost:{node.port}")
    await until(lambda: sorted(link.state for link in links(side)) == ["mismatch", "ready"], "one of them is enough")
    assert len(side.dispatcher.nodes()) == 1
    assert "linked at" in next(link.detail for link in links(side) if link.state == "mismatch")


async def test_a_silent_watch_is_opened_anew(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENCE", 0.3)
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    await until(lambda: len(node.watchers) >= 2, "a second watch", timeout=5)
    assert len(set(node.watchers)) == 1
    assert is_ready(side, "n1")(), "a late report does not black out a node"
    await until(lambda: node.watching <= 1, "the old watch was ended")


async def test_a_frozen_node_goes_dark(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_answers_but_is_no_node_is_said_to_be_none(world: NodeWorld) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        side = await world.router("--node", f"127.0.0.1:{port}")
        await until(lambda: "cannot be asked" in links(side)[0].detail, "the wrong server is seen")
        assert state(side) == "dark" and side.dispatcher.nodes() == []
    finally:
        await server.stop(None)


async def test_closing_leaves_no_task_and_no_connection(world: NodeWorld) -> None:
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
