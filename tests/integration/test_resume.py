"""A stream cut after any of its messages goes on, on another node, as if nothing had been: gRPC and OpenAI's SSE."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import xxhash

from inference_node.engines import sim_text
from inference_node.node import Node
from shared.config.schema import SimConfig
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import node_pb2
from tests.support.ports import until
from tests.support.resumes import ASK, RESUME, Heard, hear, resumed, web
from tests.unit.node.harness import config, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COLD = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=0.2, decode_per_sequence_ms=0.0, prefix_cache=False)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with contextlib.AsyncExitStack() as stack:
        conf = config(sim=COLD, default_max_tokens=64)
        pairs = [await stack.enter_async_context(running(conf)) for _ in range(2)]
        yield pairs[0][0], pairs[1][0]


def generate(text: str = "hello there", **sampling: Any) -> pb.GenerateRequest:
    sampling.setdefault("max_tokens", 7)
    return pb.GenerateRequest(text=text, sampling=pb.SamplingParams(**sampling))


def chat(text: str = "hello there", **sampling: Any) -> pb.ChatRequest:
    sampling.setdefault("max_tokens", 7)
    turns = [pb.ChatMessage(role="user", content=text)]
    return pb.ChatRequest(messages=turns, sampling=pb.SamplingParams(**sampling))


def web_chat(**body: Any) -> Any:
    return web(CHAT, **{"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 7, **body})


def known(tokens: int, text: str = "hello there") -> str:
    """What the simulator says to a prompt."""
    ids = sim_text.expected_tokens(sim_text.encode(text), 0, 0, True)
    return sim_text.decode([next(ids) for _ in range(tokens)])


def spanning() -> str:
    """A stop string that begins in one token of the known text and ends two tokens later."""
    text = known(6)
    words = text.split(" ")
    return f"{words[3][-2:]} {words[4]} {words[5][:1]}"


TYPED = {
    "generate": generate(ignore_eos=True),
    "generate to its own end": generate("a short one", max_tokens=2000, seed=11),
    "generate with a stop that spans the cut": generate(ignore_eos=True, stop=[spanning()], max_tokens=40),
    "generate that keeps its stop": generate(
        ignore_eos=True, stop=[spanning()], max_tokens=40, include_stop_str_in_output=True
    ),
    "generate with min_tokens and penalties": generate(
        min_tokens=5, presence_penalty=1.0, frequency_penalty=1.0, repetition_penalty=1.5, temperature=0.9, seed=3
    ),
    "generate with log-probabilities": generate(ignore_eos=True, logprobs=2),
    "chat": chat(ignore_eos=True),
    "chat with a stop": chat(ignore_eos=True, stop=[" z", " b"], max_tokens=60),
}


def new_parts(messages: list[Any]) -> list[Any]:
    """Messages without what depends on the clock."""
    out = []
    for message in messages:
        copy = type(message)()
        copy.CopyFrom(message)
        copy.ClearField("timings")
        copy.ClearField("request_id")
        out.append(copy)
    return out


@pytest.mark.parametrize("name", TYPED)
async def test_a_typed_stream_cut_after_any_message_goes_on_as_if_undisturbed(nodes: tuple[Node, Node], name: str):
    first, second = nodes
    request = TYPED[name]
    whole = await hear(first.address, request)
    assert whole.journal == "1" and not whole.code
    # The last message ends the stream: a router whose client has it needs no other node.
    cuts = range(1, len(whole.messages)) if len(whole.messages) < 40 else range(1, len(whole.messages), 7)
    for k in cuts:
        rest = await hear(second.address, resumed(request, whole.messages[:k]), RESUME)
        assert not rest.code, (k, rest)
        assert rest.journal == "1"
        assert whole.messages[k - 1 : k] + rest.messages  # something is left to say
        assert "".join(_text(m) for m in whole.messages[:k]) + rest.text == whole.text
        assert [t for m in whole.messages[:k] for t in m.token_ids] + rest.tokens == whole.tokens
        end, wanted = rest.messages[-1], whole.messages[-1]
        assert (end.finish_reason, end.stop_reason) == (wanted.finish_reason, wanted.stop_reason)
        assert end.usage == wanted.usage
        assert all(not m.request_id and not m.model and not m.engine for m in rest.messages)
        assert all(not getattr(m, "role", "") for m in rest.messages)


def _text(message: Any) -> str:
    return str(message.content if isinstance(message, pb.ChatResponse) else message.text)


async def test_log_probabilities_of_what_is_new_are_those_of_the_undisturbed_run(nodes: tuple[Node, Node]):
    request = TYPED["generate with log-probabilities"]
    whole = await hear(nodes[0].address, request)
    rest = await hear(nodes[1].address, resumed(request, whole.messages[:3]), RESUME)
    before = sum(len(m.logprobs) for m in whole.messages[:3])
    everything = [entry for m in whole.messages for entry in m.logprobs]
    assert [entry for m in rest.messages for entry in m.logprobs] == everything[before:]


async def test_a_client_that_has_no_message_yet_gets_the_first_one_whole(nodes: tuple[Node, Node]):
    request = chat(ignore_eos=True)
    whole = await hear(nodes[0].address, request)
    rest = await hear(nodes[1].address, resumed(request, []), RESUME)
    assert rest.text == whole.text
    assert (rest.messages[0].role, rest.messages[0].model, rest.messages[0].engine) == ("assistant", "demo", "sim")
    assert rest.messages[0].request_id


async def test_tokens_that_are_all_there_may_be_need_only_their_end(nodes: tuple[Node, Node]):
    request = generate(ignore_eos=True)
    whole = await hear(nodes[0].address, request)
    rest = await hear(nodes[1].address, resumed(request, whole.messages), RESUME)
    (end,) = rest.messages
    assert not end.text and not end.token_ids
    assert end.finish_reason == pb.FINISH_REASON_LENGTH and end.usage == whole.messages[-1].usage
    assert nodes[1].state.serving.engine.stats().generation_tokens == 0


async def test_a_stream_may_go_on_more_than_once(nodes: tuple[Node, Node]):
    request = generate(ignore_eos=True, max_tokens=9, stop=["nowhere"])
    whole = await hear(nodes[0].address, request)
    have: list[Any] = whole.messages[:2]
    for attempt in (1, 2, 3):
        rest = await hear(nodes[attempt % 2].address, resumed(request, have, attempt=attempt), RESUME)
        assert rest.journal == "1"
        have = have + rest.messages[:2]
    assert "".join(_text(m) for m in have) == whole.text[: len("".join(_text(m) for m in have))]
    assert [t for m in have for t in m.token_ids] == whole.tokens[: sum(len(m.token_ids) for m in have)]


WEB = {
    "chat": web_chat(ignore_eos=True),
    "chat with usage": web_chat(ignore_eos=True, stream_options={"include_usage": True}),
    "chat with a stop that spans the cut": web_chat(stop=[" z", " b"], max_tokens=40, ignore_eos=True),
    "completions": web(TEXT, prompt="hello there", max_tokens=7, ignore_eos=True),
    "completions with usage and stop": web(
        TEXT, prompt="hello there", max_tokens=40, stop=spanning(), stream_options={"include_usage": True}
    ),
    "completions to their own end": web(TEXT, prompt="short", max_tokens=600, seed=11, temperature=1.0),
}


@pytest.mark.parametrize("name", WEB)
async def test_sse_cut_after_any_message_goes_on_byte_for_byte(nodes: tuple[Node, Node], name: str):
    first, second = nodes
    request = WEB[name]
    named = (("x-request-id", "the-same"),)
    whole = await hear(first.address, request, (*ASK, *named))
    assert whole.journal == "1" and whole.body.endswith(b"data: [DONE]\n\n")
    cuts = range(1, len(whole.messages) + 1) if len(whole.messages) < 40 else range(1, len(whole.messages) + 1, 9)
    for k in cuts:
        had = whole.messages[:k]
        rest = await hear(second.address, resumed(request, had), (*RESUME, *named))
        assert not rest.code, (k, rest)
        assert rest.messages[0].head.status == 200 and rest.journal == "1"
        assert b"".join(m.body for m in had) + rest.body == whole.body
        assert [t for m in had for t in m.token_ids] + rest.tokens == whole.tokens


async def test_the_tokens_beside_the_bytes_are_those_of_the_text(nodes: tuple[Node, Node]):
    heard = await hear(nodes[0].address, WEB["chat with usage"])
    head, *parts = heard.messages
    assert head.WhichOneof("part") == "head" and not head.token_ids
    events = [json.loads(line[6:]) for line in heard.body.decode().split("\n\n") if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert sim_text.decode(heard.tokens) == text
    assert events[-1]["usage"]["completion_tokens"] == len(heard.tokens) == 7
    assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
    assert all(not part.pinned for part in parts)


async def test_the_time_of_the_first_chunk_stays(nodes: tuple[Node, Node]):
    request = WEB["chat"]
    whole = await hear(nodes[0].address, request)
    had = whole.messages[:3]
    asked = resumed(request, had)
    then = asked.resume.created - 1000
    asked.resume.created = then
    body = b"".join(m.body for m in had).replace(b'"created":%d' % (then + 1000), b'"created":%d' % then)
    asked.resume.body_hash = xxhash.xxh3_64_intdigest(body)
    named = (("x-request-id", json.loads(had[1].body[6:])["id"].removeprefix("chatcmpl-")),)
    rest = await hear(nodes[1].address, asked, (*RESUME, *named))
    events = [json.loads(line[6:]) for line in rest.body.decode().split("\n\n") if line.startswith("data: {")]
    assert events and {event["created"] for event in events} == {then}


@pytest.mark.parametrize("request_of", ["typed", "web"])
async def test_what_cannot_have_been_said_here_is_refused_before_anything_is_sent(
    nodes: tuple[Node, Node], request_of: str
):
    named = (("x-request-id", "x"),)
    request = generate(ignore_eos=True) if request_of == "typed" else WEB["chat"]
    whole = await hear(nodes[0].address, request, (*ASK, *named))
    wrong_token, wrong_text = resumed(request, whole.messages[:4]), resumed(request, whole.messages[:4])
    wrong_token.resume.token_ids[1] = sim_text.WORDS_AT
    if request_of == "typed":
        wrong_text.resume.text_bytes += 1
    else:
        wrong_text.resume.body_hash ^= 1
    for asked in (wrong_token, wrong_text):
        heard = await hear(nodes[1].address, asked, (*RESUME, *named))
        assert (heard.code, heard.reason, heard.messages) == ("UNAVAILABLE", "RESUME_INEXACT", [])


@pytest.mark.parametrize("request_of", ["typed", "web"])
async def test_resumed_streams_are_counted_with_their_tokens_and_by_why_not(nodes: tuple[Node, Node], request_of: str):
    named = (("x-request-id", "x"),)
    request = generate(ignore_eos=True) if request_of == "typed" else WEB["chat"]
    whole = await hear(nodes[0].address, request, (*ASK, *named))
    asked = resumed(request, whole.messages[:4])
    assert not (await hear(nodes[1].address, asked, (*RESUME, *named))).code
    asked.resume.token_ids[1] = sim_text.WORDS_AT
    assert (await hear(nodes[1].address, asked, (*RESUME, *named))).reason == "RESUME_INEXACT"
    page = nodes[1].metrics.exposition().decode()
    delivered = sum(len(message.token_ids) for message in whole.messages[:4])
    assert 'laya_node_resumes_total{outcome="resumed"} 1.0' in page
    assert 'laya_node_resumes_total{outcome="RESUME_INEXACT"} 1.0' in page
    assert f"laya_node_resumed_tokens_total {delivered}.0" in page
    assert 'outcome="resumed"' not in nodes[0].metrics.exposition().decode()


async def test_only_a_router_may_resume(nodes: tuple[Node, Node]):
    for request in (generate(), WEB["chat"]):
        heard = await hear(nodes[0].address, resumed(request, []))
        assert (heard.code, heard.messages) == ("INVALID_ARGUMENT", []) and "resume" in heard.detail
        heard = await hear(nodes[0].address, request, RESUME)
        assert (heard.code, heard.messages) == ("INVALID_ARGUMENT", [])


async def test_a_refusal_of_a_resumed_tunnel_is_for_the_router(nodes: tuple[Node, Node]):
    whole = await hear(nodes[0].address, WEB["chat"])
    nodes[1].state.drain()
    heard = await hear(nodes[1].address, resumed(WEB["chat"], whole.messages[:3]), RESUME)
    assert (heard.code, heard.reason, heard.messages) == ("UNAVAILABLE", "DRAINING", [])


async def test_more_tokens_than_the_request_allows_are_refused(nodes: tuple[Node, Node]):
    request = generate(ignore_eos=True)
    whole = await hear(nodes[0].address, request)
    asked = resumed(generate(ignore_eos=True, max_tokens=3), whole.messages[:5])
    heard = await hear(nodes[1].address, asked, RESUME)
    assert heard.code == "INVALID_ARGUMENT" and "allows 3" in heard.detail


async def test_a_draining_node_hands_its_streams_over_at_once(nodes: tuple[Node, Node]):
    slow = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=30.0, decode_per_sequence_ms=0.0)
    named = (("x-request-id", "d"),)
    async with running(config(sim=slow)) as (node, _):

        def drain(heard: Heard) -> None:
            if len(heard.messages) == 3:
                node.drainer.begin(60.0, migrate=True)

        for request in (generate(ignore_eos=True, max_tokens=60), web_chat(ignore_eos=True, max_tokens=60)):
            heard = await hear(node.address, request, (*ASK, *named), after_each=drain)
            assert (heard.code, heard.reason) == ("UNAVAILABLE", "DRAINING")
            assert 0 < len(heard.tokens) < 60
            node.drainer.undo()
            rest = await hear(nodes[1].address, resumed(request, heard.messages), (*RESUME, *named))
            assert not rest.code
            assert len(heard.tokens) + len(rest.tokens) == 60


async def test_what_waits_for_room_is_handed_over_too(nodes: tuple[Node, Node]):
    slow = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=30.0, decode_per_sequence_ms=0.0)
    async with running(config(sim=slow, max_num_seqs=1)) as (node, _):
        first = asyncio.create_task(hear(node.address, generate(ignore_eos=True, max_tokens=60)))
        second = asyncio.create_task(hear(node.address, web_chat(ignore_eos=True)))
        admission = node.state.serving.admission
        await until(lambda: (admission.running, admission.waiting) == (1, 1), "one runs and one waits")
        node.drainer.begin(60.0, migrate=True)
        for heard in await asyncio.gather(first, second):
            assert (heard.code, heard.reason) == ("UNAVAILABLE", "DRAINING")


@pytest.mark.parametrize("metadata", [ASK, ()], ids=["granted", "not granted"])
async def test_at_the_end_of_the_grace_whatever_is_left_is_handed_over(nodes: tuple[Node, Node], metadata: Any):
    slow = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=30.0, decode_per_sequence_ms=0.0)
    async with running(config(sim=slow)) as (node, client):

        def drain(heard: Heard) -> None:
            if len(heard.messages) == 2:
                node.drainer.begin(0.01)

        for request in (generate(ignore_eos=True, max_tokens=200), web_chat(ignore_eos=True, max_tokens=200)):
            heard = await hear(node.address, request, metadata, after_each=drain)
            assert (heard.code, heard.reason) == ("UNAVAILABLE", "DRAINING")
            node.drainer.undo()
        drained = await client.unary("drain", node_pb2.DrainRequest(grace_seconds=5, migrate=True))
        assert drained.draining


async def test_a_draining_node_lets_others_go_on(nodes: tuple[Node, Node]):
    slow = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=10.0, decode_per_sequence_ms=0.0)
    async with running(config(sim=slow)) as (node, _):

        def drain(heard: Heard) -> None:
            if len(heard.messages) == 2:
                node.drainer.begin(60.0, migrate=True)

        for request, metadata in ((generate(ignore_eos=True), ()), (generate(ignore_eos=True, n=2), ASK)):
            heard = await hear(node.address, request, metadata, after_each=drain)
            assert not heard.code and len(heard.tokens) == 7 * (request.sampling.n or 1)
            node.drainer.undo()
