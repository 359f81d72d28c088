"""The OpenAI tunnel: admission before the head, bodies completed, bytes untouched, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any

import fastapi
import pytest
from fastapi.responses import StreamingResponse

from inference_node.engines import sim_text
from inference_node.engines.base import EngineError
from inference_node.engines.sim import SimEngine
from shared.config.schema import SimConfig
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import openai_pb2
from tests.support.ports import until
from tests.unit.node.harness import FAST, SLOW, config, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(**kw: Any) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **kw}


@pytest.fixture
async def node():
    async with running(config(default_max_tokens=9)) as pair:
        yield pair


async def test_a_chat_comes_back_with_head_and_body(node):
    _, client = node
    status, headers, body = await client.openai(CHAT, chat(max_tokens=4), [(b"x-request-id", b"abc")])
    assert status == 200 and headers["x-laya-engine"] == "sim"
    assert "content-length" not in headers
    answer = json.loads(body)
    assert answer["usage"]["completion_tokens"] == 4 and answer["id"] == "chatcmpl-abc"


async def test_streamed_bytes_are_the_applications_own_one_message_an_event(node):
    _, client = node
    raw = json.dumps(chat(max_tokens=3, stream=True)).encode()
    request = openai_pb2.HttpRequest(method="POST", target=CHAT, body=raw)
    head, *parts = await client.collect("openai", request)
    assert head.head.status == 200
    assert len(parts) == 4
    assert all(part.body.startswith(b"data: ") and part.body.endswith(b"\n\n") for part in parts)
    assert parts[-1].body == b"data: [DONE]\n\n"


async def test_an_absent_max_tokens_becomes_the_default_on_every_route(node):
    _, client = node
    for path, body in ((CHAT, chat(ignore_eos=True)), (TEXT, {"prompt": "x", "ignore_eos": True})):
        status, _, raw = await client.openai(path, body)
        answer = json.loads(raw)
        assert status == 200 and answer["usage"]["completion_tokens"] == 9
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_models_tokenize_and_embeddings_pass(node):
    _, client = node
    status, _, body = await client.openai("/v1/models", b"", method="GET")
    assert status == 200 and json.loads(body)["data"][0]["id"] == "demo"
    status, _, body = await client.openai("/tokenize", {"prompt": "a b"})
    assert status == 200 and json.loads(body)["tokens"] == sim_text.encode("a b")
    status, _, body = await client.openai("/v1/embeddings", {"model": "demo", "input": ["a", "b"]})
    assert status == 200 and len(json.loads(body)["data"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/files", {}, 404, "There is no '/v1/files' here"),
        (CHAT, b"{", 400, "not valid JSON"),
        (CHAT, b"[]", 400, "must be a JSON object"),
        (CHAT, b"[" * 100_000, 400, "not valid JSON"),
        (CHAT, chat(model="ghost"), 404, "no model 'ghost' on this node; it serves demo"),
        (CHAT, chat(model=7), 400, "model must be a text"),
        (CHAT, chat(max_tokens=0), 400, "max_tokens is 0"),
        (CHAT, chat(max_tokens=-1), 400, "max_tokens is -1"),
        (CHAT, chat(max_completion_tokens=0), 400, "max_completion_tokens is 0"),
        (CHAT, chat(max_tokens="many"), 400, "max_tokens must be a whole number"),
        (CHAT, chat(max_tokens=True), 400, "max_tokens must be a whole number"),
        (CHAT, chat(max_tokens=40_000), 400, "the context is 32768"),
        (CHAT, chat(n=17), 400, "n is 17; it must be 1 to 16"),
        (CHAT, chat(n=0), 400, "n is 0"),
        (TEXT, {"prompt": "x", "best_of": 99}, 400, "best_of is 99"),
        (CHAT, chat(n=1.5), 400, "n must be a whole number"),
        (CHAT, chat(priority="high"), 400, "priority must be a whole number"),
        (CHAT, chat(cache_salt=1), 400, "cache_salt must be a text"),
        (TEXT, {"prompt": ""}, 400, "empty"),
        ("/v1/embeddings", {"input": ""}, 400, "empty"),
        ("/v1/responses", {"input": "x"}, 404, "no /v1/responses"),
    ],
)
async def test_bad_input_is_an_openai_error_before_anything_is_held(node, path, body, status, words):
    it, client = node
    got, headers, raw = await client.openai(path, body)
    assert got == status and headers["content-type"] == "application/json"
    assert words in json.loads(raw)["error"]["message"]
    assert it.state.serving.admission.running == 0


async def test_a_wrong_method_is_405(node):
    _, client = node
    assert (await client.openai(CHAT, b"", method="GET"))[0] == 405


async def test_a_refusal_is_a_429_head_with_a_hint_and_no_broken_stream():
    conf = config(SimConfig(kv_tokens=160, decode_base_ms=20.0), max_queue_seconds=0.05)
    async with running(conf) as (node, client):
        first = asyncio.create_task(client.openai(CHAT, chat(max_tokens=100, stream=True, ignore_eos=True)))
        await until(lambda: node.state.serving.admission.running == 1, "the first runs")
        status, headers, body = await client.openai(CHAT, chat(max_tokens=100, stream=True))
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_the_routers_word_goes_over_the_body(node):
    _, client = node
    clamps = [(b"laya-clamps", b'{"max_tokens":{"max":2},"temperature":{"max":1}}')]
    body = chat(max_tokens=8, temperature=1.9, ignore_eos=True)
    assert json.loads((await client.openai(CHAT, body, clamps))[2])["usage"]["completion_tokens"] == 2
    caps = [(b"laya-clamps", b'{"max_n":1,"max_max_tokens":5}')]
    assert (await client.openai(CHAT, chat(n=2), caps))[0] == 400
    assert (await client.openai(CHAT, chat(max_tokens=6), caps))[0] == 400
    renamed = await client.openai(CHAT, chat(model="alias-of-a-route"), [(b"laya-rewrite", b"demo")])
    assert renamed[0] == 200 and json.loads(renamed[2])["model"] == "demo"


async def test_a_tenants_salt_is_written_into_the_body(node):
    _, client = node
    body = {"prompt": "a long tale " * 30, "max_tokens": 1}
    hits = []
    for salt in (b"a", b"b", b"a"):
        answer = json.loads((await client.openai(TEXT, body, [(b"laya-salt", salt)]))[2])
        hits.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert hits == [False, False, True]


async def test_every_prompt_and_each_of_n_is_held():
    async with running(config(SLOW)) as (node, client):
        body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 60}
        task = asyncio.create_task(client.openai(TEXT, body))
        admission = node.state.serving.admission
        await until(lambda: admission.running == 1, "it runs")
        assert admission.sequences == 4
        assert admission.ledger.held_blocks == 4 * 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_unstreamed_request_gives_its_prefill_share_back_at_the_first_token():
    async with running(config(SLOW)) as (node, client):
        task = asyncio.create_task(client.openai(CHAT, chat(max_tokens=60, ignore_eos=True)))
        admission = node.state.serving.admission
        await until(lambda: admission.running == 1, "it runs")
        await until(lambda: admission.prefill_in_flight == 0, "the first token is there")
        assert admission.running == 1 and not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_aborts_the_engine_within_a_step(stream):
    async with running(config(SLOW)) as (node, client):
        engine = node.state.serving.engine
        task = asyncio.create_task(client.openai(CHAT, chat(max_tokens=10_000, ignore_eos=True, stream=stream)))
        await until(lambda: engine.stats().running == 1, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats().running == 0, "the engine is idle", 1.0)
        await until(lambda: node.state.serving.admission.running == 0, "the hold is back", 1.0)


class Odd(SimEngine):
    """Its application does as the test says."""

    app = None

    def asgi_app(self):
        return self.app


@contextlib.asynccontextmanager
async def odd(app):
    engine = Odd(config(FAST).inference)
    engine.app = app
    async with running(config(), engine) as pair:
        yield pair


async def test_the_application_hears_of_a_disconnect_first_and_is_then_cancelled():
    heard = []

    async def app(scope, receive, send):
        await receive()
        heard.append("started")
        try:
            heard.append((await receive())["type"])
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async with odd(app) as (_, client):
        task = asyncio.create_task(client.openai(CHAT, chat()))
        await until(lambda: heard, "the application runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(heard) == 3, "it was cancelled", 2.0)
    assert heard == ["started", "http.disconnect", "cancelled"]


async def test_an_application_that_fails_before_its_head_is_a_500():
    async def app(scope, receive, send):
        raise RuntimeError("secret detail")

    async with odd(app) as (_, client):
        status, _, body = await client.openai(CHAT, chat())
        assert status == 500 and b"secret" not in body


async def test_an_application_that_fails_in_the_middle_breaks_the_stream():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        raise EngineError("a bolt came loose")

    async def silent(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    for application in (app, silent):
        async with odd(application) as (_, client):
            with pytest.raises(LayaError) as e:
                await client.openai(CHAT, chat())
            assert e.value.code == Code.INTERNAL


async def test_what_the_application_sees_and_what_passes_back():
    seen: dict[str, Any] = {}

    async def app(scope, receive, send):
        message = await receive()
        seen.update(scope=scope, body=message["body"])
        headers = [
            (b"Content-Type", b"text/plain"),
            (b"Connection", b"close"),
            (b"content-length", b"3"),
            (b"X-A", b" b "),
        ]
        await send({"type": "http.response.start", "status": 207, "headers": headers})
        await send({"type": "http.response.body", "body": b"abc"})

    fields = [("content-type", "application/json"), ("authorization", "Bearer x"), ("cookie", "a=b"), ("accept", "*/*")]
    raw = b'{"model": "demo",  "max_tokens": 3, "prompt": "x"}'
    request = openai_pb2.HttpRequest(
        method="POST",
        target=TEXT + "?a=1",
        headers=[openai_pb2.HttpHeader(name=n, value=v) for n, v in fields],
        body=raw,
    )
    async with odd(app) as (_, client):
        trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        head, part = await client.collect("openai", request, [(b"x-request-id", b"r1"), (b"traceparent", trace)])
    assert head.head.status == 207 and part.body == b"abc"
    assert {h.name: h.value for h in head.head.headers} == {
        "content-type": "text/plain",
        "x-a": "b",
        "x-laya-engine": "sim",
    }
    assert seen["body"] == raw  # untouched: nothing had to be changed
    scope = seen["scope"]
    headers = dict(scope["headers"])
    assert (scope["path"], scope["query_string"], scope["method"]) == (TEXT, b"a=1", "POST")
    assert headers[b"x-request-id"] == b"r1" and headers[b"traceparent"] == trace
    assert headers[b"content-length"] == str(len(raw)).encode()
    assert b"authorization" not in headers and b"cookie" not in headers


async def test_a_large_body_goes_out_in_several_messages():
    big = bytes(range(256)) * 12_000

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": big})

    async with odd(app) as (_, client):
        raw = json.dumps(chat()).encode()
        _, *parts = await client.collect("openai", openai_pb2.HttpRequest(method="POST", target=CHAT, body=raw))
        assert len(parts) == 3 and b"".join(p.body for p in parts) == big


async def test_a_slow_reader_slows_the_application_down():
    sent = 0

    async def app(scope, receive, send):
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async with odd(app) as (_, client):
        raw = json.dumps(chat()).encode()
        request = openai_pb2.HttpRequest(method="POST", target=CHAT, body=raw)
        async with contextlib.aclosing(client.stream("openai", request, timeout=60)) as answers:
            await anext(answers)
            await until(lambda: sent > 0, "it sends")
            for _ in range(50):
                await asyncio.sleep(0)
            assert sent < 20
            total = 0
            async for part in answers:
                total += len(part.body)
        assert total == 200 * 65_536


async def test_text_through_the_tunnel_is_the_known_function(node):
    _, client = node
    body = {"prompt": "as known", "max_tokens": 30, "ignore_eos": True}
    answer = json.loads((await client.openai(TEXT, body))[2])
    wanted = list(islice(sim_text.expected_tokens(sim_text.encode("as known"), 0, 0, True), 30))
    assert answer["choices"][0]["text"] == sim_text.decode(wanted)


@pytest.mark.parametrize("silent", [True, False])
async def test_a_fastapi_stream_ends_at_once_when_its_client_leaves(silent):
    """The kind of application that a real engine brings; ``silent``: it has not sent a byte yet (a long prefill)."""
    app = fastapi.FastAPI()
    ended = asyncio.Event()
    running_now = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            if not silent:
                yield b"data: 1\n\n"
            running_now.set()
            await asyncio.sleep(60)
            yield b"data: 2\n\n"
        finally:
            ended.set()

    @app.post(CHAT)
    async def endpoint(request: fastapi.Request) -> StreamingResponse:
        assert (await request.json())["model"] == "demo"
        return StreamingResponse(events(), media_type="text/event-stream")

    async with odd(app) as (node, client):
        task = asyncio.create_task(client.openai(CHAT, chat(stream=True)))
        await asyncio.wait_for(running_now.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.wait_for(ended.wait(), 5)
        assert loop.time() - began < 0.2
        await until(lambda: node.state.serving.admission.running == 0, "the hold is back")


async def test_a_fastapi_answer_is_whole_and_untouched():
    app = fastapi.FastAPI()

    @app.post(CHAT)
    async def endpoint(request: fastapi.Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    async with odd(app) as (_, client):
        status, headers, body = await client.openai(CHAT, chat(max_tokens=3))
        assert status == 200 and headers["content-type"] == "application/json"
        assert json.loads(body)["size"] == len(json.dumps(chat(max_tokens=3), separators=(",", ":")))
