"""The vLLM engine with real quantized weights: one engine for the whole module, on the demo model."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from inference_node.engines.base import (
    BadRequest,
    Delta,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerateCall,
    Message,
    Prompt,
    Sampling,
)
from inference_node.engines.context import first_token
from inference_node.engines.vllm import VllmEngine
from inference_node.engines.vllm_warmup import post
from shared.config.schema import ConfigError, InferenceConfig
from tests.support.ports import until

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

QUESTION = [Message("user", "What is the capital of France?")]
LONG = "The quick brown fox jumps over the lazy dog. " * 40


class Bench:
    """The engine, what it said at its start, and short ways to use it."""

    def __init__(self, engine: VllmEngine, info: EngineInfo, fresh: EngineStats) -> None:
        self.engine = engine
        self.info = info
        self.fresh = fresh  # statistics right after the start
        self._count = 0

    def call(self, prompt: Prompt, sampling: Sampling, **values: Any) -> GenerateCall:
        self._count += 1
        return GenerateCall(f"test-{self._count}", prompt, sampling, **values)

    async def ask(self, messages: Sequence[Message] = QUESTION) -> Prompt:
        return await self.engine.render_chat(messages, {})

    async def run(self, prompt: Prompt, max_tokens: int = 16, *, salt: str = "", **sampling: Any) -> list[Delta]:
        sampling.setdefault("temperature", 0.0)
        call = self.call(prompt, Sampling(max_tokens, **sampling), cache_salt=salt)
        async with aclosing(self.engine.generate(call)) as deltas:
            return [delta async for delta in deltas]

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        body.setdefault("temperature", 0)
        body.setdefault("max_tokens", 4)
        status, answer = await post(self.engine.asgi_app(), path, {"model": self.info.model} | body)
        return status, json.loads(answer)


def text(deltas: Sequence[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def children() -> list[psutil.Process]:
    """Processes of ours, less the tracker that multiprocessing keeps until the interpreter ends."""
    mine = psutil.Process().children(recursive=True)
    return [p for p in mine if p.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(p.cmdline())]


@pytest.fixture(scope="module")
def model() -> str:
    from inference_node.quantize import demo

    return str(demo.prepare())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(model: str) -> AsyncIterator[Bench]:
    before = dict(os.environ)
    engine = VllmEngine(
        InferenceConfig(
            engine="vllm",
            model=model,
            served_model_name="demo",
            aliases=["also-demo"],
            max_seq_len=2048,
            kv_cache_memory_bytes=256 << 20,
        )
    )
    try:
        info = await engine.start()
        yield Bench(engine, info, engine.stats())
    finally:
        await engine.stop()
        os.environ.clear()
        os.environ.update(before)
    assert not children()
    await engine.stop()


async def test_engine_describes_itself(bench: Bench) -> None:
    info = bench.info
    assert (info.engine, info.model, info.quantization, info.max_seq_len) == ("vllm", "demo", "w8a8", 2048)
    # 256 MiB at 23,040 bytes a token is 91 blocks of 128 tokens, one of them vLLM's own.
    assert (info.kv_block_tokens, info.kv_blocks) == (128, 90)
    assert (info.supports_chat, info.supports_embed, info.lookahead_tokens) == (True, False, 0)
    assert info.max_prefill_tokens == 256
    await bench.engine.check()


async def test_warm_up_leaves_no_trace_in_the_statistics(bench: Bench) -> None:
    fresh = bench.fresh
    assert (fresh.running, fresh.waiting, fresh.prefix_queries, fresh.generation_tokens) == (0, 0, 0, 0)


async def test_model_knows_the_capital_of_france(bench: Bench) -> None:
    deltas = await bench.run(await bench.ask())
    assert "Paris" in text(deltas)
    assert deltas[-1].finish_reason == "stop"
    assert len(deltas) > 3


async def test_deltas_add_up_to_the_answer_of_the_application(bench: Bench) -> None:
    prompt = await bench.ask()
    deltas = await bench.run(prompt, 40, ignore_eos=True)
    status, whole = await bench.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": QUESTION[0].content}],
        max_tokens=40,
        ignore_eos=True,
    )
    assert status == 200
    assert text(deltas) == whole["choices"][0]["message"]["content"]
    assert sum(len(delta.token_ids) for delta in deltas) == whole["usage"]["completion_tokens"] == 40
    assert deltas[-1].finish_reason == whole["choices"][0]["finish_reason"] == "length"


async def test_plain_text_is_completed(bench: Bench) -> None:
    ids = await bench.engine.tokenize("1, 2, 3, 4,")
    assert " 5" in text(await bench.run(Prompt(ids, "1, 2, 3, 4,"), 6))


async def test_closed_request_leaves_the_engine_within_a_step(bench: Bench) -> None:
    engine = bench.engine
    prompt = await bench.ask()
    other = engine.generate(bench.call(prompt, Sampling(400, ignore_eos=True)))
    async with aclosing(other):
        await anext(other)
        doomed = engine.generate(bench.call(prompt, Sampling(1000, ignore_eos=True)))
        async with aclosing(doomed):
            for _ in range(3):
                await anext(doomed)
            await until(lambda: core_running(engine) == 2, "both run")
        steps = engine.stats().extra["steps"]
        await until(lambda: core_running(engine) == 1, "one is gone")
        # One step may have been under way when the abort came, and its report on the way here.
        assert engine.stats().extra["steps"] - steps <= 2
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)
    await bench.run(prompt, 2)
    assert core_running(engine) == 0


def core_running(engine: VllmEngine) -> float:
    """Requests that run, in the words of vLLM's scheduler after its last step."""
    return engine.stats().extra["core_running"]


