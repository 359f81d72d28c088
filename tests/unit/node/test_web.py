"""Token ids beside the bytes of a tunnelled answer: what goes with what, and what ends that."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.engines import context
from inference_node.engines.base import EngineError
from inference_node.engines.sim import SimEngine
from tests.support.resumes import ASK, RESUME, hear, resumed, web
from tests.unit.node.harness import config, running

CHAT = "/v1/chat/completions"
REQUEST = web(CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=5)


class Scripted(SimEngine):
    """Its application plays what the test has written: tokens taken, and bytes."""

    script: Any = ()

    def asgi_app(self) -> Any:
        return self._play

    async def _play(self, scope: Any, receive: Any, send: Any) -> None:
        listener = context.pulled.get()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for step in self.script:
            if isinstance(step, bytes):
                await send({"type": "http.response.body", "body": step, "more_body": True})
            elif isinstance(step, Exception):
                raise step
            elif listener is not None:
                step(listener)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def take(*tokens: int, finish: str = "") -> Any:
    return lambda listener: listener.tell(tokens, finish)


async def play(*script: Any, request: Any = REQUEST, metadata: Any = ASK) -> Any:
    engine = Scripted(config().inference)
    engine.script = script
    async with running(config(), engine) as (node, _):
        heard = await hear(node.address, request, metadata)
        return heard, node.state.failed.is_set()


def plain(messages: Any) -> Any:
    return [(m.body, list(m.token_ids), m.finish_reason, m.pinned) for m in messages[1:]]


async def test_tokens_go_with_the_bytes_that_follow_them_each_part_in_its_own_message():
    heard, _ = await play(take(1), b"a", b"b", take(2, 3), take(4), b"c", take(5, finish="stop"), b"d")
    assert plain(heard.messages) == [
        (b"a", [1], "", ""),
        (b"b", [], "", ""),
        (b"", [2, 3], "", ""),
        (b"c", [4], "", ""),
        (b"d", [5], "stop", ""),
    ]
    assert heard.messages[2].WhichOneof("part") == "body" and heard.messages[3].WhichOneof("part") is None


async def test_tokens_whose_bytes_never_come_are_told_at_the_end():
    heard, _ = await play(take(1), b"a", take(2, finish="length"))
    assert plain(heard.messages) == [(b"a", [1], "", ""), (b"", [2], "length", "")]


async def test_a_large_part_goes_in_several_messages_and_its_tokens_with_the_first():
    heard, _ = await play(take(1), b"x" * ((1 << 20) + 5))
    assert [(len(m.body), list(m.token_ids)) for m in heard.messages[1:]] == [(1 << 20, [1]), (5, [])]


async def test_a_tool_call_pins_the_answer_from_its_first_chunk_on():
    said = rb'data: {"choices":[{"delta":{"content":"\"tool_calls\":[{"}}]}' + b"\n\n"
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"id":"x"}]}}]}\n\n'
    heard, _ = await play(take(1), said, take(2), call, take(3), call)
    assert [m.pinned for m in heard.messages[1:]] == ["", "a tool call has begun", ""]


async def test_the_engines_last_word_pins_the_answer_too():
    heard, _ = await play(lambda listener: listener.pin("structured output"), take(1), b"a")
    assert heard.journal == "1" and heard.messages[1].pinned == "structured output"


async def test_without_being_asked_an_answer_is_bytes_alone():
    heard, _ = await play(take(1), b"a", metadata=())
    assert not heard.journal and plain(heard.messages) == [(b"a", [], "", "")]


async def test_a_dead_engines_excuses_are_not_passed_on():
    dead = EngineError("it is gone", fatal=True)
    for script in ((take(1), b"a", lambda listener: listener.died(), b"data: sorry\n\n"), (take(1), b"a", dead)):
        heard, failed = await play(*script)
        assert (heard.code, heard.reason, heard.body) == ("UNAVAILABLE", "ENGINE_DEAD", b"a")
        assert failed == (script[-1] is dead)


@pytest.mark.parametrize("script", [(b"other",), (b"ab", b"longer"), (b"a",)])
async def test_a_resumed_answer_that_differs_sends_nothing(script: Any):
    heard, _ = await play(take(1), b"a", b"bc")
    asked = resumed(REQUEST, heard.messages)
    heard, _ = await play(*script, request=asked, metadata=RESUME)
    assert (heard.code, heard.reason, heard.messages) == ("UNAVAILABLE", "RESUME_INEXACT", [])


async def test_a_resumed_answer_that_fails_is_the_routers_to_hear():
    heard, _ = await play(take(1), b"a")
    heard, _ = await play(EngineError("not now"), request=resumed(REQUEST, heard.messages), metadata=RESUME)
    assert (heard.code, heard.messages) == ("INTERNAL", [])
