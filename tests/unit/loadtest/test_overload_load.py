"""The overload run's requests, and what its client makes of answers."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from loadtest.overload_load import Client, Mix, Prompt, capacity, lengths, prompts, replay

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KNOWN = [Prompt("short", False, 10), Prompt("other", False, 20), Prompt("long", True, 30)]


class Server:
    """An OpenAI-like server that answers as it is told to."""

    def __init__(self) -> None:
        self.answer: Handler = self.stream
        self.asked: list[dict[str, object]] = []
        self.address = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        return await self.answer(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        events = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "yes"}}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 7}},
        ]
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=lines + "data: [DONE]\n\n", content_type="text/event-stream")

    async def refuse(self, request: web.Request) -> web.StreamResponse:
        error = {"error": {"message": "busy", "type": "rate_limit_error", "code": "QUEUE_FULL"}}
        return web.json_response(error, status=429, headers={"retry-after": "2"})

    async def refuse_without_a_hint(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy", "type": "rate_limit_error"}}, status=429)

    async def break_off(self, request: web.Request) -> web.StreamResponse:
        event = {"error": {"message": "the engine failed", "type": "server_error"}}
        return web.Response(text=f"data: {json.dumps(event)}\n\n", content_type="text/event-stream")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.address = "{}:{}".format(*runner.addresses[0][:2])
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    made = Client(server.address, "m")
    try:
        yield made
    finally:
        await made.close()


def test_prompts_are_different_and_of_both_kinds() -> None:
    made = prompts(random.Random(1), 30, 5)
    assert sum(p.long for p in made) == 5 and len({p.text for p in made}) == len(made)
    assert max(len(p.text) for p in made if not p.long) < 100 < min(len(p.text) for p in made if p.long)


def test_a_stream_has_its_rate_its_share_of_long_prompts_and_no_more_than_twice_the_tokens() -> None:
    plan = Mix(random.Random(2), KNOWN, 0.25).stream(50.0, 100.0)
    assert len(plan) == pytest.approx(5000, rel=0.1)
    assert sum(a.prompt.long for a in plan) / len(plan) == pytest.approx(0.25, abs=0.03)
    assert all(a.prompt.real <= a.max_tokens <= 2 * a.prompt.real for a in plan)
    assert [a.at for a in plan] == sorted(a.at for a in plan)


async def test_an_answer_is_timed_and_counted(server: Server, client: Client) -> None:
    out = await client.ask(KNOWN[0], 15)
    assert out.served and out.tokens == 7 and 0 < out.first <= out.total
    assert server.asked[0]["max_tokens"] == 15 and server.asked[0]["stream"] is True


async def test_refusals_are_typed_only_with_a_reason_and_a_hint(server: Server, client: Client) -> None:
    server.answer = server.refuse
    out = await client.ask(KNOWN[0], 15)
    assert out.refused and out.typed and out.error == "QUEUE_FULL" and not out.served
    server.answer = server.refuse_without_a_hint
    out = await client.ask(KNOWN[0], 15)
    assert out.refused and not out.typed


async def test_a_broken_answer_is_an_error(server: Server, client: Client) -> None:
    server.answer = server.break_off
    out = await client.ask(KNOWN[0], 15)
    assert not out.served and not out.refused and "the engine failed" in out.error


async def test_a_server_that_is_not_there_is_an_error(client: Client) -> None:
    gone = Client("127.0.0.1:1", "m")
    try:
        out = await gone.ask(KNOWN[0], 15)
    finally:
        await gone.close()
    assert not out.served and not out.refused and out.error


async def test_lengths_capacity_and_replay_ask_what_they_should(server: Server, client: Client) -> None:
    known = await lengths(client, [Prompt("a", False), Prompt("b", True)], 2)
    assert [(p.text, p.real) for p in known] == [("a", 7), ("b", 7)]
    mix = Mix(random.Random(3), known, 0.5)
    assert await capacity(client, mix.draw, 2, 0.2) > 0
    before = len(server.asked)
    plan = mix.stream(100.0, 0.2)
    outcomes, begun = await replay(client, plan)
    assert len(outcomes) == len(plan) == len(server.asked) - before
    assert all(o.served and o.ended > begun for o in outcomes)