async def test_all_completions_of_a_closed_request_leave(bench: Bench) -> None:
    engine = bench.engine
    deltas = engine.generate(bench.call(await bench.ask(), Sampling(1000, n=3, temperature=1.0, ignore_eos=True)))
    async with aclosing(deltas):
        await anext(deltas)
        await until(lambda: core_running(engine) == 3, "all run")
    assert engine.stats().running == engine.stats().waiting == 0
    await bench.run(await bench.ask(), 2)
    assert core_running(engine) == 0


async def test_cancelled_request_leaves_the_engine(bench: Bench) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        call = bench.call(await bench.ask(), Sampling(1000, ignore_eos=True))
        async with aclosing(bench.engine.generate(call)) as deltas:
            async for _ in deltas:
                started.set()

    task = asyncio.create_task(consume())
    await started.wait()
    assert bench.engine.stats().running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.engine.stats().running == bench.engine.stats().waiting == 0


async def test_log_probabilities(bench: Bench) -> None:
    prompt = await bench.ask()
    deltas = await bench.run(prompt, 6, logprobs=3, prompt_logprobs=1)
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.token_ids)
        for token, position in zip(delta.token_ids, delta.logprobs, strict=True):
            assert (position.chosen.token_id, position.chosen.rank) == (token, 1)
            assert [top.rank for top in position.top] == [2, 3, 4]
            assert 0 >= position.chosen.logprob >= position.top[0].logprob >= position.top[2].logprob
    assert "".join(p.chosen.token for d in deltas for p in d.logprobs) == text(deltas)
    known = deltas[0].prompt_logprobs
    assert [position.chosen.token_id for position in known] == list(prompt.token_ids)
    assert known[0].top == ()
    assert all(len(position.top) == 1 for position in known[1:])
    assert not deltas[1].prompt_logprobs


async def test_prompt_of_several_steps_has_all_its_log_probabilities(bench: Bench) -> None:
    prompt = Prompt(await bench.engine.tokenize(LONG))
    assert len(prompt.token_ids) > bench.info.max_prefill_tokens
    deltas = await bench.run(prompt, 2, prompt_logprobs=0)
    assert [position.chosen.token_id for position in deltas[0].prompt_logprobs] == list(prompt.token_ids)


async def test_no_alternatives_are_just_the_chosen_token(bench: Bench) -> None:
    deltas = await bench.run(await bench.ask(), 2, logprobs=0)
    assert [len(p.top) for d in deltas for p in d.logprobs] == [0, 0]


async def test_choice(bench: Bench) -> None:
    assert text(await bench.run(await bench.ask(), choice=("Lyon", "Nice"))) in ("Lyon", "Nice")


async def test_regular_expression(bench: Bench) -> None:
    found = text(await bench.run(await bench.ask(), regex=r"[0-9]{3}-[a-f]{2}"))
    assert len(found) == 6
    assert found[:3].isdigit()
    assert found[3] == "-"


