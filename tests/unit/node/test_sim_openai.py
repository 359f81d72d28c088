"""The simulator's OpenAI application: the answers OpenAI clients expect, errors as OpenAI objects."""

from __future__ import annotations

import base64
import struct
from itertools import islice
from typing import Any

import pytest

from inference_node.engines import sim_text
from inference_node.engines.sim import SimEngine
from shared.config.schema import InferenceConfig, SimConfig
from tests.unit.node.asgi import call

FAST = SimConfig(prefill_tokens_per_second=1e7, decode_base_ms=0.1, decode_per_sequence_ms=0.0)
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture
async def app():
    config = InferenceConfig(engine="sim", model="demo", aliases=["other"], default_max_tokens=7, sim=FAST)
    engine = SimEngine(config)
    await engine.start()
    yield engine.asgi_app()
    assert engine.stats().running == 0
    await engine.stop()


def chat(**kw: Any) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **kw}


def chat_ids(text: Any = "hi") -> Any:
    return [sim_text.USER, *sim_text.encode(text), sim_text.END, sim_text.ASSISTANT]


def known(ids: Any, count: Any, index: Any = 0, seed: Any = 0) -> Any:
    return sim_text.decode(list(islice(sim_text.expected_tokens(ids, seed, index, True), count)))


async def test_a_chat_answers_with_the_known_text_and_its_usage(app):
    answer = await call(app, "POST", CHAT, chat(max_tokens=5, ignore_eos=True))
    assert answer.status == 200
    assert answer.headers[b"x-laya-engine"] == b"sim"
    body = answer.json
    assert (body["object"], body["model"], body["system_fingerprint"]) == ("chat.completion", "demo", "sim")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": known(chat_ids(), 5)}
    assert choice["finish_reason"] == "length"
    size = len(chat_ids())
    assert body["usage"] == {
        "prompt_tokens": size,
        "completion_tokens": 5,
        "total_tokens": size + 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_streamed_chat_is_events_with_role_text_finish_usage_and_done(app):
    body = chat(max_completion_tokens=4, stream=True, ignore_eos=True, stream_options={"include_usage": True})
    answer = await call(app, "POST", CHAT, body, [(b"x-request-id", b"abc")])
    assert answer.headers[b"content-type"].startswith(b"text/event-stream")
    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4
    assert {c["id"] for c in chunks} == {"chatcmpl-abc"}
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0]["role"] == "assistant" and all("role" not in d for d in deltas[1:])
    assert "".join(d["content"] for d in deltas) == known(chat_ids(), 4)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "length"]


async def test_no_usage_event_unless_asked_for(app):
    answer = await call(app, "POST", CHAT, chat(max_tokens=2, stream=True))
    assert all("usage" not in e for e in answer.events[:-1])


async def test_an_absent_max_tokens_takes_the_default(app):
    answer = await call(app, "POST", CHAT, chat(ignore_eos=True))
    assert answer.json["usage"]["completion_tokens"] == 7


