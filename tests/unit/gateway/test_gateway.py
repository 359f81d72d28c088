"""The OpenAI-style paths: what is there, what is not, and how each refusal looks."""

from __future__ import annotations

import hashlib
import json

import pytest

from router_node.middleware.keys import KeyRecord
from shared import headers as names
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_http import FakeExchange
from tests.support.relay_rig import MODEL, Rig

SECRET = b"laya-" + b"k" * 43
KEY = KeyRecord(id="k1", hash=hashlib.sha256(SECRET).hexdigest(), tenant="acme", best_priority=-5)
CHAT = b"/v1/chat/completions"
BODY = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'


def ask(rig: Rig, method: bytes, target: bytes, *headers: tuple[bytes, bytes], body: bytes = b"") -> FakeExchange:
    exchange = FakeExchange(method, target, list(headers), body)
    rig.gateway.handle(exchange)
    return exchange


async def test_the_models_are_listed_with_their_context_and_one_can_be_asked_for():
    rig = Rig()
    status, headers, body = ask(rig, b"GET", b"/v1/models").answer()
    assert status == 200
    assert headers[b"content-type"] == b"application/json"
    listed = json.loads(body)
    assert listed["object"] == "list"
    assert [(card["id"], card["owned_by"], card["max_model_len"]) for card in listed["data"]] == [
        (MODEL, "laya", 65_536),
        ("small", "laya", 65_536),
    ]
    status, _, body = ask(rig, b"GET", b"/v1/models/small").answer()
    assert (status, json.loads(body)["root"]) == (200, MODEL)
    status, _, body = ask(rig, b"GET", b"/v1/models/gpt%2F9").answer()
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (404, "model_not_found")
    assert "gpt/9" in error["message"] and MODEL in error["message"]
    rig.assert_idle()


@pytest.mark.parametrize(
    ("method", "target", "status", "allow"),
    [
        (b"GET", b"/", 404, None),
        (b"POST", b"/v1/files", 404, None),
        (b"POST", b"/v1/%63hat/completions", 404, None),
        (b"POST", b"/metrics", 404, None),
        (b"POST", CHAT + b"?" + b"x" * 5000, 414, None),
        (b"GET", b"/v1/models?" + b"x" * 5000, 414, None),
        (b"GET", b"/" + b"x" * 5000, 414, None),
        (b"GET", CHAT, 405, b"POST"),
        (b"OPTIONS", CHAT, 405, b"POST"),
        (b"DELETE", b"/v1/models", 405, b"GET, HEAD"),
        (b"POST", b"/v1/models/x", 405, b"GET, HEAD"),
        (b"POST", b"/healthz", 405, b"GET, HEAD"),
    ],
)
async def test_wrong_paths_and_methods_are_openai_errors(method, target, status, allow):
    rig = Rig()
    got, headers, body = ask(rig, method, target, body=BODY).answer()
    assert got == status
    assert headers.get(b"allow") == allow
    error = json.loads(body)["error"]
    assert error["message"] and error["type"] == "invalid_request_error"
    assert headers[names.REQUEST_ID].startswith(b"req-")
    rig.assert_idle()


async def test_health_is_liveness_and_readiness_waits_for_a_node():
    rig = Rig(0)
    assert ask(rig, b"GET", b"/healthz").answer()[0] == 200
    status, _, body = ask(rig, b"GET", b"/readyz").answer()
    assert status == 503
    assert json.loads(body)["status"]
    rig.add_node("n0")
    assert ask(rig, b"HEAD", b"/readyz").answer()[0] == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], "key_missing"),
        ([(b"authorization", b"Bearer nope")], "key_invalid"),
        ([(b"x-api-key", SECRET)], "key_missing"),
        ([(b"authorization", b"Bearer nope"), (b"authorization", b"Bearer " + SECRET)], "key_invalid"),
        ([(b"authorization", b"Bearer " + SECRET), (b"authorization", b"Bearer " + SECRET)], "key_invalid"),
    ],
)
async def test_a_missing_or_wrong_key_is_401(headers, code):
    rig = Rig(keys=[KEY])
    error = rig.gateway.gate(b"POST", CHAT, headers)
    assert error is not None and error.reason == code.upper()
    for method, target in ((b"POST", CHAT), (b"GET", b"/v1/models")):
        status, answered, body = ask(rig, method, target, *headers, body=BODY).answer()
        assert status == 401
        assert b"www-authenticate" in answered
        assert json.loads(body)["error"]["code"] == code
    rig.assert_idle()


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "param"),
    [
        (b"", [], 400, "invalid_request", None),
        (b"{", [], 400, "invalid_request", None),
        (b"{}", [], 400, "invalid_request", "model"),
        (b'{"model":"gpt-9"}', [], 404, "model_not_found", "model"),
        (b'{"model":"smollm2","max_tokens":-1}', [], 400, "invalid_request", "max_tokens"),
        (b'{"model":"smollm2","n":99}', [], 400, "invalid_request", "n"),
        (BODY, [(b"content-encoding", b"gzip")], 415, "invalid_request", None),
        (BODY, [(names.SESSION, b"x" * 300)], 400, "invalid_request", "laya-session"),
        (BODY, [(names.PRIORITY, b"high")], 400, "invalid_request", "laya-priority"),
        (b'{"model":"smollm2","prompt":"' + b"x" * 600_000 + b'"}', [], 400, "never_fits", "max_tokens"),
    ],
)
async def test_bad_input_is_one_openai_error_each(body, headers, status, code, param):
    rig = Rig()
    got, _, answer = ask(rig, b"POST", CHAT, *headers, body=body).answer()
    error = json.loads(answer)["error"]
    assert (got, error["code"], error["param"]) == (status, code, param)
    rig.assert_idle()
    assert not any(upstream.streams for upstream in rig.upstreams.values())


