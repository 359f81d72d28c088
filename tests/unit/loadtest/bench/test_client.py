"""The bench's client notes what came, when, and why not."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.bench.client import Answer, Client
from tests.support.ports import free_port
from tests.support.sse_server import Reply, Script, SseServer, sse_server

BODY = b'{"stream":true}'


async def asked(script: Script, **options: float) -> tuple[Answer, SseServer]:
    async with sse_server(script) as server:
        client = Client(server.address)
        try:
            return await client.ask(BODY, **options), server  # type: ignore[arg-type]
        finally:
            client.close()


async def test_a_whole_answer_is_served_with_its_times() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    answer, _ = await asked(lambda body: Reply(pieces=[(0.02, "a"), (0.03, "b"), (0.03, "c")], usage=usage))
    assert answer.served and not answer.refused
    assert (answer.tokens, answer.prompt, answer.cached, answer.node) == (3, 9, 4, "n1")
    assert len(answer.pieces) == 3 and answer.first == answer.pieces[0] >= 0.02
    assert answer.pieces == sorted(answer.pieces) and answer.total >= answer.pieces[-1] >= 0.08


async def test_times_count_from_when_the_request_was_due() -> None:
    answer, _ = await asked(lambda body: Reply(), due=time.perf_counter() - 5.0)
    assert answer.first > 5.0


async def test_a_refusal_keeps_its_reason() -> None:
    answer, _ = await asked(lambda body: Reply(429, error={"code": "queue_full", "message": "later"}))
    assert answer.refused and not answer.served
    assert (answer.status, answer.error, answer.first) == (429, "queue_full", 0.0)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(500, error=None), "HTTP 500"),
        (Reply(error={"type": "internal", "code": "node_lost"}, finish=None), "node_lost"),
        (Reply(cut=True, finish=None), "cut off"),
        (Reply(finish=None), "the stream ended before its answer did"),
    ],
)
async def test_a_failure_is_no_answer(reply: Reply, error: str) -> None:
    answer, _ = await asked(lambda body: reply)
    assert not answer.served and answer.error == error


async def test_patience_ends() -> None:
    answer, _ = await asked(lambda body: Reply(hang=True), limit=0.1)
    assert answer.error == "timeout" and answer.total >= 0.1


async def test_nothing_there_is_told() -> None:
    client = Client(f"127.0.0.1:{free_port()}")
    assert (await client.ask(BODY)).error == "connection refused"
    with pytest.raises(ConnectionRefusedError):
        await client.get("/v1/models", limit=2.0)


async def test_a_client_that_goes_away_counts_as_such() -> None:
    endless = [(0.005, "x")] * 400
    async with sse_server(lambda body: Reply(pieces=endless)) as server:
        client = Client(server.address)
        answer = await client.ask(BODY, cancel_after=3)
        assert answer.cancelled and not answer.served and len(answer.pieces) >= 3
        await asyncio.wait_for(server.gone.wait(), 5.0)


async def test_a_connection_is_kept_and_sends_key_and_session() -> None:
    async with sse_server() as server:
        client = Client(server.address, key="k1")
        for _ in range(3):
            assert (await client.ask(BODY, session="s1")).served
        client.close()
        assert server.connections == 1
        assert "authorization: Bearer k1" in server.heads[0] and "laya-session: s1" in server.heads[0]


async def test_a_kept_connection_that_was_closed_is_opened_anew() -> None:
    async with sse_server() as first:
        client = Client(first.address)
        assert (await client.ask(BODY)).served
        for conn in client._idle:
            assert conn.transport is not None
            conn.transport.close()
        assert (await client.ask(BODY)).served
        assert first.connections == 2
        client.close()
