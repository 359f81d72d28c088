"""A GGUF file as it is: ``laya up`` with engine llama_cpp, real weights, and llama.cpp's own answers beside it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import yaml

from inference_node.quantize import demo
from shared.client import LayaClient
from shared.errors import LayaError
from tests.support.processes import fetch, metric
from tests.support.up import Up, serving, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("llama_cpp") is None,
        reason="llama-cpp-python is not installed; make setup-llama-cpp compiles it",
    ),
]
PROMPT = "The capital of France is"
CELLS, CONTEXT, BATCH = 1024, 512, 64
NUMBER = {"type": "integer", "maximum": 9}
INFERENCE = {
    "max_seq_len": CONTEXT,
    "max_num_seqs": 4,
    "engine_args": {"n_ctx": CELLS, "n_batch": BATCH, "n_threads": 1, "flash_attn": True},
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One node, with room for a few sequences."""
    config = tmp_path_factory.mktemp("config") / "laya.yaml"
    config.write_text(yaml.safe_dump({"inference": INFERENCE}))
    cache = tmp_path_factory.mktemp("cache")
    running = Up(cache, "--config", str(config), "--model", str(demo.gguf()), "--nodes", "1")
    with serving(running):
        yield running


@pytest.fixture(scope="module")
def node(up: Up) -> str:
    """The node's own address."""
    (found,) = json.loads(up.laya("nodes", "--json").stdout)
    return str(found["address"])


def sdk(up: Up) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://{up.ready['address']}/v1", api_key="x", max_retries=0)


def chat(up: Up, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say hello to Anna."}]
    return {"model": up.ready["model"], "messages": messages, "max_tokens": 12, "temperature": 0, **more}


def test_auto_takes_llama_cpp_for_a_gguf_file(up: Up) -> None:
    assert up.ready["engine"] == "llama_cpp"
    assert up.ready["model"] == demo.gguf().stem


async def test_a_greedy_answer_is_llama_cpps_own(up: Up) -> None:
    # In a process of its own: what goes wrong in C then fails this test, not all of them.
    own = f"""
import json, llama_cpp
sizes = dict(n_ctx={CONTEXT}, n_batch={BATCH}, n_ubatch={BATCH}, n_threads=1)
own = llama_cpp.Llama({str(demo.gguf())!r}, flash_attn=True, verbose=False, **sizes)
found = own.create_completion({PROMPT!r}, temperature=0, repeat_penalty=1.0, max_tokens=24)
print(json.dumps(found["choices"][0]["text"]))
"""
    command = [sys.executable, "-c", own]
    said = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True, timeout=60)
    wanted = json.loads(said.stdout)
    async with LayaClient(up.ready["address"], timeout=60) as client:
        answer = await client.complete(PROMPT, max_tokens=24, temperature=0)
    assert "Paris" in wanted
    assert (answer.text, answer.engine) == (wanted, "llama_cpp")


async def test_a_chat_streams_the_text_that_it_answers_whole(up: Up) -> None:
    async with sdk(up) as client:
        whole = await client.chat.completions.create(**chat(up))
        stream = await client.chat.completions.create(**chat(up, stream=True, stream_options={"include_usage": True}))
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text and text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"


async def test_four_requests_decode_side_by_side(up: Up) -> None:
    order: list[int] = []

    async def one(client: LayaClient, number: int) -> str:
        text = ""
        async for token in client.generate(f"The number {number} is", max_tokens=120, temperature=0, ignore_eos=True):
            order.append(number)
            text += str(token)
        return text

    async with LayaClient(up.ready["address"], timeout=60) as client:
        texts = await asyncio.gather(*(one(client, i) for i in range(4)))
    assert all(texts) and len(set(texts)) == 4
    last_start = max(order.index(i) for i in range(4))
    first_end = min(len(order) - 1 - order[::-1].index(i) for i in range(4))
    assert last_start < first_end  # all had begun before any was done


async def test_a_client_that_leaves_stops_the_engine(up: Up, node: str) -> None:
    def count(name: str) -> float:
        return metric(fetch(f"http://{node}/metrics"), f"laya_node_{name}")

    async with LayaClient(up.ready["address"], timeout=60) as client:
        stream = client.generate("Count: one, two,", max_tokens=400, ignore_eos=True)
        async for _ in stream:
            break
        await asyncio.to_thread(wait_for, lambda: count("engine_running_sequences") == 1, "it runs", 5)
        await stream.aclose()
        wait_for(lambda: count("engine_running_sequences") == 0, "nothing runs", 10)
        wait_for(lambda: count("holds") == 0, "nothing is held", 10)


async def test_what_can_never_fit_is_refused_before_it_starts(up: Up) -> None:
    async with LayaClient(up.ready["address"], timeout=60) as client:
        with pytest.raises(LayaError, match=f"NEVER_FITS.*holds {CONTEXT} tokens"):
            await client.complete(PROMPT, max_tokens=CONTEXT)
        with pytest.raises(LayaError, match="NEVER_FITS"):
            await client.complete(PROMPT, max_tokens=500, n=4)


async def test_an_answer_follows_its_json_schema(up: Up) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Anna", "Bert"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    async with sdk(up) as client:
        answer = await client.chat.completions.create(**chat(up, response_format=form, max_tokens=64))
    found = json.loads(answer.choices[0].message.content or "")
    assert found["name"] in ("Anna", "Bert") and found["old"] in (True, False)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}}, "json_schema"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"extra_body": {"prompt_logprobs": 2}}, "prompt_logprobs"),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, "regex"),
        ({"extra_body": {"structured_outputs": {"grammar": "root ::= nothing"}}}, "grammar"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(up: Up, more: dict[str, Any], param: str) -> None:
    async with sdk(up) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(**chat(up, stream=stream, **more))
            assert refused.value.param == param


async def test_several_answers_share_their_prompt_and_stop_where_they_should(up: Up) -> None:
    async with sdk(up) as client:
        answer = await client.completions.create(
            model=up.ready["model"], prompt="one, two, three,", max_tokens=24, n=3, seed=5, stop=[" six"], logprobs=2
        )
        again = await client.completions.create(
            model=up.ready["model"], prompt="one, two, three,", max_tokens=24, n=3, seed=5, stop=[" six"]
        )
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.text for c in answer.choices] == [c.text for c in again.choices]
    assert all(" six" not in c.text for c in answer.choices)
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.token_logprobs
        assert all(p is not None and p <= 0 for p in choice.logprobs.token_logprobs)