async def test_completions_take_text_ids_and_lists_of_either(app):
    ids = sim_text.encode("one")
    for prompt in ("one", ids, ["one"], [ids]):
        answer = await call(app, "POST", TEXT, {"model": "demo", "prompt": prompt, "max_tokens": 3, "ignore_eos": True})
        assert answer.json["choices"][0]["text"] == known(ids, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_with_n_give_choices_in_order(app, stream):
    body = {"model": "demo", "prompt": ["one", "two"], "n": 2, "max_tokens": 3, "ignore_eos": True, "stream": stream}
    answer = await call(app, "POST", TEXT, body)
    texts = ["", "", "", ""]
    for event in answer.events[:-1] if stream else [answer.json]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    one, two = sim_text.encode("one"), sim_text.encode("two")
    assert texts == [known(one, 3), known(one, 3, 1), known(two, 3), known(two, 3, 1)]


async def test_chat_logprobs_have_so_many_alternatives_the_chosen_first(app):
    answer = await call(app, "POST", CHAT, chat(max_tokens=3, logprobs=True, top_logprobs=2))
    content = answer.json["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert len(entry["top_logprobs"]) == 2
        assert bytes(entry["bytes"]).decode() == entry["token"]


@pytest.mark.parametrize("stream", [False, True])
async def test_completion_logprobs_have_offsets_into_the_text(app, stream):
    body = {"model": "demo", "prompt": "one", "max_tokens": 3, "logprobs": 1, "ignore_eos": True, "stream": stream}
    answer = await call(app, "POST", TEXT, body)
    text, offsets, tokens = "", [], []
    for event in answer.events[:-1] if stream else [answer.json]:
        choice = event["choices"][0]
        text += choice["text"]
        offsets += choice["logprobs"]["text_offset"]
        tokens += choice["logprobs"]["tokens"]
    assert "".join(tokens) == text
    assert all(text[o:].startswith(t) for o, t in zip(offsets, tokens, strict=True))


async def test_cached_tokens_show_in_the_usage(app):
    body = {"model": "demo", "prompt": "word " * 100, "max_tokens": 1}
    await call(app, "POST", TEXT, body)
    answer = await call(app, "POST", TEXT, body)
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_choice_is_honoured_and_content_parts_are_read(app):
    content = [{"type": "text", "text": "red or "}, {"type": "text", "text": "blue?"}]
    body = chat(messages=[{"role": "user", "content": content}], structured_outputs={"choice": ["red", "blue"]})
    answer = await call(app, "POST", CHAT, body)
    assert answer.json["choices"][0]["message"]["content"] in ("red", "blue")


async def test_embeddings_as_floats_and_base64(app):
    floats = (await call(app, "POST", "/v1/embeddings", {"model": "demo", "input": ["a b", "c"]})).json
    assert [d["index"] for d in floats["data"]] == [0, 1]
    body = {"model": "demo", "input": "a b", "encoding_format": "base64", "dimensions": 8}
    packed = (await call(app, "POST", "/v1/embeddings", body)).json["data"][0]["embedding"]
    assert len(struct.unpack("<8f", base64.b64decode(packed))) == 8
    assert floats["usage"]["prompt_tokens"] == len(sim_text.encode("a b")) + len(sim_text.encode("c"))


async def test_models_tokenize_and_detokenize(app):
    models = (await call(app, "GET", "/v1/models")).json
    assert [m["id"] for m in models["data"]] == ["demo", "other"]
    answer = (await call(app, "POST", "/tokenize", {"prompt": "so be it"})).json
    assert answer["tokens"] == sim_text.encode("so be it") and answer["count"] == len(answer["tokens"])
    back = (await call(app, "POST", "/detokenize", {"tokens": answer["tokens"]})).json
    assert back["prompt"] == "so be it"
    turns = (await call(app, "POST", "/tokenize", {"messages": chat()["messages"]})).json
    assert turns["tokens"] == chat_ids()


@pytest.mark.parametrize(
    ("path", "body", "status", "words", "param"),
    [
        (CHAT, b"{nope", 400, "not valid JSON", None),
        (CHAT, b"[1]", 400, "JSON object", None),
        (CHAT, b'"\xff"', 400, "not valid JSON", None),
        (CHAT, {"model": "demo"}, 400, "messages", None),
        (CHAT, chat(messages=[]), 400, "messages is empty", "messages"),
        (CHAT, chat(max_tokens="five"), 400, "expected", "max_tokens"),
        (CHAT, chat(max_tokens=0), 400, "max_tokens is 0", "max_tokens"),
        (CHAT, chat(max_tokens=-3), 400, "max_tokens is -3", "max_tokens"),
        (CHAT, chat(temperature=3), 400, "temperature is 3", "temperature"),
        (CHAT, chat(n=0), 400, "n is 0", "n"),
        (CHAT, chat(max_tokens=200_000), 400, "context is 32768", "max_tokens"),
        (CHAT, chat(model="ghost"), 404, "no model 'ghost'; there is demo, other", "model"),
        (CHAT, chat(response_format={"type": "json_object"}), 400, "sim engine", "response_format"),
        (CHAT, chat(structured_outputs={"regex": "a"}), 400, "sim engine", "structured_outputs"),
        (CHAT, chat(logit_bias={"5": 1}), 400, "sim engine", "logit_bias"),
        (CHAT, chat(tool_choice="required"), 400, "sim engine", "tool_choice"),
        (CHAT, chat(use_beam_search=True), 400, "beam", "use_beam_search"),
        (CHAT, chat(stop=[""]), 400, "stop", "stop"),
        (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "text alone", None),
        (TEXT, {"prompt": ""}, 400, "empty", "prompt"),
        (TEXT, {"prompt": []}, 400, "0 prompts", "prompt"),
        (TEXT, {"prompt": ["a", 1]}, 400, "mixes", "prompt"),
        (TEXT, {"prompt": [1 << 30]}, 400, "not in the vocabulary", "prompt"),
        (TEXT, {"prompt": "x", "echo": True}, 400, "echo", "echo"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "xml"}, 400, "encoding_format", "encoding_format"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens", "tokens"),
        ("/v1/files", {}, 404, "has no /v1/files", None),
    ],
)
async def test_bad_input_is_one_clear_openai_error(app, path, body, status, words, param):
    answer = await call(app, "POST", path, body)
    assert answer.status == status
    error = answer.json["error"]
    assert words in error["message"] and error["type"] and error["code"]
    if param:
        assert error["param"] == param


async def test_a_wrong_method_is_told(app):
    answer = await call(app, "GET", CHAT)
    assert answer.status == 405
