"""A router learns from its nodes what requests really were: true counts come back in reports, over real sockets."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from router_node.dispatch import Ask, Reservation, hash_blocks
from shared.pb.laya.v1 import inference_pb2
from tests.support.discovery import NodeWorld, is_ready
from tests.support.ports import until
from tests.unit.node.harness import FAST, Client, config, running

pytestmark = pytest.mark.integration

WORDS = "the quick brown fox jumps over the lazy dog and then it rests a while in the shade of an old tree "


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    async with NodeWorld() as world:
        yield world


async def send(side: Any, client: Client, text: str, how: str) -> None:
    """One request as the relay sends it: granted, with its dispatch id, ended when the answer is whole."""
    raw = text.encode()
    got = side.dispatcher.submit(
        Ask("demo", prompt_bytes=len(raw), max_new_tokens=4, prefix=hash_blocks(raw)), print, print
    )
    assert isinstance(got, Reservation)
    try:
        metadata = [(b"laya-dispatch", got.id)]
        if how == "typed":
            await client.collect(
                "generate", inference_pb2.GenerateRequest(text=text, sampling={"max_tokens": 4}), metadata
            )
        else:
            body = {"model": "demo", "prompt": text, "max_tokens": 4}
            status, _, _ = await client.openai("/v1/completions", body, metadata)
            assert status == 200
    finally:
        got.end()


@pytest.mark.parametrize("how", ["typed", "tunnel"])
async def test_bytes_per_token_follow_what_nodes_count(world: NodeWorld, how: str) -> None:
    async with running(config()) as (node, client):
        side = await world.router("--node", node.address)
        await until(is_ready(side, node.state.node_id), "the node is ready")
        pool = side.dispatcher.resolve("demo")[0]
        tokens = len(await node.state.serving.engine.tokenize(WORDS * 8))
        truth = len(WORDS * 8) / tokens
        first = abs(pool.learned.bytes_per_token - truth)
        assert first > 0.05 * truth  # what it begins with is not the truth
        for _ in range(60):
            await send(side, client, WORDS * 8, how)
        await until(lambda: abs(pool.learned.bytes_per_token - truth) < 0.2 * first, "the ratio is learned")


async def test_a_cache_that_holds_nothing_is_soon_not_expected_to(world: NodeWorld) -> None:
    async with running(config(msgspec.structs.replace(FAST, prefix_cache=False))) as (node, client):
        side = await world.router("--node", node.address)
        await until(is_ready(side, node.state.node_id), "the node is ready")
        seen: Any = side.dispatcher.node(node.state.node_id)
        for _ in itertools.repeat(None, 40):
            await send(side, client, WORDS * 40, "typed")
        await until(lambda: seen.trust < 0.2, "the node's cache is not trusted")
