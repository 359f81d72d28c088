"""The OpenAI side of a call."""

from __future__ import annotations

import json

import pytest

from loadtest.users import http_body
from loadtest.users.call import Call, Outcome


def event(**more: object) -> bytes:
    return b"data: " + json.dumps(more).encode()


def chunk(text: str) -> bytes:
    return event(choices=[{"delta": {"content": text}}])


USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}


def test_body_and_headers_carry_what_the_call_says() -> None:
    call = Call(
        name="c",
        messages=(("user", "x"),),
        max_tokens=7,
        session="s",
        priority=-2,
        key="k",
        schema='{"a":1}',
        timeout=2,
    )
    body = json.loads(http_body.body(call, "m"))
    assert body["messages"] == [{"role": "user", "content": "x"}]
    assert (body["model"], body["max_tokens"], body["priority"]) == ("m", 7, -2)
    assert body["response_format"]["json_schema"]["schema"] == {"a": 1}
    headers = http_body.headers(call)
    assert headers["authorization"] == "Bearer k" and headers["laya-session"] == "s"
    assert (headers["laya-priority"], headers["laya-timeout-ms"]) == ("-2", "2000")
    assert http_body.path(call) == "/v1/chat/completions"


def test_a_prompt_is_a_completion_of_exact_length() -> None:
    call = Call(name="c", prompt="of to", max_tokens=3, ignore_eos=True, choices=("a", "b"))
    body = json.loads(http_body.body(call, "m"))
    assert (body["prompt"], body["ignore_eos"]) == ("of to", True) and "messages" not in body
    assert body["structured_outputs"] == {"choice": ["a", "b"]}
    assert http_body.path(call) == "/v1/completions"


def test_times_are_those_of_the_text_and_tokens_those_of_the_usage() -> None:
    out = Outcome()
    events = http_body.Events(Call(name="c", keep_text=True), out)
    assert not events.line(event(choices=[{"delta": {"role": "assistant"}}]), 0.1)
    assert events.line(chunk("a"), 0.2) and events.line(b"", 0.25) is False
    events.line(event(choices=[{"text": "b"}]), 0.4)
    events.line(event(choices=[], usage=USAGE), 0.5)
    events.line(b"data: [DONE]", 0.6)
    events.ended()
    assert events.done and out.ok and out.text == "ab"
    assert (out.first, out.last, out.tokens, out.prompt_tokens, out.cached_tokens) == (0.2, 0.4, 5, 9, 4)
    assert out.itl == pytest.approx(0.05)


def test_a_client_leaves_after_its_tokens() -> None:
    out = Outcome()
    events = http_body.Events(Call(name="c", leave_after=2), out)
    events.line(chunk("a"), 0.1)
    before = events.done
    events.line(chunk("b"), 0.2)
    events.ended()
    assert (before, events.done, out.left, out.reason, out.tokens) == (False, True, True, "", 2)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([chunk("a")], "CUT_OFF"),
        ([event(error={"code": "node_lost", "message": "gone"})], "NODE_LOST"),
        ([b"data: {"], "NO_EVENT"),
        ([b"data: []"], "NO_EVENT"),
        ([event(choices=[{"delta": None}])], "NO_EVENT"),
    ],
)
def test_an_answer_that_breaks_has_a_reason(lines: list[bytes], reason: str) -> None:
    out = Outcome()
    events = http_body.Events(Call(name="c"), out)
    for line in lines:
        events.line(line, 0.1)
    events.ended()
    assert out.reason == reason


def test_refusals_carry_the_reason_of_the_body_or_the_status() -> None:
    out = Outcome()
    http_body.refusal(429, b'{"error": {"code": "queue_full", "message": "later"}}', out)
    assert (out.reason, out.detail) == ("QUEUE_FULL", "later")
    http_body.refusal(502, b"<html>", out)
    assert out.reason == "HTTP_502"
