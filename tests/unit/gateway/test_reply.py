"""Errors in OpenAI's form, the last event of a broken stream, and CORS."""

from __future__ import annotations

import json

import pytest

from router_node.gateway.reply import Cors, error_event, error_reply
from shared import headers as names
from shared.errors import Code, LayaError, exhausted
from tests.support.fake_http import FakeExchange


def test_an_error_is_an_openai_object_with_retry_after_and_request_id():
    exchange = FakeExchange()
    error_reply(exchange, exhausted("Busy.", "QUEUE_FULL", 1.2), b"req-1", [(b"x-extra", b"1")])
    status, headers, body = exchange.answer()
    assert status == 429
    assert headers[b"retry-after"] == b"2"
    assert headers[names.REQUEST_ID] == b"req-1"
    assert headers[b"x-extra"] == b"1"
    assert json.loads(body) == {
        "error": {"message": "Busy.", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    }


def test_a_missing_key_asks_for_a_bearer():
    exchange = FakeExchange()
    error_reply(exchange, LayaError(Code.UNAUTHENTICATED, "KEY_MISSING", "Send a key."), b"r", [])
    assert exchange.answer()[1][b"www-authenticate"].startswith(b"Bearer")


@pytest.mark.parametrize(
    ("tail", "gap"),
    [(b"", b""), (b"data: 1\n\n", b""), (b"data: 1\r\n\r\n", b""), (b"data:{}\r\r", b""), (b'data: {"a', b"\n\n")],
)
def test_the_error_event_stands_alone_whatever_was_sent_before(tail, gap):
    event = error_event(LayaError(Code.UNAVAILABLE, "NODE_LOST", "Gone."), tail)
    assert event.startswith(gap + b"data: {")
    assert event.endswith(b"}\n\n")
    assert json.loads(event[len(gap) + 6 :])["error"]["code"] == "node_lost"


def test_cors_allows_listed_origins_only():
    cors = Cors(frozenset((b"https://a.example",)))
    assert cors.on
    assert (b"access-control-allow-origin", b"https://a.example") in cors.headers(b"https://a.example")
    assert (b"vary", b"origin") in cors.headers(b"https://a.example")
    assert cors.headers(b"https://b.example") == []
    assert cors.headers(None) == []
    assert not Cors(frozenset()).on


def test_a_preflight_names_methods_and_headers():
    answer = dict(Cors(frozenset((b"*",))).preflight(b"https://a.example", b"authorization", b"POST"))
    assert answer[b"access-control-allow-origin"] == b"*"
    assert answer[b"access-control-allow-methods"] == b"POST"
    assert answer[b"access-control-allow-headers"] == b"authorization"
    assert Cors(frozenset((b"https://a.example",))).preflight(b"https://evil.example", b"", b"POST") == []