async def test_json_schema(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    found = json.loads(text(await bench.run(await bench.ask(), 48, json_schema=json.dumps(schema))))
    assert isinstance(found["city"], str)


async def test_grammar(bench: Bench) -> None:
    assert text(await bench.run(await bench.ask(), grammar='root ::= "yes" | "no"')) in ("yes", "no")


@pytest.mark.parametrize(
    "constraint", [{"json_schema": "{"}, {"json_schema": '{"type": "nonsense"}'}, {"regex": "(["}, {"grammar": "::="}]
)
async def test_constraint_that_makes_no_sense_is_the_clients_fault(bench: Bench, constraint: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await bench.run(await bench.ask(), **constraint)
    await bench.engine.check()


async def test_several_completions_of_one_prompt(bench: Bench) -> None:
    deltas = await bench.run(await bench.ask(), 12, n=3, temperature=1.5, seed=3, ignore_eos=True)
    ends = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert len({text(deltas, index) for index in range(3)}) > 1


async def test_seed_repeats_the_draw(bench: Bench) -> None:
    prompt = await bench.ask()
    first, again, other = [
        text(await bench.run(prompt, 16, temperature=1.5, seed=seed, ignore_eos=True)) for seed in (11, 11, 12)
    ]
    assert first == again != other


async def test_stop_string_ends_the_text(bench: Bench) -> None:
    prompt = await bench.ask()
    cut = await bench.run(prompt, 32, stop=("Paris",))
    assert (text(cut), cut[-1].finish_reason, cut[-1].stop_reason) == ("The capital of France is ", "stop", "Paris")
    kept = await bench.run(prompt, 32, stop=("Paris",), include_stop_str_in_output=True)
    assert text(kept).endswith("Paris")


async def test_stop_token_ends_the_text(bench: Bench) -> None:
    prompt = await bench.ask()
    whole = [token for delta in await bench.run(prompt) for token in delta.token_ids]
    cut = await bench.run(prompt, stop_token_ids=(whole[2],))
    assert cut[-1].stop_reason == str(whole[2])
    assert sum(len(delta.token_ids) for delta in cut) == 3


async def test_biased_and_forbidden_tokens(bench: Bench) -> None:
    prompt = await bench.ask()
    (only,) = await bench.engine.tokenize("Z")
    assert set(text(await bench.run(prompt, 3, allowed_token_ids=(only,)))) == {"Z"}
    assert "Paris" not in text(await bench.run(prompt, 12, bad_words=("Paris",)))


async def test_repeated_prompt_is_found_in_the_cache_but_not_by_another_salt(bench: Bench) -> None:
    prompt = Prompt(await bench.engine.tokenize(LONG))
    assert len(prompt.token_ids) > 300
    cached = []
    for salt in ("a", "a", "b"):
        before = bench.engine.stats()
        deltas = await bench.run(prompt, 2, salt=salt)
        after = bench.engine.stats()
        cached.append(deltas[0].cached_tokens)
        assert after.prefix_queries - before.prefix_queries == len(prompt.token_ids)
        assert after.prefix_hits - before.prefix_hits == deltas[0].cached_tokens
        assert after.prompt_tokens - before.prompt_tokens == len(prompt.token_ids) - deltas[0].cached_tokens
        assert after.generation_tokens - before.generation_tokens == 2
        assert after.prefill_seconds > before.prefill_seconds
        assert after.decode_seconds > before.decode_seconds
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 256


async def test_eight_at_once(bench: Bench) -> None:
    engine = bench.engine
    prompts = [await bench.ask([Message("user", f"Count from {i} to twenty.")]) for i in range(8)]
    begin = time.perf_counter()
    answers = await asyncio.gather(*(bench.run(prompt, 24, ignore_eos=True) for prompt in prompts))
    spent = time.perf_counter() - begin
    assert all(text(answer).strip() for answer in answers)
    assert {answer[-1].finish_reason for answer in answers} == {"length"}
    # Eight share the steps: far sooner than eight in a row, which take 8 · 24 steps.
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.preemptions, stats.kv_usage) == (0, 0, 0, 0.0)
    assert spent < 60


async def test_priority_is_accepted(bench: Bench) -> None:
    call = bench.call(await bench.ask(), Sampling(2), priority=-5)
    async with aclosing(bench.engine.generate(call)) as deltas:
        assert [delta async for delta in deltas]


PARTS = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Yes"},
                    {"role": "user", "content": "Ähm, 日本"},
                ]
            },
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "tool_choice": "none"},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": False},
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "Say it"}, {"role": "assistant", "content": "I say"}],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"a": 1}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "truncate_prompt_tokens": 50}),
        ("/v1/completions", {"prompt": "Once upon a time"}),
        ("/v1/completions", {"prompt": ["Once", "upon a time"]}),
        ("/v1/completions", {"prompt": [1, 2, 3, 4, 5]}),
        ("/v1/completions", {"prompt": [[1, 2, 3], [4, 5]]}),
        ("/v1/completions", {"prompt": "Once", "n": 2, "temperature": 1}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 4}),
    ],
)
async def test_prompts_are_counted_as_the_application_counts_them(
    bench: Bench, path: str, body: dict[str, Any]
) -> None:
    whole = {"model": "also-demo", "temperature": 0} | body
    if path != "/v1/responses":
        whole["max_tokens"] = 2
    counted = await bench.engine.count_prompt(path, json.loads(json.dumps(whole)))
    status, answer = await post(bench.engine.asgi_app(), path, whole)
    assert status == 200, answer
    usage = json.loads(answer)["usage"]
    assert sum(counted) == usage.get("prompt_tokens", usage.get("input_tokens"))
    prompt = body.get("prompt")
    assert len(counted) == (len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1)


