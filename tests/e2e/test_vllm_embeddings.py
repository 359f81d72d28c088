"""The vLLM engine with a model that makes vectors: tiny, with random weights, made on the spot."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference_node.engines.base import BadRequest, EngineError, EngineInfo, GenerateCall, Message, Prompt, Sampling
from inference_node.engines.vllm import VllmEngine
from inference_node.engines.vllm_warmup import post
from shared.config.schema import InferenceConfig

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

WIDTH = 128


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import LlamaConfig, LlamaModel

    from inference_node.quantize import demo

    folder = tmp_path_factory.mktemp("tiny-embedder")
    settings = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=49_152,
        max_position_embeddings=512,
        pad_token_id=2,
    )
    LlamaModel(settings).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(demo.prepare()) / name, folder)
    return str(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(model: str) -> AsyncIterator[tuple[VllmEngine, EngineInfo]]:
    before = dict(os.environ)
    engine = VllmEngine(
        InferenceConfig(
            engine="vllm",
            model=model,
            served_model_name="vectors",
            kv_cache_memory_bytes=64 << 20,
            engine_args={"runner": "pooling", "convert": "embed"},
        )
    )
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()
        os.environ.clear()
        os.environ.update(before)


async def test_model_of_vectors_says_so(started: tuple[VllmEngine, EngineInfo]) -> None:
    _, info = started
    assert (info.supports_embed, info.supports_chat, info.max_seq_len) == (True, False, 512)


async def test_each_text_has_a_vector(started: tuple[VllmEngine, EngineInfo]) -> None:
    engine, _ = started
    texts = ["one", "quite another one", "one"]
    vectors = await engine.embed("e", [Prompt(await engine.tokenize(t), t) for t in texts], 0)
    assert [len(vector) for vector in vectors] == [WIDTH] * 3
    assert math.isclose(math.hypot(*vectors[0]), 1.0, rel_tol=1e-3)
    similar = [sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors]
    assert similar[2] > 0.999 > similar[1]


async def test_vectors_are_the_applications(started: tuple[VllmEngine, EngineInfo]) -> None:
    engine, _ = started
    (ours,) = await engine.embed("e", [Prompt(await engine.tokenize("Hello"))], 0)
    status, body = await post(engine.asgi_app(), "/v1/embeddings", {"model": "vectors", "input": "Hello"})
    assert status == 200
    theirs = json.loads(body)["data"][0]["embedding"]
    assert all(math.isclose(a, b, abs_tol=1e-2) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("given", ["Hello", ["Hello", "you there"], [1, 2, 3], [[1, 2, 3], [4]]])
async def test_inputs_are_counted_as_the_application_counts_them(
    started: tuple[VllmEngine, EngineInfo], given: Any
) -> None:
    engine, _ = started
    body = {"model": "vectors", "input": given}
    counted = await engine.count_prompt("/v1/embeddings", body)
    status, answer = await post(engine.asgi_app(), "/v1/embeddings", body)
    assert status == 200
    assert sum(counted) == json.loads(answer)["usage"]["prompt_tokens"]


async def test_what_it_cannot_do_is_the_clients_fault(started: tuple[VllmEngine, EngineInfo]) -> None:
    engine, _ = started
    prompt = Prompt(await engine.tokenize("Hello"))
    with pytest.raises(BadRequest, match="does not generate"):
        await anext(engine.generate(GenerateCall("g", prompt, Sampling(1))))
    with pytest.raises(BadRequest, match="does not chat"):
        await engine.render_chat([Message("user", "Hello")], {})
    with pytest.raises(BadRequest, match="does not complete"):
        await engine.count_prompt("/v1/completions", {"prompt": "x"})
    with pytest.raises(BadRequest):
        await engine.embed("e", [prompt], 7)
    with pytest.raises(BadRequest):
        await engine.embed("e", [Prompt([1] * 600)], 0)
    await engine.check()


async def test_stop_fails_what_is_still_asked_for(started: tuple[VllmEngine, EngineInfo]) -> None:
    engine, _ = started
    inputs = [Prompt([i + 3] * 500) for i in range(200)]
    asked = asyncio.ensure_future(engine.embed("e", inputs, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineError):
        await asyncio.wait_for(asked, 10)
    with pytest.raises(EngineError):
        await engine.check()
    with pytest.raises(EngineError):
        await engine.tokenize("x")