async def test_the_tunnel_carries_the_request_without_credentials_and_with_the_router_s_metadata():
    rig = Rig(keys=[KEY], cluster_token=b"cs", forward_metadata=frozenset((b"x-team",)))
    exchange = ask(
        rig,
        b"POST",
        CHAT + b"?v=1",
        (b"authorization", b"Bearer " + SECRET),
        (b"cookie", b"c"),
        (b"content-type", b"application/x-www-form-urlencoded"),
        (names.REQUEST_ID, b"mine"),
        (names.PRIORITY, b"-9"),
        (names.TENANT, b"forged"),
        (b"traceparent", b"00-1-2-01"),
        (b"x-team", b"red"),
        (b"x-session-id", b"chat-1"),
        body=BODY,
    )
    stream = rig.used.last
    assert stream.headers[b":path"] == b"/laya.v1.OpenAI/Call"
    assert stream.headers[names.TENANT] == b"acme"
    assert stream.headers[names.PRIORITY] == b"-5"
    assert stream.headers[names.CLUSTER_TOKEN] == b"cs"
    assert stream.headers[names.REQUEST_ID] == b"mine"
    assert stream.headers[b"traceparent"] == b"00-1-2-01"
    assert stream.ended
    raw = b"".join(stream.data)
    sent = openai_pb2.HttpRequest.FromString(raw[5:])
    assert (sent.method, sent.target, sent.body) == ("POST", (CHAT + b"?v=1").decode(), BODY)
    assert stream.headers[b"x-team"] == b"red"
    assert {h.name: h.value for h in sent.headers} == {"content-type": "application/json"}
    exchange.leave()
    stream.settle()
    rig.assert_idle()


async def test_browsers_of_listed_origins_are_answered():
    rig = Rig(cors_origins=frozenset((b"https://a.example",)))
    origin = (b"origin", b"https://a.example")
    asks = (b"access-control-request-method", b"POST")
    status, headers, _ = ask(rig, b"OPTIONS", CHAT, origin, asks).answer()
    assert status == 204
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert headers[b"access-control-allow-methods"] == b"POST"
    _, headers, _ = ask(rig, b"OPTIONS", CHAT, (b"origin", b"https://evil.example"), asks).answer()
    assert b"access-control-allow-origin" not in headers
    _, headers, _ = ask(rig, b"GET", b"/v1/models", origin).answer()
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    status, headers, _ = ask(rig, b"POST", CHAT, origin, body=b"{").answer()
    assert (status, headers[b"access-control-allow-origin"]) == (400, b"https://a.example")
    rig.assert_idle()


async def test_a_defect_of_ours_is_one_500_with_its_books_closed(monkeypatch):
    rig = Rig()
    monkeypatch.setattr(rig.dispatcher, "resolve", lambda *_: 1 / 0)
    status, _, body = ask(rig, b"POST", CHAT, body=BODY).answer()
    assert status == 500
    assert "division" not in json.loads(body)["error"]["message"]
    rig.assert_idle()


async def test_an_insane_request_id_is_replaced():
    rig = Rig()
    _, headers, _ = ask(rig, b"GET", b"/v1/models", (names.REQUEST_ID, b"a b\x01")).answer()
    assert headers[names.REQUEST_ID].startswith(b"req-")
