"""Streams of real weights cut and taken up again, by way of a whole node: what was said stays, and the rest fits.

Greedy text is not the same for every shape of a batch, and a prompt is computed in another shape than an answer. So
that the rest equals the undisturbed run is printed as a share, and not asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from inference_node.engines.base import Delta, GenerateCall, Past, Prompt, Sampling
from inference_node.engines.vllm import VllmEngine
from inference_node.node import Node
from shared.config.schema import InferenceConfig
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.resumes import ASK, RESUME, Heard, hear, resumed, web
from tests.unit.node.harness import config, running

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

QUESTION = "Name three rivers of Europe and say where they end."
STORY = "Once upon a time there was a miller who"
NAMED = (("x-request-id", "one-and-the-same"),)


class Bench:
    """A node with real weights, spoken to as by a router, and its engine."""

    def __init__(self, node: Node, engine: VllmEngine) -> None:
        self.node = node
        self.engine = engine
        self._count = 0

    async def hear(self, request: Any) -> Heard:
        heard = await hear(self.node.address, request, (*ASK, *NAMED), timeout=120)
        assert not heard.code and heard.journal == "1", heard
        return heard

    async def go_on(self, request: Any, messages: list[Any]) -> Heard:
        heard = await hear(self.node.address, resumed(request, messages), (*RESUME, *NAMED), timeout=120)
        assert not heard.code and heard.journal == "1", heard
        return heard

    async def run(self, tokens: list[int], max_tokens: int, past: Past | None = None, **sampling: Any) -> list[Delta]:
        """Straight from the engine."""
        self._count += 1
        sampling.setdefault("temperature", 0.0)
        call = GenerateCall(f"r-{self._count}", Prompt(tokens), Sampling(max_tokens, **sampling), past=past)
        async with aclosing(self.engine.generate(call)) as deltas:
            return [delta async for delta in deltas]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    from inference_node.quantize import demo

    before = dict(os.environ)
    model = str(demo.prepare())
    values: dict[str, Any] = {
        "model": model, "served_model_name": "demo", "max_seq_len": 2048, "kv_cache_memory_bytes": 256 << 20,
    }  # fmt: skip
    engine = VllmEngine(InferenceConfig(engine="vllm", **values))
    try:
        async with running(config(**values), engine) as (node, _):
            yield Bench(node, engine)
    finally:
        os.environ.clear()
        os.environ.update(before)


def generate(text: str = STORY, **sampling: Any) -> pb.GenerateRequest:
    sampling.setdefault("max_tokens", 24)
    sampling.setdefault("temperature", 0.0)
    return pb.GenerateRequest(text=text, sampling=pb.SamplingParams(**sampling))


def chat(**body: Any) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    return web("/v1/chat/completions", messages=messages, **{"max_tokens": 24, "temperature": 0, **body})


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_a_typed_stream_goes_on_after_any_of_its_messages(bench: Bench):
    letters = [*await bench.engine.tokenize("🙂漢é"), *await bench.engine.tokenize("ß🜂x")]
    equal = total = 0
    for request in (
        generate(),
        generate(stop=["\n\n", " the king"], min_tokens=6, max_tokens=40),
        generate(repetition_penalty=1.3, ignore_eos=True),
        generate("🙂", allowed_token_ids=sorted(set(letters)), repetition_penalty=1.5, logprobs=1, ignore_eos=True),
    ):
        whole = await bench.hear(request)
        for k in range(1, len(whole.messages), 4):
            had = whole.messages[:k]
            rest = await bench.go_on(request, had)
            tokens = [t for m in had for t in m.token_ids] + rest.tokens
            end = rest.messages[-1]
            assert end.usage.prompt_tokens == whole.messages[-1].usage.prompt_tokens
            assert end.usage.completion_tokens == len(tokens) <= request.sampling.max_tokens
            if end.finish_reason == pb.FINISH_REASON_LENGTH:
                assert len(tokens) == request.sampling.max_tokens
            elif end.stop_reason:
                assert end.stop_reason in request.sampling.stop
            if request.sampling.logprobs:
                assert [e.chosen.token_id for m in rest.messages for e in m.logprobs] == rest.tokens
            total += 1
            if tokens == whole.tokens:
                equal += 1
                assert "".join(m.text for m in had) + rest.text == whole.text
    print(f"typed: {equal} of {total} resumed streams equal the undisturbed run token for token")
    assert equal > 0


async def test_how_often_the_rest_equals_an_undisturbed_run_is_printed_beside_two_undisturbed_ones(bench: Bench):
    """Which of the two is larger proves nothing: numbers depend on the shape of a batch, resumed or not."""
    starts = ("Once upon a time", "The recipe needs", "In the year 1800", "Dear Sir,", "The capital of Spain", "My cat")
    requests = [generate(text, max_tokens=48, ignore_eos=True) for text in starts]
    alone = [await bench.hear(request) for request in requests]
    crowded = await asyncio.gather(*map(bench.hear, requests))
    cuts = [5 + 7 * i for i in range(len(requests))]
    pieces = [heard.messages[:k] for heard, k in zip(alone, cuts, strict=True)]
    rests = await asyncio.gather(*(bench.go_on(r, had) for r, had in zip(requests, pieces, strict=True)))
    moved = 0
    for heard, had, rest in zip(alone, pieces, rests, strict=True):
        tokens = [t for m in had for t in m.token_ids] + rest.tokens
        assert len(tokens) == 48 == rest.messages[-1].usage.completion_tokens
        assert tokens[: len(had)] == heard.tokens[: len(had)]
        moved += tokens == heard.tokens
    control = sum(one.tokens == other.tokens for one, other in zip(alone, crowded, strict=True))
    print(f"equal to a run alone: {moved} of {len(starts)} moved under load, {control} undisturbed under load")


@pytest.mark.parametrize("path", ["chat", "completions"])
async def test_sse_goes_on_after_any_of_its_messages(bench: Bench, path: str):
    usage = {"stream_options": {"include_usage": True}}
    requests = [chat(**usage), chat(stop=["Rhine", "2."], **usage), chat(max_tokens=16)]
    if path == "completions":
        text = {"prompt": STORY, "temperature": 0, "max_tokens": 20}
        requests = [web("/v1/completions", **text, **usage), web("/v1/completions", **text, stop=[" a", " th"])]
    equal = total = 0
    for request in requests:
        whole = await bench.hear(request)
        assert whole.body.endswith(b"data: [DONE]\n\n")
        for k in [*range(1, len(whole.messages), 5), len(whole.messages) - 1, len(whole.messages)]:
            had = whole.messages[:k]
            rest = await bench.go_on(request, had)
            body = b"".join(m.body for m in had) + rest.body
            tokens = [t for m in had for t in m.token_ids] + rest.tokens
            events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]
            assert body.endswith(b"data: [DONE]\n\n") and body.count(b"[DONE]") == 1
            assert len({(event["id"], event["created"]) for event in events}) == 1
            ends = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
            assert len(ends) == 1
            if b"include_usage" in request.body:
                assert events[-1]["usage"]["completion_tokens"] == len(tokens)
            total += 1
            if tokens == whole.tokens:
                equal += 1
                assert _said(body) == _said(whole.body)
    print(f"{path}: {equal} of {total} resumed streams equal the undisturbed run token for token")
    assert equal > 0


def _said(body: bytes) -> list[Any]:
    """The choices of every event: usage tells of a cache, which is each run's own."""
    return [json.loads(line[6:])["choices"] for line in body.decode().split("\n\n") if line.startswith("data: {")]


