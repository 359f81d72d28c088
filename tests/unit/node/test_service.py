"""The typed service over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import Any

import pytest

from inference_node.engines import sim_text
from inference_node.engines.base import EngineError
from inference_node.engines.sim import SimEngine
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.ports import until
from tests.unit.node.harness import FAST, SLOW, config, running


def request(text: Any = "hello there", **sampling: Any) -> Any:
    sampling.setdefault("max_tokens", 5)
    return pb.GenerateRequest(text=text, sampling=pb.SamplingParams(**sampling))


def known(text: Any, count: Any, index: Any = 0) -> Any:
    return list(islice(sim_text.expected_tokens(sim_text.encode(text), 0, index, True), count))


@pytest.fixture
async def node():
    async with running() as pair:
        yield pair


async def refused(call: Any, code: Any, words: Any, param: Any = None) -> Any:
    with pytest.raises(LayaError, match=words) as e:
        await call
    assert e.value.code == code
    if param is not None:
        assert e.value.param == param
    return e.value


async def test_generate_streams_every_token_once_and_ends_with_usage_and_timings(node):
    _, client = node
    answers = await client.collect("generate", request(max_tokens=40, ignore_eos=True))
    tokens = [t for a in answers for t in a.token_ids]
    assert tokens == known("hello there", 40)
    assert "".join(a.text for a in answers) == sim_text.decode(tokens)
    first, last = answers[0], answers[-1]
    assert (first.model, first.engine) == ("demo", "sim") and first.request_id
    assert all(not a.request_id for a in answers[1:])
    assert last.finish_reason == pb.FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(sim_text.encode("hello there")), 40)
    assert 0 < last.timings.ttft_seconds <= last.timings.total_seconds
    assert all(not a.HasField("usage") for a in answers[:-1])


async def test_n_completions_are_told_apart_and_usage_counts_all(node):
    _, client = node
    answers = await client.collect("generate", request(n=3, max_tokens=6, ignore_eos=True))
    for i in range(3):
        assert [t for a in answers if a.index == i for t in a.token_ids] == known("hello there", 6, i)
    assert answers[-1].usage.completion_tokens == 18
    assert sum(a.HasField("usage") for a in answers) == 1


async def test_token_ids_and_messages_are_prompts_too(node):
    _, client = node
    ids = sim_text.encode("as ids")
    by_ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=3))
    assert [t for a in await client.collect("generate", by_ids) for t in a.token_ids] == known("as ids", 3)
    turns = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")])
    answers = await client.collect("generate", pb.GenerateRequest(messages=turns))
    assert answers[-1].usage.prompt_tokens == len(sim_text.encode("hi")) + 3


async def test_complete_gives_the_same_in_one_answer(node):
    _, client = node
    answer = await client.unary("complete", pb.CompleteRequest(request=request(n=2, logprobs=1, prompt_logprobs=0)))
    for i, completion in enumerate(answer.completions):
        assert list(completion.token_ids) == known("hello there", 5, i)
        assert completion.text == sim_text.decode(completion.token_ids)
        assert completion.finish_reason == pb.FINISH_REASON_LENGTH
        assert [p.chosen.token_id for p in completion.logprobs] == list(completion.token_ids)
        assert all(len(p.top) == 1 for p in completion.logprobs)
    assert answer.usage.completion_tokens == 10 and answer.engine == "sim" and answer.request_id
    assert answer.timings.total_seconds > 0


async def test_chat_streams_the_assistants_turn(node):
    _, client = node
    chat = pb.ChatRequest(
        messages=[pb.ChatMessage(role="user", content="hi")], sampling=pb.SamplingParams(max_tokens=4)
    )
    answers = await client.collect("chat", chat)
    assert [a.role for a in answers] == ["assistant", "", "", ""]
    assert answers[-1].usage.completion_tokens == 4 and answers[0].engine == "sim"
    assert "".join(a.content for a in answers) == sim_text.decode([t for a in answers for t in a.token_ids])


async def test_a_structured_choice_is_honoured(node):
    _, client = node
    chosen = request(max_tokens=20)
    chosen.structured.choice.options.extend(["aye", "nay"])
    answers = await client.collect("generate", chosen)
    assert "".join(a.text for a in answers) in ("aye", "nay")


async def test_cached_tokens_are_in_the_usage(node):
    _, client = node
    long = "a long tale " * 30
    await client.collect("generate", request(long, max_tokens=1))
    answers = await client.collect("generate", request(long, max_tokens=1))
    assert answers[-1].usage.cached_tokens > 0


async def test_a_tenants_salt_keeps_prefix_caches_apart(node):
    _, client = node
    long = "a long tale " * 30
    for salt, cached in ((b"a", False), (b"b", False), (b"a", True)):
        answers = await client.collect("generate", request(long, max_tokens=1), [(b"laya-salt", salt)])
        assert (answers[-1].usage.cached_tokens > 0) is cached


async def test_an_absent_max_tokens_takes_the_default_within_the_context():
    async with running(config(default_max_tokens=50, max_seq_len=64)) as (_, client):
        plain = pb.GenerateRequest(text="x", sampling=pb.SamplingParams(ignore_eos=True))
        assert (await client.collect("generate", plain))[-1].usage.completion_tokens == 50
        long = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[65] * 60), sampling=pb.SamplingParams(ignore_eos=True))
        last = (await client.collect("generate", long))[-1]
        assert (last.usage.completion_tokens, last.finish_reason) == (4, pb.FINISH_REASON_LENGTH)


async def test_truncation_keeps_the_last_prompt_tokens(node):
    _, client = node
    ids = list(range(65, 90))
    cut = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=1, truncate_prompt_tokens=5)
    )
    assert (await client.collect("generate", cut))[-1].usage.prompt_tokens == 5


@pytest.mark.parametrize(
    ("message", "words", "param"),
    [
        (request(max_tokens=0), "max_tokens is 0", "sampling.max_tokens"),
        (request(max_tokens=200_000), "max_tokens is 200000", "sampling.max_tokens"),
        (request(n=17), "n is 17; it must be 1 to 16", "sampling.n"),
        (request(n=0), "n is 0", "sampling.n"),
        (request(temperature=2.5), "temperature is 2.5", "sampling.temperature"),
        (request(temperature=float("nan")), "temperature is nan", "sampling.temperature"),
        (request(top_p=0), "top_p is 0", "sampling.top_p"),
        (request(min_p=1.5), "min_p", "sampling.min_p"),
        (request(presence_penalty=-3), "presence_penalty", "sampling.presence_penalty"),
        (request(repetition_penalty=0), "repetition_penalty", "sampling.repetition_penalty"),
        (request(min_tokens=9), "min_tokens is 9", "sampling.min_tokens"),
        (request(logprobs=21), "logprobs is 21", "sampling.logprobs"),
        (request(stop=["x"] * 17), "stop has 17", "sampling.stop"),
        (request(stop=[""]), "empty string", "sampling.stop"),
        (request(logit_bias={5: 200.0}), "logit_bias is 200", "sampling.logit_bias"),
        (request(logit_bias={5: 1.0}), "sim engine", "logit_bias"),
        (request(truncate_prompt_tokens=0), "truncate_prompt_tokens is 0", "sampling.truncate_prompt_tokens"),
        (request(""), "prompt is empty", "prompt"),
        (pb.GenerateRequest(), "has no prompt", "prompt"),
        (pb.GenerateRequest(token_ids=pb.TokenIds()), "prompt is empty", "prompt"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1 << 30])), "not in the vocabulary", "prompt"),
        (pb.GenerateRequest(messages=pb.ChatMessages()), "0 turns", "messages"),
        (request("x" * 100_000), "33334 tokens .* 5 more; the context is 32768", "prompt"),
        (request("x" * 9_000_000), "9000000 characters", "text"),
    ],
)
async def test_bad_input_is_invalid_argument_with_the_field_named(node, message, words, param):
    _, client = node
    await refused(client.collect("generate", message), Code.INVALID_ARGUMENT, words, param)
    assert (await client.collect("generate", request()))[-1].usage.completion_tokens == 5


async def test_an_unknown_model_is_not_found_and_the_models_are_named():
    async with running(config(aliases=["other"])) as (_, client):
        message = request()
        message.model = "ghost"
        await refused(client.collect("generate", message), Code.NOT_FOUND, "no model 'ghost' .* demo, other")
        message.model = "other"
        assert (await client.collect("generate", message))[0].model == "demo"
        await client.collect("generate", message, [(b"laya-rewrite", b"demo")])
        await refused(client.collect("generate", message, [(b"laya-rewrite", b"gone")]), Code.NOT_FOUND, "'gone'")


async def test_bad_template_kwargs_and_roles_are_told(node):
    _, client = node
    turns = [pb.ChatMessage(role="user", content="hi")]
    for bad in ("{", "[]"):
        await refused(
            client.collect("chat", pb.ChatRequest(messages=turns, template_kwargs_json=bad)),
            Code.INVALID_ARGUMENT,
            "not a JSON object",
            "template_kwargs_json",
        )
    wizard = pb.ChatRequest(messages=[pb.ChatMessage(role="wizard", content="hi")])
    await refused(client.collect("chat", wizard), Code.INVALID_ARGUMENT, "wizard")


async def test_a_routers_clamps_go_over_the_body(node):
    _, client = node
    cap = [(b"laya-clamps", b'{"max_n":2,"max_max_tokens":10}')]
    await refused(client.collect("generate", request(n=3), cap), Code.INVALID_ARGUMENT, "n is 3; it must be 1 to 2")
    await refused(client.collect("generate", request(max_tokens=11), cap), Code.INVALID_ARGUMENT, "allows 10 at most")
    bound = [(b"laya-clamps", b'{"max_tokens":{"default":3,"max":4}}')]
    answers = await client.collect("generate", request(max_tokens=9, ignore_eos=True), bound)
    assert answers[-1].usage.completion_tokens == 4
    absent = pb.GenerateRequest(text="x", sampling=pb.SamplingParams(ignore_eos=True))
    assert (await client.collect("generate", absent, bound))[-1].usage.completion_tokens == 3


async def test_embeddings_and_their_errors(node):
    _, client = node
    answer = await client.unary("embed", pb.EmbedRequest(inputs=["a b", "c"], dimensions=8))
    assert [len(e.values) for e in answer.embeddings] == [8, 8]
    assert [e.index for e in answer.embeddings] == [0, 1]
    assert answer.usage.prompt_tokens == len(sim_text.encode("a b")) + 1
    for bad, words in (
        (pb.EmbedRequest(), "0 texts"),
        (pb.EmbedRequest(inputs=["x"] * 257), "257 texts"),
        (pb.EmbedRequest(inputs=["x", ""]), r"inputs\[1\] is empty"),
        (pb.EmbedRequest(inputs=["x"], dimensions=100), "dimensions is 100"),
    ):
        await refused(client.unary("embed", bad), Code.INVALID_ARGUMENT, words)


async def test_list_models_names_this_nodes_model():
    async with running(config(aliases=["b", "b", "demo"], max_seq_len=2048, revision="r1")) as (_, client):
        answer = await client.unary("list_models", pb.ListModelsRequest())
        model = answer.models[0]
        assert (model.name, list(model.aliases), model.max_seq_len, model.engine) == ("demo", ["b"], 2048, "sim")
        assert (model.revision, model.nodes) == ("r1", 1)


async def test_a_client_that_goes_away_aborts_its_generation_within_a_step():
    async with running(config(SLOW)) as (node, client):
        engine = node.state.serving.engine
        for method in ("generate", "complete"):
            message = request(max_tokens=10_000, ignore_eos=True)
            if method == "complete":
                task = asyncio.ensure_future(client.unary("complete", pb.CompleteRequest(request=message), timeout=60))
                await until(lambda: engine.stats().running == 1, "it runs")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                async with contextlib.aclosing(client.stream("generate", message)) as answers:
                    await anext(answers)
                    assert engine.stats().running == 1
            loop = asyncio.get_running_loop()
            began = loop.time()
            await until(lambda: engine.stats().running == 0, "the engine is idle")
            assert loop.time() - began < 0.25
            await until(lambda: node.state.serving.admission.running == 0, "the hold is back")


async def test_a_lost_connection_aborts_everything_on_it():
    async with running(config(SLOW)) as (node, client):
        engine = node.state.serving.engine
        message = request(max_tokens=10_000, ignore_eos=True)
        tasks = [asyncio.create_task(client.collect("generate", message)) for _ in range(5)]
        await until(lambda: engine.stats().running == 5, "all run")
        await client.pool.close()
        await until(lambda: engine.stats().running == 0, "the engine is idle")
        for task in tasks:
            with pytest.raises(LayaError):
                await task


async def test_a_passed_deadline_ends_it_everywhere():
    async with running(config(SLOW)) as (node, client):
        message = request(max_tokens=10_000, ignore_eos=True)
        await refused(client.collect("generate", message, timeout=0.1), Code.DEADLINE_EXCEEDED, "deadline")
        await until(lambda: node.state.serving.engine.stats().running == 0, "the engine is idle")


async def test_what_does_not_fit_in_time_is_exhausted_with_a_hint():
    conf = config(SLOW.__class__(kv_tokens=160, decode_base_ms=20.0), max_queue_seconds=0.05)
    async with running(conf) as (node, client):
        first = asyncio.create_task(client.collect("generate", request(max_tokens=100, ignore_eos=True)))
        await until(lambda: node.state.serving.admission.running == 1, "the first runs")
        error = await refused(
            client.collect("generate", request("second", max_tokens=100)), Code.RESOURCE_EXHAUSTED, "no room came free"
        )
        assert error.reason == "QUEUE_TIMEOUT" and error.retry_after and error.retry_after > 0
        await refused(
            client.collect("generate", request(max_tokens=150, n=2)), Code.INVALID_ARGUMENT, "this node has 160"
        )
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_one_request_id_twice_at_a_time_is_no_trouble():
    async with running(config(SLOW)) as (_, client):
        named = [(b"x-request-id", b"same")]
        both = await asyncio.gather(*(client.collect("generate", request(), named) for _ in range(2)))
        assert [answers[0].request_id for answers in both] == ["same", "same"]


async def test_before_the_model_is_loaded_requests_are_not_ready():
    async with running(serve=False) as (_, client):
        error = await refused(client.collect("generate", request()), Code.UNAVAILABLE, "still loading")
        assert error.reason == "NOT_READY"
        await refused(client.unary("list_models", pb.ListModelsRequest()), Code.UNAVAILABLE, "still loading")


class Broken(SimEngine):
    """Fails in the middle of a generation."""

    fatal = False

    async def generate(self, call: Any) -> Any:
        stream = super().generate(call)
        yield await anext(stream)
        await stream.aclose()
        raise EngineError("a bolt came loose", fatal=self.fatal)


class Short(SimEngine):
    """Ends a generation without saying so."""

    async def generate(self, call: Any) -> Any:
        async with contextlib.aclosing(super().generate(call)) as stream:
            yield await anext(stream)


async def test_an_engine_error_is_internal_and_a_fatal_one_ends_the_node():
    engine = Broken(config().inference)
    async with running(engine=engine) as (node, client):
        error = await refused(client.collect("generate", request()), Code.INTERNAL, "a bolt came loose")
        assert error.reason == "ENGINE_FAILED" and not node.state.failed.is_set()
        engine.fatal = True
        await refused(client.collect("generate", request()), Code.INTERNAL, "a bolt came loose")
        assert node.state.failed.is_set() and not node.state.ready
        await refused(client.collect("generate", request()), Code.UNAVAILABLE, "engine has failed")


async def test_an_engine_that_ends_too_soon_is_not_taken_for_success():
    async with running(engine=Short(config(FAST).inference)) as (_, client):
        await refused(client.collect("generate", request()), Code.INTERNAL, "before it was complete")


async def test_streams_go_out_step_by_step_not_all_at_the_end():
    async with running(config(SLOW)) as (_, client):
        loop = asyncio.get_running_loop()
        times = []
        async with contextlib.aclosing(client.stream("generate", request(max_tokens=5, ignore_eos=True))) as answers:
            async for _ in answers:
                times.append(loop.time())
        assert len(times) == 5
        assert times[-1] - times[0] > 0.06


async def test_a_reader_that_stops_holds_the_stream_and_loses_nothing():
    async with running() as (node, client):
        message = request(max_tokens=4000, ignore_eos=True, logprobs=5)
        async with contextlib.aclosing(client.stream("generate", message, timeout=60)) as answers:
            got = list((await anext(answers)).token_ids)
            await until(lambda: node.state.serving.engine.stats().running == 0, "the engine ran ahead", 30)
            async for answer in answers:
                got += answer.token_ids
        assert got == known("hello there", 4000)


async def test_with_streaming_off_only_whole_answers_are_given():
    async with running(config(enable_streaming=False)) as (_, client):
        await refused(client.collect("generate", request()), Code.INVALID_ARGUMENT, "enable_streaming")
        chat = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="hi")])
        await refused(client.collect("chat", chat), Code.INVALID_ARGUMENT, "enable_streaming")
        whole = await client.unary("complete", pb.CompleteRequest(request=request(max_tokens=4)))
        assert whole.usage.completion_tokens == 4
