"""Three times the load a node can carry, with clients that leave at any moment: exact text, typed refusals, no leak."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from itertools import islice
from typing import Any

from inference_node.engines import sim_text
from shared.config.schema import SimConfig
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.ports import until
from tests.unit.node.harness import config, running

TINY = SimConfig(kv_tokens=1536, prefill_tokens_per_second=200_000, decode_base_ms=2.5, decode_per_sequence_ms=0.02)


def known(text: str, count: int, index: int) -> list[int]:
    return list(islice(sim_text.expected_tokens(sim_text.encode(text), 0, index, True), count))


async def typed(client: Any, draw: random.Random, number: int) -> str:
    text = f"request {number} " + "of many words " * draw.randint(0, 30)
    count, n = draw.randint(1, 120), draw.choice((1, 1, 1, 2))
    sampling = pb.SamplingParams(max_tokens=count, n=n, ignore_eos=True)
    request = pb.GenerateRequest(text=text, sampling=sampling, priority=draw.randint(-1, 1))
    leaves_after = draw.choice((None, None, None, 0, 3))
    got: dict[int, list[int]] = {i: [] for i in range(n)}
    metadata = [(b"laya-dispatch", b"w-%x" % number)]
    async with contextlib.aclosing(client.stream("generate", request, metadata, 60)) as answers:
        async for answer in answers:
            got[answer.index] += answer.token_ids
            if leaves_after is not None and sum(map(len, got.values())) >= leaves_after:
                break
            if draw.random() < 0.02:
                await asyncio.sleep(0.01)
    for i, tokens in got.items():
        wanted = known(text, count, i)
        assert tokens == (wanted if leaves_after is None else wanted[: len(tokens)])
    return "left" if leaves_after is not None else "whole"


async def tunnelled(client: Any, draw: random.Random, number: int) -> str:
    text, count = f"prompt {number}", draw.randint(1, 80)
    body = {"prompt": text, "max_tokens": count, "ignore_eos": True}
    metadata = [(b"laya-dispatch", b"w-%x" % number)]
    if draw.random() < 0.2:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draw.random() * 0.05):
                await client.openai("/v1/completions", body, metadata)
        return "left"
    status, headers, raw = await client.openai("/v1/completions", body, metadata)
    if status != 200:
        assert status == 429 and int(headers["retry-after"]) >= 1
        return "refused"
    assert json.loads(raw)["choices"][0]["text"] == sim_text.decode(known(text, count, 0))
    return "whole"


async def test_overload_with_clients_that_leave_loses_no_token_and_leaks_nothing():
    conf = config(TINY, max_queue_seconds=0.2, max_queued=40, max_num_seqs=32)
    outcomes: Counter[str] = Counter()
    async with running(conf) as (node, client):
        draw = random.Random(7)

        async def one(number: int) -> None:
            await asyncio.sleep(draw.random() * 1.5)
            kind = typed if number % 3 else tunnelled
            try:
                outcomes[await kind(client, random.Random(number), number)] += 1
            except LayaError as e:
                assert e.code == Code.RESOURCE_EXHAUSTED, e
                assert e.reason in ("QUEUE_FULL", "QUEUE_TIMEOUT") and e.retry_after
                outcomes["refused"] += 1

        await asyncio.gather(*(one(i) for i in range(360)))
        admission = node.state.serving.admission
        await until(lambda: admission.running == admission.waiting == 0, "everything has ended")
        stats = node.state.serving.engine.stats()
        assert stats.preemptions == 0 and stats.running == 0 and stats.kv_usage == 0
        assert admission.ledger.headroom_tokens == 1536
    assert outcomes["whole"] > 50 and outcomes["left"] > 20 and outcomes["refused"] > 20, outcomes
