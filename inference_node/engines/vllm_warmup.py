"""One small request of each kind before the node is READY, so that no client pays for a first time.

What is first in vLLM: the sampler's paths, the grammar compiler's tables (half a second), the application's request
and answer types. The requests run together; their prompts are salted, so they leave nothing that anybody can hit.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any

from inference_node.engines.base import (
    ASGIApp,
    BadRequest,
    Delta,
    EngineError,
    GenerateCall,
    Prompt,
    Sampling,
)

SALT = "laya-warm-up"
_LIMIT = 300.0  # seconds for one kind
_SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'

Generate = Callable[[GenerateCall], AsyncGenerator[Delta, None]]


def kinds() -> dict[str, Sampling]:
    """Sampling of each kind of typed request."""
    return {
        "plain": Sampling(2, temperature=0.0),
        "sampled": Sampling(2, temperature=1.0, top_p=0.9, top_k=20, min_p=0.01, repetition_penalty=1.1, seed=1),
        "logprobs": Sampling(2, temperature=0.0, logprobs=2, prompt_logprobs=1),
        "structured": Sampling(4, temperature=0.0, json_schema=_SCHEMA),
        "several": Sampling(2, n=2, temperature=1.0),
    }


async def generation(generate: Generate, prompt: Sequence[int]) -> dict[str, float]:
    """Run each kind of typed request; seconds each took. A kind that the model refuses is left out."""
    names = kinds()
    taken = await asyncio.gather(*(_one(generate, name, sampling, prompt) for name, sampling in names.items()))
    return {name: seconds for name, seconds in zip(names, taken, strict=True) if seconds is not None}


async def _one(generate: Generate, name: str, sampling: Sampling, prompt: Sequence[int]) -> float | None:
    begin = time.perf_counter()
    call = GenerateCall(f"warm-up-{name}", Prompt(prompt), sampling, cache_salt=SALT)
    try:
        async with asyncio.timeout(_LIMIT), aclosing(generate(call)) as deltas:
            async for _ in deltas:
                pass
    except BadRequest:
        return None
    return time.perf_counter() - begin


async def application(app: ASGIApp, model: str, chats: bool) -> dict[str, float]:
    """Run the application's routes once, whole and streamed; seconds each took."""
    path = "/v1/chat/completions" if chats else "/v1/completions"
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]} if chats else {"prompt": "Hello"}
    body = {"model": model, "max_tokens": 2, "temperature": 0, "cache_salt": SALT} | prompt
    whole, streamed = await asyncio.gather(
        _timed(post(app, path, body)), _timed(post(app, path, body | {"stream": True}))
    )
    return {"app": whole, "app_streamed": streamed}


async def embedding(app: ASGIApp, model: str) -> dict[str, float]:
    """Run the embedding route once; seconds it took."""
    return {"embed": await _timed(post(app, "/v1/embeddings", {"model": model, "input": "Hello"}))}


async def _timed(work: Awaitable[tuple[int, bytes]]) -> float:
    begin = time.perf_counter()
    async with asyncio.timeout(_LIMIT):
        status, body = await work
    if status >= 500:
        raise EngineError(f"the warm-up of vLLM's application failed with status {status}: {body[:300].decode()}")
    return time.perf_counter() - begin


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """POST a JSON body to an ASGI application in this process; status and whole body."""
    request = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
    inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    inbox.put_nowait(request)
    status, parts = 0, []

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }
    await app(scope, inbox.get, send)
    return status, b"".join(parts)
