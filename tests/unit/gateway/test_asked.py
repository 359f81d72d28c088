"""What a head asks for is read once, and holds for every request that has it."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from router_node.gateway.asked import Asked, Reader
from router_node.gateway.reply import Cors
from router_node.middleware.keys import KeyRecord
from shared import headers as names
from shared.errors import LayaError
from shared.net.exchange import RequestHead
from shared.pb.laya.v1 import openai_pb2
from tests.support.fake_http import FakeExchange
from tests.support.relay_rig import Rig

CHAT = b"/v1/chat/completions"
BODY = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
SECRET = b"laya-" + b"k" * 43
KEY = KeyRecord(id="k1", hash=hashlib.sha256(SECRET).hexdigest(), tenant="acme", best_priority=-5)


def reader(*forward: bytes) -> Reader:
    return Reader(Cors(frozenset()), frozenset(forward))


def head(*headers: tuple[bytes, bytes], target: bytes = CHAT) -> RequestHead:
    return RequestHead(b"POST", target, list(headers))


def test_a_head_is_read_once_by_each_reader():
    one, other = reader(), reader()
    known = head()
    asked = one.read(known)
    one.complete(asked, known)
    assert one.read(known) is asked
    assert other.read(known) is not asked


def test_what_is_read_of_a_full_head():
    one = reader(b"traceparent")
    known = head(
        (names.REQUEST_ID, b"mine"),
        (names.SESSION, b"s"),
        (names.PRIORITY, b"-3"),
        (names.TIMEOUT, b"1500"),
        (b"traceparent", b"00-1"),
        (b"authorization", b"Bearer x"),
    )
    asked = one.read(known)
    one.complete(asked, known)
    assert (asked.request_id, asked.session, asked.priority, asked.timeout) == (b"mine", b"s", -3, 1.5)
    assert asked.forward == [(b"traceparent", b"00-1")]
    assert asked.authorization == b"Bearer x"
    assert (asked.label, asked.tunnelled) == (CHAT.decode(), True)


def test_what_is_read_of_a_bare_head():
    one = reader(b"traceparent")
    known = head(target=CHAT + b"?v=1")
    asked = one.read(known)
    one.complete(asked, known)
    assert (asked.request_id, asked.session, asked.priority, asked.timeout) == (b"", b"", None, math.inf)
    assert (asked.forward, asked.extra, asked.path) == ([], [], CHAT)
    assert openai_pb2.HttpRequest.FromString(asked.opening + b"\0").target == (CHAT + b"?v=1").decode()


@pytest.mark.parametrize("target", [b"/v1/files", b"/v1/chat", CHAT + b"/", CHAT + b"?" + b"x" * 5000])
def test_other_paths_share_one_label(target: bytes):
    asked = reader().read(head(target=target))
    assert (asked.label, asked.tunnelled) == ("other", False)


@pytest.mark.parametrize(
    "bad",
    [(names.SESSION, b"x" * 300), (names.PRIORITY, b"high"), (names.TIMEOUT, b"0"), (b"content-encoding", b"gzip")],
)
def test_a_head_with_a_mistake_is_read_anew_each_time(bad: tuple[bytes, bytes]):
    one = reader()
    known = head(bad)
    errors = []
    for _ in range(2):
        with pytest.raises(LayaError) as caught:
            one.complete(one.read(known), known)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert known.notes is None


def ask(rig: Rig, known: RequestHead, body: bytes = BODY) -> FakeExchange:
    exchange = FakeExchange(known.method, known.target, known.headers, body)
    exchange.head = known
    rig.gateway.handle(exchange)
    return exchange


async def test_the_key_is_checked_for_every_request():
    rig = Rig(keys=[KEY])
    known = head((b"authorization", b"Bearer " + SECRET))
    first = ask(rig, known)
    assert isinstance(known.notes, Asked)
    rig.core.authorizer.replace([])
    assert ask(rig, known).answer()[0] == 401
    first.leave()
    for upstream in rig.upstreams.values():
        for stream in upstream.streams:
            stream.settle()
    rig.assert_idle()


async def test_requests_with_one_head_have_ids_of_their_own():
    rig = Rig()
    known = head()
    ids = set()
    for _ in range(3):
        status, answered, body = ask(rig, known, b'{"model":"nothing"}').answer()
        ids.add(answered[names.REQUEST_ID])
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    assert len(ids) == 3
    rig.assert_idle()
