"""What vLLM's prefix cache evicts is no longer expected there by the router that had sent it, on a real model."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference_node.engines.vllm import VllmEngine
from inference_node.quantize import demo
from router_node.dispatch import Ask, Reservation, hash_blocks
from shared.config.schema import Config, InferenceConfig, RouterConfig, ServerConfig
from shared.pb.laya.v1 import inference_pb2
from tests.support.discovery import NodeWorld, is_ready
from tests.support.ports import until
from tests.unit.node.harness import Client, running

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WORDS = ("river", "bridge", "moon", "bread", "clock", "rain", "library", "engine", "market", "glass", "garden", "snow")


def text_of(seed: int) -> str:
    """Some 3 KiB, and 600 tokens or so: four whole blocks of 128."""
    return " ".join(random.Random(seed).choices(WORDS, k=560))


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    world = NodeWorld()
    before = dict(os.environ)
    try:
        yield world
    finally:
        await world.close()
        os.environ.clear()
        os.environ.update(before)


class Site:
    """A router's own view, and a way to send as its relay does."""

    def __init__(self, side: Any, client: Client) -> None:
        self.side = side
        self.client = client

    def ask(self, text: str) -> Ask:
        raw = text.encode()
        return Ask("demo", prompt_bytes=len(raw), max_new_tokens=4, prefix=hash_blocks(raw))

    def missing(self, text: str) -> float:
        """Share of a prompt that the router expects to be computed anew."""
        (one,) = self.side.dispatcher.explain(self.ask(text)).candidates
        return float(one.uncached_prompt_tokens) / self.prompt_tokens(text)

    def prompt_tokens(self, text: str) -> float:
        learned = self.side.dispatcher.resolve("demo")[0].learned
        return float(len(text) / learned.bytes_per_token)

    async def send(self, text: str, how: str) -> int:
        """One request; tokens of its prompt that the engine found in its cache."""
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        got = self.side.dispatcher.submit(self.ask(text), granted.set_result, granted.set_exception)
        if not isinstance(got, Reservation):  # the report of the room that the last one left is on its way
            async with asyncio.timeout(10):
                got = await granted
        metadata = [(b"laya-dispatch", got.id)]
        try:
            if how == "typed":
                request = inference_pb2.GenerateRequest(text=text, sampling={"max_tokens": 4})
                answers = await self.client.collect("generate", request, metadata, 60.0)
                return int(answers[-1].usage.cached_tokens)
            body = {"model": "demo", "prompt": text, "max_tokens": 4}
            status, _, raw = await self.client.openai("/v1/completions", body, metadata)
            assert status == 200, raw
            return -1
        finally:
            got.end()


async def test_evicted_prompts_are_forgotten_and_cached_ones_are_not(world: NodeWorld) -> None:
    inference = InferenceConfig(
        engine="vllm",
        model=str(demo.prepare()),
        served_model_name="demo",
        max_seq_len=1024,
        max_num_seqs=4,
        kv_cache_memory_bytes=30 << 20,  # nine blocks beside the null block: not two such prompts of five
        ramp_seconds=0.0,
    )
    conf = Config(server=ServerConfig(), router=RouterConfig(), inference=inference)
    async with running(conf, VllmEngine(inference)) as (node, client):
        side = await world.router("--node", node.address)
        await until(is_ready(side, node.state.node_id), "the node is ready")
        site = Site(side, client)
        for how, first in (("typed", 1), ("tunnel", 10)):
            old, new, newest = text_of(first), text_of(first + 1), text_of(first + 2)
            for _ in range(2):
                await site.send(old, how)
            await until(lambda text=old: site.missing(text) < 0.5, "it is known to be cached")
            await site.send(new, how)
            await site.send(newest, how)
            await until(lambda text=old: site.missing(text) > 0.7, "its eviction is told")
            assert site.missing(newest) < 0.5
            # And so it is: what the router believes is what the engine does.
            assert await site.send(newest, "typed") >= 512
            assert await site.send(old, "typed") <= 128
