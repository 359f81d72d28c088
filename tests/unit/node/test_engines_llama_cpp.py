"""Engine llama_cpp on a small real model: the seam's promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from inference_node.engines.base import BadRequest, EngineError, GenerateCall, Inexact, Message, Past, Prompt, Sampling
from inference_node.engines.llama_cpp import LlamaCppEngine
from inference_node.quantize import demo
from shared.config.schema import ConfigError, InferenceConfig
from tests.support.ports import until
from tests.unit.node.asgi import call

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; make setup-llama-cpp")
ARGS = {"n_ctx": 512, "n_threads": 1, "n_batch": 32}


def config(**more: Any) -> InferenceConfig:
    return InferenceConfig(
        engine="llama_cpp", model=str(demo.gguf()), max_num_seqs=4, **{"max_seq_len": 256, "engine_args": ARGS, **more}
    )


@pytest.fixture
async def engine() -> AsyncIterator[LlamaCppEngine]:
    found = LlamaCppEngine(config())
    await found.start()
    yield found
    await found.stop()
    await found.stop()


async def ask(engine: LlamaCppEngine, text: str, **sampling: Any) -> GenerateCall:
    prompt = Prompt(await engine.tokenize(text))
    return GenerateCall("r", prompt, Sampling(**{"max_tokens": 8, "temperature": 0.0, **sampling}))


async def run(engine: LlamaCppEngine, text: str, **sampling: Any) -> dict[int, str]:
    out: dict[int, str] = {}
    async with aclosing(engine.generate(await ask(engine, text, **sampling))) as deltas:
        async for delta in deltas:
            out[delta.index] = out.get(delta.index, "") + delta.text
    return out


async def test_it_says_what_it_found_and_serves(engine: LlamaCppEngine) -> None:
    info = engine.info
    assert (info.kv_blocks * info.kv_block_tokens, info.max_seq_len, info.max_num_seqs) == (512, 256, 4)
    assert info.quantization == "Q4_1" and info.supports_chat and not info.supports_embed
    assert engine.stats().generation_tokens == 0  # the warm-up does not count
    lengths = []
    engine.follow(lambda ended: lengths.append((ended.max_new_tokens, ended.new_tokens)))
    assert "Paris" in (await run(engine, "The capital of France is"))[0]
    assert lengths == [(8, 8)]
    await engine.check()


async def test_several_completions_of_a_seed_are_the_same_again(engine: LlamaCppEngine) -> None:
    first = await run(engine, "Once upon a time", n=3, seed=1, temperature=1.0)
    assert sorted(first) == [0, 1, 2] and len(set(first.values())) > 1
    assert first == await run(engine, "Once upon a time", n=3, seed=1, temperature=1.0)


async def test_closing_a_stream_frees_its_cells(engine: LlamaCppEngine) -> None:
    async with aclosing(engine.generate(await ask(engine, "a b", max_tokens=200, ignore_eos=True, n=1))) as deltas:
        async for _ in deltas:
            assert engine.stats().running == 1
            break
    await until(lambda: engine.stats().running == 0 and engine.stats().kv_usage == 0, "nothing runs", timeout=5)


async def test_what_it_cannot_do_is_refused_before_the_first_delta(engine: LlamaCppEngine) -> None:
    for wrong in ({"regex": "a"}, {"grammar": "root ::= nothing"}, {"json_schema": "{"}, {"bad_words": ["x"]}):
        with pytest.raises(BadRequest):
            await run(engine, "x", **wrong)
    late = await ask(engine, "x")
    late.past = Past([[1]])
    with pytest.raises(Inexact, match="takes up no stream"):
        await anext(engine.generate(late))
    with pytest.raises(BadRequest, match="no embeddings"):
        await engine.embed("r", [Prompt([1])], 0)
    with pytest.raises(BadRequest, match="surrogate"):
        await engine.tokenize("\ud800")


async def test_a_chat_begins_as_its_template_says(engine: LlamaCppEngine) -> None:
    prompt = await engine.render_chat([Message("user", "Hi")], {})
    assert (prompt.text or "").endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert engine.text_of(prompt.token_ids) == prompt.text
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert await engine.count_prompt("/v1/chat/completions", body) == [len(prompt.token_ids)]


async def test_the_application_answers_and_refuses_in_openais_form(engine: LlamaCppEngine) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, "logprobs": 2}
    answer = await call(engine.asgi_app(), "POST", "/v1/completions", body)
    assert answer.status == 200 and answer.headers[b"x-laya-engine"] == b"llama_cpp"
    assert answer.json["choices"][0]["text"].startswith(" Paris") and answer.json["usage"]["completion_tokens"] == 4
    for wrong in ({"echo": True}, {"mirostat": 2}, {"use_beam_search": True}, {"best_of": 3}, {"prompt": [10**7]}):
        refused = await call(engine.asgi_app(), "POST", "/v1/completions", body | wrong)
        assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error"), wrong


async def test_stopping_fails_what_runs() -> None:
    found = LlamaCppEngine(config())
    await found.start()
    stream = found.generate(await ask(found, "a", max_tokens=200, ignore_eos=True))
    await anext(stream)
    stopping = asyncio.ensure_future(found.stop())
    with pytest.raises(EngineError):
        async for _ in stream:
            pass
    await stopping
    with pytest.raises(EngineError, match="not running"):
        await found.check()


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    found = LlamaCppEngine(config())
    start = asyncio.ensure_future(found.start())
    await asyncio.sleep(0)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await found.stop()
    assert found._model is None and found._context is None


def test_what_cannot_be_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="9000 is more than the 8192"):
        LlamaCppEngine(config(max_seq_len=9000))
    with pytest.raises(ConfigError, match="no such argument"):
        LlamaCppEngine(config(engine_args={"ctx": 1}))
    with pytest.raises(ConfigError, match=r"inference\.model"):
        LlamaCppEngine(InferenceConfig(model="/nowhere/x.gguf"))