async def test_an_end_that_was_said_needs_no_engine(bench: Bench):
    request = chat(stream_options={"include_usage": True})
    whole = await bench.hear(request)
    last = next(i for i, m in enumerate(whole.messages) if m.finish_reason)
    before = bench.engine.stats().generation_tokens
    rest = await bench.go_on(request, whole.messages[: last + 1])
    assert _said(b"".join(m.body for m in whole.messages[: last + 1]) + rest.body) == _said(whole.body)
    assert not rest.tokens and bench.engine.stats().generation_tokens == before


async def test_another_past_than_this_engines_is_refused(bench: Bench):
    request = chat()
    whole = await bench.hear(request)
    asked = resumed(request, whole.messages[:8])
    asked.resume.token_ids[2] += 1
    heard = await hear(bench.node.address, asked, (*RESUME, *NAMED))
    assert (heard.code, heard.reason, heard.messages) == ("UNAVAILABLE", "RESUME_INEXACT", [])
    assert bench.engine.stats().running == 0


async def _naive(bench: Bench, k: int, count: int = 16, **sampling: Any) -> tuple[list[int], list[int]]:
    """What comes after ``k`` tokens of an answer, and what comes when these are only a longer prompt."""
    prompt = list(await bench.engine.tokenize(STORY))
    whole = tokens_of(await bench.run(prompt, count, **sampling))
    rest = tokens_of(await bench.run(prompt + whole[:k], count - k, **sampling))
    return whole[k:], rest


@pytest.mark.parametrize(
    ("k", "sampling"),
    [
        (10, {"presence_penalty": 2.0}),
        (10, {"frequency_penalty": 2.0}),
        (5, {"seed": 7, "temperature": 1.0}),
        (4, {"regex": "[a-z]{12}[0-9]{20}"}),
    ],
    ids=["presence", "frequency", "seed", "regex"],
)
async def test_what_is_refused_would_go_on_otherwise(bench: Bench, k: int, sampling: dict[str, Any]):
    wanted, rest = await _naive(bench, k, 24, ignore_eos=True, **sampling)
    assert wanted != rest
    assert bench.engine.cannot_continue(Sampling(24, **sampling)) or "regex" in sampling  # forms the node refuses


async def test_bad_words_across_the_cut_would_be_said(bench: Bench):
    prompt = list(await bench.engine.tokenize(STORY))
    free = tokens_of(await bench.run(prompt, 16))
    for k in range(1, 16):
        pair = free[k - 1 : k + 1]
        word = (await bench.run(prompt, 16))[k - 1].text + (await bench.run(prompt, 16))[k].text
        if list(await bench.engine.tokenize(word)) != pair or not word.startswith(" "):
            continue
        undisturbed = tokens_of(await bench.run(prompt, k + 1, bad_words=[word.strip()]))
        rest = tokens_of(await bench.run(prompt + free[:k], 1, bad_words=[word.strip()]))
        assert undisturbed[:k] == free[:k] and undisturbed[k] != free[k]
        assert rest == [free[k]]
        assert bench.engine.cannot_continue(Sampling(4, bad_words=[word]))
        return
    pytest.fail("no two tokens of the text are a word pair of their own")


async def test_log_probabilities_of_the_past_are_gone_and_tool_calls_are_named_anew(bench: Bench):
    from vllm.renderers.chat_utils import make_tool_call_id

    prompt = list(await bench.engine.tokenize(STORY))
    whole = await bench.run(prompt, 8, logprobs=1)
    past = Past([list(delta.token_ids) for delta in whole[:4]])
    again = await bench.run(prompt, 8, past, logprobs=1)
    assert all(delta.logprobs for delta in whole)
    assert [delta.replayed for delta in again[:4]] == [True] * 4 and not any(delta.logprobs for delta in again[:4])
    assert make_tool_call_id() != make_tool_call_id()
