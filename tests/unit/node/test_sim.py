"""The simulated engine: known text, honest time, aborts within a step, clear refusals."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from typing import Any

import pytest

from inference_node.engines import sim_text
from inference_node.engines.base import BadRequest, EngineError, GenerateCall, Inexact, Message, Past, Prompt, Sampling
from inference_node.engines.context import first_token
from inference_node.engines.sim import SimEngine
from shared.config.schema import ConfigError, InferenceConfig, SimConfig
from tests.support.ports import until

FAST = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=0.1, decode_per_sequence_ms=0.0)


@pytest.fixture
async def engine():
    sim = SimEngine(InferenceConfig(engine="sim", model="demo", sim=FAST))
    await sim.start()
    yield sim
    await sim.stop()


def call(text: Any = "hello there", **kw: Any) -> Any:
    kw.setdefault("max_tokens", 8)
    priority = kw.pop("priority", 0)
    return GenerateCall("r1", Prompt(sim_text.encode(text)), Sampling(**kw), priority)


async def collect(engine: Any, request: Any) -> Any:
    deltas = []
    async with aclosing(engine.generate(request)) as stream:
        async for delta in stream:
            deltas.append(delta)
    return deltas


def tokens_of(deltas: Any, index: Any = 0) -> Any:
    return [t for d in deltas if d.index == index for t in d.token_ids]


def text_of(deltas: Any, index: Any = 0) -> Any:
    return "".join(d.text for d in deltas if d.index == index)


async def test_text_is_the_known_function_of_prompt_and_seed(engine):
    request = call(max_tokens=30, ignore_eos=True)
    deltas = await collect(engine, request)
    wanted = list(islice(sim_text.expected_tokens(request.prompt.token_ids, 0, 0, True), 30))
    assert tokens_of(deltas) == wanted
    assert text_of(deltas) == sim_text.decode(wanted)
    assert deltas[-1].finish_reason == "length"


async def test_the_requests_seed_goes_over_the_engines(engine):
    a = await collect(engine, call(seed=5))
    b = await collect(engine, call(seed=6))
    assert tokens_of(a) != tokens_of(b)


async def test_a_natural_end_is_a_stop(engine):
    deltas = await collect(engine, call(max_tokens=4000))
    assert deltas[-1].finish_reason == "stop"
    assert tokens_of(deltas)[-1] == sim_text.EOS
    assert "<|" not in text_of(deltas)


async def test_n_completions_come_interleaved_and_each_ends(engine):
    request = call(n=3, max_tokens=5, ignore_eos=True)
    deltas = await collect(engine, request)
    for i in range(3):
        wanted = list(islice(sim_text.expected_tokens(request.prompt.token_ids, 0, i, True), 5))
        assert tokens_of(deltas, i) == wanted
    assert sum(1 for d in deltas if d.finish_reason) == 3
    assert [d.index for d in deltas[:3]] == [0, 1, 2]


async def test_a_stop_string_ends_the_text_before_it_even_across_tokens(engine):
    request = call(max_tokens=50, ignore_eos=True)
    whole = text_of(await collect(engine, request))
    words = whole.split(" ")
    stop = words[3][-1] + " " + words[4][:1]
    cut = whole.index(stop)
    request = call(max_tokens=50, ignore_eos=True, stop=[stop])
    deltas = await collect(engine, request)
    assert text_of(deltas) == whole[:cut]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    kept = await collect(engine, call(max_tokens=50, ignore_eos=True, stop=[stop], include_stop_str_in_output=True))
    assert text_of(kept) == whole[: cut + len(stop)]


async def test_text_held_back_for_a_stop_string_comes_out_at_the_end(engine):
    whole = text_of(await collect(engine, call(max_tokens=6, ignore_eos=True)))
    held = await collect(engine, call(max_tokens=6, ignore_eos=True, stop=["never this long a string"]))
    assert text_of(held) == whole


async def test_a_stop_token_ends_it_and_is_not_in_the_text(engine):
    whole = await collect(engine, call(max_tokens=10, ignore_eos=True))
    stop = tokens_of(whole)[4]
    deltas = await collect(engine, call(max_tokens=10, ignore_eos=True, stop_token_ids=[stop]))
    assert tokens_of(deltas) == tokens_of(whole)[:5]
    assert text_of(deltas) == sim_text.decode(tokens_of(whole)[:4])
    assert deltas[-1].stop_reason == str(stop)


async def test_min_tokens_holds_an_end_off(engine):
    natural = len(tokens_of(await collect(engine, call(max_tokens=4000))))
    deltas = await collect(engine, call(max_tokens=4000, min_tokens=natural + 5))
    assert len(tokens_of(deltas)) == natural + 6


async def test_a_choice_is_one_of_the_choices(engine):
    deltas = await collect(engine, call(choice=["yes, with joy", "no"], max_tokens=50))
    assert text_of(deltas) in ("yes, with joy", "no")
    assert deltas[-1].finish_reason == "stop"


async def test_logprobs_name_the_chosen_token_and_so_many_others(engine):
    deltas = await collect(engine, call(logprobs=2, prompt_logprobs=1))
    positions = [p for d in deltas for p in d.logprobs]
    assert [p.chosen.token_id for p in positions] == tokens_of(deltas)
    assert all(len(p.top) == 2 and p.chosen.rank == 1 and p.chosen.logprob <= 0 for p in positions)
    assert len(deltas[0].prompt_logprobs) == len(call().prompt.token_ids)
    assert all(not d.prompt_logprobs for d in deltas[1:])


async def test_cached_tokens_are_reported_from_the_first_delta(engine):
    long = "a tale of two cities " * 20
    first = await collect(engine, call(long))
    second = await collect(engine, call(long))
    assert first[0].cached_tokens == 0
    size = len(sim_text.encode(long))
    assert second[0].cached_tokens == (size - 1) // 16 * 16


async def test_closing_the_generator_frees_everything_within_a_step(engine):
    stream = engine.generate(call(max_tokens=30_000, ignore_eos=True))
    await anext(stream)
    assert engine.stats().running == 1
    await stream.aclose()
    assert (engine.stats().running, engine.stats().kv_usage) == (0, 0.0)


async def test_cancelling_a_reader_that_waits_aborts_too(engine):
    slow = SimEngine(InferenceConfig(engine="sim", sim=SimConfig(prefill_tokens_per_second=10)))
    await slow.start()
    try:
        task = asyncio.create_task(collect(slow, call("x" * 3000)))
        await until(lambda: slow.stats().running == 1, "the request runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.stats().running == 0
    finally:
        await slow.stop()


async def test_a_slow_reader_gets_merged_deltas_and_no_token_is_lost(engine):
    request = call(max_tokens=200, ignore_eos=True)
    got = []
    async with aclosing(engine.generate(request)) as stream:
        async for delta in stream:
            got += delta.token_ids
            await asyncio.sleep(0.005)
    assert got == list(islice(sim_text.expected_tokens(request.prompt.token_ids, 0, 0, True), 200))


async def test_time_is_what_the_cost_model_says(engine):
    sim = SimEngine(InferenceConfig(engine="sim"))
    await sim.start()
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await collect(sim, call("y" * 2400, max_tokens=41, ignore_eos=True))
        took = loop.time() - began
    finally:
        await sim.stop()
    wanted = 800 / 8000 + 40 * 0.00635
    assert wanted - 0.002 <= took <= wanted + 0.15


async def test_counters_grow_with_the_work(engine):
    await collect(engine, call("some words to count", max_tokens=10, ignore_eos=True))
    stats = engine.stats()
    assert stats.prompt_tokens == len(sim_text.encode("some words to count"))
    assert stats.generation_tokens == 10
    assert stats.prefill_seconds > 0 and stats.decode_seconds > 0 and stats.preemptions == 0


async def test_the_first_token_is_signalled_to_whoever_listens(engine):
    told = []
    first_token.set(told.append)
    text = "a prompt of more than one block of sixteen tokens, so that a second time it is found"
    await collect(engine, call(text, max_tokens=5))
    await collect(engine, call(text, max_tokens=5))
    assert told[0] == 0 and told[1] >= 16 and len(told) == 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"json_object": True}, "json_object"),
        ({"json_schema": "{}"}, "json_schema"),
        ({"regex": "a"}, "regex"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
    ],
)
async def test_what_it_cannot_promise_it_refuses_by_name(engine, change, param):
    with pytest.raises(BadRequest, match="the sim engine") as e:
        await collect(engine, call(**change))
    assert e.value.param == param


async def test_bad_prompts_are_refused(engine):
    for ids, words in (([], "empty"), ([1 << 30], "not in the vocabulary"), ([65] * 40_000, "40000 tokens")):
        with pytest.raises(BadRequest, match=words):
            await collect(engine, GenerateCall("r", Prompt(ids), Sampling(max_tokens=1)))
    with pytest.raises(BadRequest, match="surrogate"):
        await engine.tokenize("\ud800")


async def test_a_chat_keeps_the_prefix_of_the_turns_before(engine):
    one = await engine.render_chat([Message("user", "hi")], {"add_generation_prompt": False})
    two = await engine.render_chat([Message("user", "hi"), Message("assistant", "yo")], {})
    assert two.token_ids[: len(one.token_ids)] == one.token_ids
    assert two.text == "<|user|>hi<|end|><|assistant|>yo<|end|><|assistant|>"
    with pytest.raises(BadRequest, match=r"messages\[0\].role"):
        await engine.render_chat([Message("wizard", "hi")], {})


async def test_embeddings_are_unit_vectors_that_know_alike_texts(engine):
    prompts = [Prompt(sim_text.encode(t)) for t in ("the red fox", "the red fox", "the red ox", "quite unlike it")]
    a, b, c, d = await engine.embed("e", prompts, 0)
    assert a == b and len(a) == 64
    assert sum(x * x for x in a) == pytest.approx(1.0)

    def dot(u: Any, v: Any) -> Any:
        return sum(x * y for x, y in zip(u, v, strict=True))

    assert dot(a, c) > dot(a, d)
    with pytest.raises(BadRequest, match="dimensions"):
        await engine.embed("e", prompts, 65)


async def test_a_stopped_engine_fails_its_requests_and_takes_no_more():
    sim = SimEngine(InferenceConfig(engine="sim"))
    await sim.start()
    task = asyncio.create_task(collect(sim, call(max_tokens=1000, ignore_eos=True)))
    await until(lambda: sim.stats().running == 1, "the request runs")
    await sim.stop()
    with pytest.raises(EngineError) as e:
        await task
    assert e.value.fatal
    with pytest.raises(EngineError):
        await collect(sim, call())
    with pytest.raises(EngineError):
        await sim.check()


def test_a_context_beyond_the_simulators_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"200000 .*131072"):
        SimEngine(InferenceConfig(engine="sim", max_seq_len=200_000))
    with pytest.raises(ConfigError, match=r"2000 .*1024"):
        SimEngine(InferenceConfig(engine="sim", max_seq_len=2000, sim=SimConfig(kv_tokens=1024)))


@pytest.mark.parametrize("args", [{"tensor_parallel_size": 2}, {"max_num_batched_tokens": 0}])
def test_engine_args_are_checked(args):
    with pytest.raises(ConfigError, match=next(iter(args))):
        SimEngine(InferenceConfig(engine="sim", engine_args=args))


def parts_of(deltas: Any) -> Any:
    return [list(d.token_ids) for d in deltas]


@pytest.mark.parametrize("choice", ["é漢🙂ß🜂", "plain words"])
async def test_a_past_is_said_again_as_it_was_and_then_what_is_new(engine, choice):
    # Tokens of three bytes each: characters are cut in the middle.
    request = call(choice=[choice], max_tokens=60, stop=["nowhere"])
    whole = await collect(engine, request)
    tokens = [[t] for t in tokens_of(whole)]
    for k in range(1, len(tokens)):
        request = call(choice=[choice], max_tokens=60, stop=["nowhere"])
        request.past = Past(tokens[:k])
        again = await collect(engine, request)
        assert [d.replayed for d in again[:k]] == [True] * k and not any(d.replayed for d in again[k:])
        assert parts_of(again[:k]) == tokens[:k]
        assert text_of(again) == text_of(whole) == choice and tokens_of(again) == tokens_of(whole)
        assert again[-1].finish_reason == "stop"


async def test_a_past_that_was_not_said_here_is_inexact(engine):
    whole = await collect(engine, call())
    for past in (Past([[sim_text.EOS]]), Past(parts_of(whole), "stop"), Past([*parts_of(whole), [1]])):
        request = call()
        request.past = past
        with pytest.raises(Inexact):
            await collect(engine, request)
        assert past.inexact
    assert engine.stats().running == 0


async def test_a_past_with_its_end_needs_no_step(engine):
    whole = await collect(engine, call(ignore_eos=True))
    steps = engine.stats().generation_tokens
    request = call(ignore_eos=True)
    request.past = Past(parts_of(whole), "length")
    again = await collect(engine, request)
    assert text_of(again) == text_of(whole) and again[-1].finish_reason == "length"
    assert engine.stats().generation_tokens == steps


async def test_of_several_completions_only_one_could_go_on(engine):
    whole = await collect(engine, call(n=2, ignore_eos=True))
    request = call(n=2, ignore_eos=True)
    request.past = Past([[t] for t in tokens_of(whole, 0)[:4]])
    again = await collect(engine, request)
    # The other one begins anew: nothing says which tokens were whose.
    assert tokens_of(again, 1) == tokens_of(whole, 1) and not any(d.replayed for d in again if d.index == 1)


async def test_lengths_are_told_of_what_was_done_here(engine):
    ends: list[Any] = []
    engine.follow(ends.append)
    whole = await collect(engine, call(ignore_eos=True))
    request = call(ignore_eos=True)
    request.past = Past(parts_of(whole)[:3])
    await collect(engine, request)
    had = sum(map(len, parts_of(whole)[:3]))
    first, second = ends
    assert (second.prompt_tokens, second.max_new_tokens) == (first.prompt_tokens + had, 8 - had)
    assert second.new_tokens == 8 - had


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(engine, monkeypatch):
    most = 32_768 * sim_text.LONGEST_TOKEN
    longest = max(sim_text.WORDS, key=len)
    assert len(await engine.tokenize(longest * 32_768)) == 32_768
    monkeypatch.setattr(sim_text, "encode", lambda text: pytest.fail("it was tokenized"))
    with pytest.raises(BadRequest, match=f"{most + 1} characters, more than a context of 32768 tokens can hold"):
        await engine.tokenize("a" * (most + 1))
    with pytest.raises(BadRequest, match="more than a context of 32768 tokens can hold"):
        await engine.render_chat([Message("user", "a" * most), Message("user", "a")], {})
