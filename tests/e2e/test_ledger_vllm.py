"""The ledger against vLLM's own pool of blocks, on a model whose layers keep windows of different kinds."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from inference_node.admission import Admission, Need
from inference_node.engines.base import EngineInfo, GenerateCall, Prompt, Sampling
from inference_node.engines.vllm import VllmEngine
from inference_node.keeper import open_admission
from inference_node.memory import checkpoint
from inference_node.memory.plan import Options, Planner
from inference_node.memory.sequence import sequence_blocks
from shared.config.schema import InferenceConfig
from tests.support import tiny_model

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

CONTEXT, POOL, REQUESTS = 2048, 3 << 20, 48


class Windows:
    """A running engine, with its admission."""

    def __init__(self, engine: VllmEngine, info: EngineInfo, admission: Admission, path: Path) -> None:
        self.engine = engine
        self.info = info
        self.admission = admission
        self.path = path
        self.fullest = 0

    async def request(self, number: int, prompt: int, new: int) -> None:
        """As the node does it: admitted, run to its end, given back."""
        admitted = await self.admission.admit(Need([prompt], new))
        try:
            self.fullest = max(self.fullest, self.admission.ledger.held_blocks)
            ids = [random.Random(number * 10_000 + i).randrange(1000, 40_000) for i in range(prompt)]
            call = GenerateCall(f"r{number}", Prompt(ids), Sampling(new, ignore_eos=True, temperature=0.0))
            tokens = 0
            async with aclosing(self.engine.generate(call)) as deltas:
                async for delta in deltas:
                    admitted.prefill_done()
                    tokens += len(delta.token_ids)
            assert tokens == new
        finally:
            admitted.release()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def windows(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Windows]:
    before = dict(os.environ)
    path = tiny_model.gemma(tmp_path_factory.mktemp("tiny") / "gemma")
    config = InferenceConfig(
        engine="vllm",
        model=str(path),
        max_seq_len=CONTEXT,
        max_num_seqs=64,
        kv_cache_memory_bytes=POOL,
        max_queued=REQUESTS,
        max_queued_tokens=1 << 20,
        max_queue_seconds=120.0,
        ramp_seconds=0.0,
        engine_args={"load_format": "dummy"},
    )
    engine = VllmEngine(config)
    try:
        info = await engine.start()
        clock = asyncio.get_running_loop().time
        admission = open_admission(config, engine, info, lambda: 0.0, clock, logging.getLogger("test"))
        yield Windows(engine, info, admission, path)
    finally:
        await engine.stop()
        os.environ.clear()
        os.environ.update(before)


async def test_a_sequence_takes_what_the_planner_foretells(windows: Windows) -> None:
    model = checkpoint.find(str(windows.path))
    plan = Planner(model.shape, model.weights, Options(device="cpu", step_tokens=256), 8 << 30).plan(CONTEXT, 64, POOL)
    info = windows.info
    assert info.kv_groups
    assert info.kv_blocks == plan.layout.pool_blocks(POOL) - 1
    for tokens in (1, 100, 127, 128, 129, 300, 700, CONTEXT):
        assert sequence_blocks(info.kv_groups, tokens) == sequence_blocks(plan.layout.rules(), tokens)


async def test_a_full_ledger_preempts_nothing(windows: Windows) -> None:
    rng = random.Random(7)
    before = windows.engine.stats().preemptions
    sizes = [(rng.choice((10, 40, 100, 300)), rng.choice((20, 60, 80))) for _ in range(REQUESTS)]
    await asyncio.gather(*(windows.request(i, *size) for i, size in enumerate(sizes)))
    # The pool was promised to the last sequence that fits, and every promise was kept.
    smallest = sequence_blocks(windows.info.kv_groups, 60)
    assert windows.fullest > windows.info.kv_blocks - 4 * smallest
    assert windows.engine.stats().preemptions - before == 0
    assert windows.admission.ledger.held_blocks == 0