async def test_typed_and_untyped_prompts_are_the_same(bench: Bench) -> None:
    prompt = await bench.ask()
    body = {"messages": [{"role": "user", "content": QUESTION[0].content}]}
    assert await bench.engine.count_prompt("/v1/chat/completions", body) == [len(prompt.token_ids)]
    assert prompt.text is not None
    assert prompt.text.endswith("<|im_start|>assistant\n")
    bare = await bench.engine.render_chat(QUESTION, {"add_generation_prompt": False})
    assert prompt.text.startswith(str(bare.text))


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": "Hello"}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}, "temperature"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG * 10}]}, "2048"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "other"}, "other"),
        ("/v1/completions", {"prompt": LONG * 10}, "2048"),
        ("/v1/completions", {"prompt": [999_999]}, "999999"),
        ("/v1/embeddings", {"input": "x"}, "embeddings"),
        ("/v1/nothing", {}, "/v1/nothing"),
    ],
)
async def test_body_that_the_application_would_refuse_is_not_counted(
    bench: Bench, path: str, body: dict[str, Any], names: str
) -> None:
    with pytest.raises(BadRequest, match=names) as caught:
        await bench.engine.count_prompt(path, body)
    assert "\n" not in str(caught.value)


async def test_long_prompts_do_not_hold_up_the_loop(bench: Bench) -> None:
    longest = 0.0
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not done.is_set():
            begin = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - begin)

    watcher = asyncio.create_task(watch())
    body = {"prompt": "word " * 200_000, "truncate_prompt_tokens": 100}
    begin = time.perf_counter()
    await bench.engine.count_prompt("/v1/completions", body)
    spent = time.perf_counter() - begin
    done.set()
    await watcher
    assert longest < max(0.25, spent / 2)


async def test_prompt_longer_than_the_context_is_refused(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="2048"):
        await bench.engine.tokenize(LONG * 10)
    with pytest.raises(BadRequest, match="2048"):
        await bench.ask([Message("user", LONG * 10)])
    with pytest.raises(BadRequest, match="2048"):
        await bench.run(Prompt([5] * 3000))


