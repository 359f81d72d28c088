"""The node's plain HTTP: the same admission, pages without a token, errors as OpenAI objects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.ports import until
from tests.unit.node.harness import SLOW, config, running

CHAT = "/v1/chat/completions"


def chat(**kw: Any) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **kw}


def http(node: Any, **kw: Any) -> Any:
    return httpx.AsyncClient(base_url=f"http://{node.address}", timeout=10, **kw)


@pytest.fixture
async def node():
    async with running() as (it, _):
        yield it


async def test_a_chat_is_answered_with_its_length_and_request_id(node):
    async with http(node) as client:
        answer = await client.post(CHAT, json=chat(max_tokens=3), headers={"x-request-id": "abc"})
        assert answer.status_code == 200 and answer.headers["x-request-id"] == "abc"
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert answer.headers["x-laya-engine"] == "sim"
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_a_stream_is_events(node):
    async with http(node) as client, client.stream("POST", CHAT, json=chat(max_tokens=3, stream=True)) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) == 4


async def test_the_openai_library_is_at_home_here(node):
    import openai

    async with openai.AsyncOpenAI(base_url=f"http://{node.address}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="demo", messages=messages, max_tokens=4)
        parts: Any = await client.chat.completions.create(model="demo", messages=messages, max_tokens=4, stream=True)
        text = "".join([p.choices[0].delta.content or "" async for p in parts if p.choices])
        assert whole.choices[0].message.content == text and text
        assert [m.id async for m in client.models.list()] == ["demo"]
        vectors = await client.embeddings.create(model="demo", input=["a", "b"])
        assert len(vectors.data[0].embedding) == 64
        with pytest.raises(openai.NotFoundError, match="no model 'ghost'"):
            await client.chat.completions.create(model="ghost", messages=messages)
        with pytest.raises(openai.BadRequestError, match="max_tokens is 0"):
            await client.chat.completions.create(model="demo", messages=messages, max_tokens=0)


async def test_pages_for_who_watches_the_machine_need_no_token():
    async with running(config(server={"cluster_token": "s3cret"})) as (node, _), http(node) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).status_code == 200
        metrics = await client.get("/metrics")
        assert metrics.status_code == 200 and "laya_node_ready 1.0" in metrics.text
        assert (await client.post("/healthz")).status_code == 405
        assert (await client.head("/readyz")).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_the_api_needs_the_token_where_one_is_set():
    async with running(config(server={"cluster_token": "s3cret"})) as (node, _), http(node) as client:
        refused = await client.get("/v1/models")
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "cluster_token_invalid"
        for headers in ({"authorization": "Bearer s3cret"}, {"laya-cluster-token": "s3cret"}):
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        assert (await client.get("/v1/models", headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await client.post("/tokenize", json={"prompt": "x"})).status_code == 401


async def test_before_the_model_is_loaded_and_while_draining_it_is_not_ready():
    async with running(serve=False) as (node, _), http(node) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503 and "loading" in answer.json()["status"]
        answer = await client.post(CHAT, json=chat())
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    async with running() as (node, _), http(node) as client:
        node.state.drain()
        assert "draining" in (await client.get("/readyz")).json()["status"]
        assert (await client.get("/health")).status_code == 503
        assert (await client.post(CHAT, json=chat())).status_code == 503
        node.state.drain(undo=True)
        assert (await client.get("/readyz")).status_code == 200


async def test_unknown_paths_wrong_methods_and_coded_bodies_are_told(node):
    async with http(node) as client:
        assert (await client.get("/nope")).status_code == 404
        assert (await client.get(CHAT)).status_code == 405
        coded = await client.post(CHAT, content=b"xx", headers={"content-encoding": "gzip"})
        assert coded.status_code == 415
        assert (await client.post(CHAT, content=b"{", headers={"content-type": "application/json"})).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_the_engine(stream):
    async with running(config(SLOW)) as (node, _):
        engine = node.state.serving.engine
        async with http(node) as client:
            body = chat(max_tokens=10_000, ignore_eos=True, stream=stream)
            task = asyncio.create_task(client.post(CHAT, json=body))
            await until(lambda: engine.stats().running == 1, "it runs")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: engine.stats().running == 0, "the engine is idle", 2.0)
        await until(lambda: node.state.serving.admission.running == 0, "the hold is back", 2.0)


async def test_half_a_request_and_garbage_leave_nothing_behind(node):
    host, port = node.address.split(":")
    for raw in (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{", b"\x00\xffgarbage\r\n\r\n"):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    async with http(node) as client:
        assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200
    await until(lambda: node._http.running == 0, "no request is left")


async def test_metrics_say_what_happened(node):
    async with http(node) as client:
        await client.post(CHAT, json=chat(max_tokens=3))
        await client.post(CHAT, json=chat(max_tokens=10_000_000))
        await client.post(CHAT, json=chat(max_tokens=100_000))
        text = (await client.get("/metrics")).text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    assert samples['laya_node_requests_total{outcome="ok",service="openai"}'] == "1.0"
    assert samples['laya_node_refusals_total{reason="CONTEXT_TOO_LONG"}'] == "1.0"
    assert samples['laya_node_ttft_seconds_count{service="openai"}'] == "1.0"
    assert float(samples["laya_node_kv_headroom_tokens"]) == float(samples["laya_node_kv_capacity_tokens"]) > 0
    assert samples["laya_node_engine_preemptions_total"] == "0.0"
    assert json.dumps(node.state.names[0]) in text
