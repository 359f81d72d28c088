"""The first requests of an engine, against an engine that is not there."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from inference_node.engines import vllm_warmup
from inference_node.engines.base import BadRequest, Delta, EngineError, GenerateCall


async def test_every_kind_runs_salted_and_to_its_end() -> None:
    seen: dict[str, GenerateCall] = {}
    closed = []

    async def generate(call: GenerateCall) -> AsyncGenerator[Delta, None]:
        seen[call.request_id] = call
        try:
            yield Delta(text="a")
            yield Delta(text="b", finish_reason="length")
        finally:
            closed.append(call.request_id)

    took = await vllm_warmup.generation(generate, [1, 2])
    assert set(took) == {"plain", "sampled", "logprobs", "structured", "several"}
    assert len(closed) == len(seen) == 5
    assert {call.cache_salt for call in seen.values()} == {vllm_warmup.SALT}
    assert all(call.prompt.token_ids == [1, 2] for call in seen.values())


async def test_kind_that_the_model_refuses_is_left_out() -> None:
    async def generate(call: GenerateCall) -> AsyncGenerator[Delta, None]:
        if call.sampling.json_schema is not None:
            raise BadRequest("no grammars here")
        yield Delta(text="a", finish_reason="length")

    assert "structured" not in await vllm_warmup.generation(generate, [1])


async def test_failure_is_not_hidden() -> None:
    async def generate(call: GenerateCall) -> AsyncGenerator[Delta, None]:
        if call.sampling.n > 1:
            raise EngineError("dead", fatal=True)
        yield Delta()

    with pytest.raises(EngineError):
        await vllm_warmup.generation(generate, [1])


class App:
    """Answers every request with its own body."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.bodies: list[tuple[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.bodies.append((scope["path"], json.loads(message["body"])))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"an ", "more_body": True})
        await send({"type": "http.response.body", "body": b"answer"})


async def test_post_collects_status_and_body() -> None:
    assert await vllm_warmup.post(App(), "/v1/x", {"a": 1}) == (200, b"an answer")


@pytest.mark.parametrize(("chats", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")])
async def test_application_is_asked_whole_and_streamed(chats: bool, path: str) -> None:
    app = App()
    assert set(await vllm_warmup.application(app, "m", chats)) == {"app", "app_streamed"}
    assert [p for p, _ in app.bodies] == [path, path]
    assert sorted(bool(body.get("stream")) for _, body in app.bodies) == [False, True]


async def test_application_that_fails_is_said() -> None:
    with pytest.raises(EngineError, match="status 500"):
        await vllm_warmup.embedding(App(500), "m")