@pytest.mark.parametrize(
    "values",
    [{"temperature": 5.0}, {"n": 2}, {"logprobs": 500}, {"allowed_token_ids": (10**6,)}, {"min_tokens": 99}],
)
async def test_parameters_out_of_range_are_refused_before_the_first_delta(bench: Bench, values: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await bench.run(await bench.ask(), **values)


async def test_token_outside_the_vocabulary_is_refused(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="vocabulary"):
        await bench.run(Prompt([10**7]))


async def test_adapter_that_is_not_loaded_is_refused(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="lora 'poet' is not loaded"):
        async with aclosing(bench.engine.generate(bench.call(await bench.ask(), Sampling(2), lora="poet"))) as deltas:
            await anext(deltas)


async def test_generating_model_has_no_embeddings(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="no embeddings"):
        await bench.engine.embed("e", [await bench.ask()], 0)


async def test_every_name_of_the_model_is_served(bench: Bench) -> None:
    for name in ("demo", "also-demo"):
        status, answer = await bench.post("/v1/completions", model=name, prompt="Hello")
        assert (status, answer["model"]) == (200, "demo")
    status, answer = await bench.post("/v1/completions", model="other", prompt="Hello")
    assert status == 404


async def test_application_names_a_prompt_that_is_too_long(bench: Bench) -> None:
    status, answer = await bench.post("/v1/completions", prompt=LONG * 10)
    assert status == 400
    assert "2048" in answer["error"]["message"]


async def test_application_counts_cached_tokens(bench: Bench) -> None:
    for _ in range(2):
        status, answer = await bench.post("/v1/completions", prompt=LONG, cache_salt="cached")
        assert status == 200
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256


class Client:
    """A client of the application that may go away."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        self.chunks: list[bytes] = []
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
        }

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.chunks.append(message.get("body", b""))

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})


@pytest.mark.parametrize("stream", [True, False])
async def test_client_of_the_application_that_leaves_frees_the_engine(bench: Bench, stream: bool) -> None:
    messages = [{"role": "user", "content": "Tell me all you know."}]
    client = Client({"messages": messages, "max_tokens": 1500, "ignore_eos": True, "stream": stream})
    app = asyncio.ensure_future(bench.engine.asgi_app()(client.scope, client.inbox.get, client.send))
    await until(lambda: core_running(bench.engine) == 1, "it runs")
    if stream:
        await until(lambda: len(client.chunks) > 3, "it streams")
    client.leave()
    await asyncio.wait_for(app, 10)
    await until(lambda: bench.engine.stats().running == bench.engine.stats().waiting == 0, "it is gone")
    await bench.run(await bench.ask(), 2)
    assert core_running(bench.engine) == 0


@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"n": 2, "temperature": 1, "logprobs": True, "seed": 1}])
async def test_application_says_when_the_first_token_is_there(bench: Bench, extra: dict[str, Any]) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 12} | extra
    plain = await post(bench.engine.asgi_app(), "/v1/chat/completions", body)
    seen: list[int] = []
    before = bench.engine.stats().generation_tokens

    def listen(cached: int) -> None:
        assert cached == 0  # the prompt is shorter than a block
        seen.append(bench.engine.stats().generation_tokens - before)

    token = first_token.set(listen)
    try:
        heard = await post(bench.engine.asgi_app(), "/v1/chat/completions", body)
    finally:
        first_token.reset(token)
    assert plain[0] == heard[0] == 200
    assert seen
    assert max(seen) <= 3  # at the first step, not at the end
    if extra.get("n"):
        first, second = json.loads(plain[1])["choices"], json.loads(heard[1])["choices"]
        assert [(c["index"], c["message"]["content"], c["logprobs"]) for c in first] == [
            (c["index"], c["message"]["content"], c["logprobs"]) for c in second
        ]
        assert json.loads(plain[1])["usage"]["completion_tokens"] == json.loads(heard[1])["usage"]["completion_tokens"]


async def test_vllms_own_metrics_are_shown(bench: Bench) -> None:
    shown = bench.engine.metrics_text()
    assert "vllm:num_requests_running" in shown
    assert "python_gc" not in shown


async def test_context_above_the_models_own_stops_the_start_and_leaves_nothing(bench: Bench, model: str) -> None:
    before = {p.pid for p in children()}
    engine = VllmEngine(InferenceConfig(engine="vllm", model=model, max_seq_len=200_000))
    with pytest.raises(ConfigError, match=r"200000 is more than the 8192 tokens"):
        await engine.start()
    assert {p.pid for p in children()} == before
    await engine.stop()


async def test_cancelled_start_leaves_nothing(bench: Bench, model: str) -> None:
    before = {p.pid for p in children()}
    engine = VllmEngine(InferenceConfig(engine="vllm", model=model, kv_cache_memory_bytes=64 << 20))
    start = asyncio.ensure_future(engine.start())
    await until(lambda: {p.pid for p in children()} > before, "its core is there")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert {p.pid for p in children()} == before
    await engine.stop()


async def test_weights_that_cannot_be_loaded_are_said_with_the_cores_own_words(
    bench: Bench, model: str, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(model) / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((Path(model) / "model.safetensors").read_bytes()[: 64 << 20])
    before = {p.pid for p in children()}
    engine = VllmEngine(InferenceConfig(engine="vllm", model=str(tmp_path), kv_cache_memory_bytes=64 << 20))
    with pytest.raises(EngineError, match=r"could not start .*: \w*SafetensorError"):
        await engine.start()
    assert {p.pid for p in children()} == before


# The last test: it ends the engine that all share.
async def test_death_of_the_core_is_fatal_for_all(bench: Bench) -> None:
    engine = bench.engine
    core = engine._core
    assert core is not None
    deltas = engine.generate(bench.call(await bench.ask(), Sampling(1500, ignore_eos=True)))
    async with aclosing(deltas):
        await anext(deltas)
        core.process.kill()
        with pytest.raises(EngineError) as running:
            async with asyncio.timeout(20):
                async for _ in deltas:
                    pass
    assert running.value.fatal
    with pytest.raises(EngineError) as checked:
        await engine.check()
    assert checked.value.fatal
    with pytest.raises(EngineError) as new:
        await bench.run(await bench.ask())
    assert new.value.fatal
    status, answer = await bench.post("/v1/completions", prompt="Hello")
    assert status == 500
    assert answer["error"]["message"]
