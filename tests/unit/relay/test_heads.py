"""The last head of each client is read once, and only if it is the same to the byte."""

from __future__ import annotations

import pytest

from router_node.middleware.keys import KeyRecord
from router_node.relay import heads
from router_node.relay.fields import from_metadata
from router_node.relay.heads import Head, Heads
from router_node.relay.methods import METHODS
from shared import headers as names
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL, Rig
from tests.unit.relay.test_front import KEY, SECRET, error_of

PATH = b"/laya.v1.Inference/Complete"
HEAD = [
    (b":method", b"POST"),
    (b":path", PATH),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (names.MODEL, MODEL.encode()),
    (names.PROMPT_TOKENS, b"12"),
    (names.MAX_TOKENS, b"34"),
    (names.SESSION, b"s-1"),
    (names.PRIORITY, b"3"),
]


def head(headers: list[tuple[bytes, bytes]]) -> Head:
    fields = dict(headers)
    return Head(headers, fields, METHODS[PATH], [], from_metadata(fields))


def test_a_copy_of_fields_has_every_wish_and_shares_nothing_that_changes():
    one = from_metadata({**dict(HEAD), names.PREFIX: b"0123456789abcdef"})
    other = one.copy()
    for name in ("model", "session", "priority", "prompt_tokens", "prompt_bytes", "max_new_tokens", "n", "prefix"):
        assert getattr(other, name) == getattr(one, name), name
    assert (other.exact, other.complete, other.named, other.streams) == (one.exact, True, True, one.streams)
    other.tenant, other.deadline = "acme", 1.0
    assert (one.tenant, one.deadline) == ("", None)


def test_only_the_same_head_of_the_same_peer_is_found():
    kept = Heads()
    kept.keep("a", head(HEAD))
    assert kept.find("a", list(HEAD)) is not None
    assert kept.find("b", list(HEAD)) is None
    assert kept.find("a", HEAD[:-1]) is None
    assert kept.find("a", [*HEAD[:-1], (names.PRIORITY, b"4")]) is None
    assert kept.find("a", [*HEAD, (b"x", b"y")]) is None


def test_peers_and_sizes_are_bounded():
    kept = Heads()
    for i in range(heads.MAX_PEERS + 1):
        kept.keep(f"p{i}", head(HEAD))
    assert kept.find("p0", HEAD) is None
    assert kept.find(f"p{heads.MAX_PEERS}", HEAD) is not None
    large = [*HEAD, (b"x", b"y" * heads.MAX_BYTES)]
    kept.keep("large", head(large))
    assert kept.find("large", large) is None


async def test_each_call_with_a_known_head_is_a_request_of_its_own():
    rig = Rig(nodes=1)
    calls = [FakeServerStream().call(rig.front.accept, list(HEAD), b"x") for _ in range(3)]
    opened = [dict(stream.headers) for stream in rig.used.streams]
    assert len(opened) == 3
    assert len({headers[names.DISPATCH] for headers in opened}) == 3
    assert len({headers[names.REQUEST_ID] for headers in opened}) == 3
    assert {headers[names.PRIORITY] for headers in opened} == {b"3"}
    assert rig.front._heads.find(calls[0].peer, list(HEAD)) is not None
    for call in calls:
        call.cancel()
        call.settle()
    for stream in rig.used.streams:
        stream.settle()
    rig.assert_idle()


async def test_a_key_is_checked_with_every_call():
    rig = Rig(keys=[KEY])
    signed = [*HEAD, (b"authorization", b"Bearer " + SECRET.encode())]
    FakeServerStream().call(rig.front.accept, list(signed), b"x").cancel()
    rig.core.authorizer = type(rig.core.authorizer)([KeyRecord(id="k2", hash="0" * 64, tenant="acme")])
    refused = FakeServerStream().call(rig.front.accept, list(signed), b"x")
    assert error_of(refused).reason == "KEY_INVALID"


@pytest.mark.parametrize("path", [b"/laya.v1.Inference/Nonsense", b"/laya.v1.Inference/ListModels"])
async def test_what_no_node_serves_is_never_a_known_head(path: bytes):
    rig = Rig()
    other = [(name, path if name == b":path" else value) for name, value in HEAD]
    for _ in range(2):
        FakeServerStream().call(rig.front.accept, list(other), b"")
    assert not any(upstream.streams for upstream in rig.upstreams.values())
