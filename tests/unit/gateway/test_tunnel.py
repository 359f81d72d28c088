"""The tunnel's messages are written and read as protobuf writes and reads them, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.gateway import tunnel
from shared.errors import LayaError
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import openai_pb2 as pb

names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=10)
values = st.text(max_size=200)
headers = st.lists(st.tuples(names, values), max_size=4)


@given(st.binary(max_size=40_000), headers, st.text(max_size=200))
def test_a_request_is_what_protobuf_reads(body, fields, target):
    encoded = tunnel.header_fields([(name.encode(), value.encode()) for name, value in fields])
    raw = tunnel.request_message(tunnel.request_opening(b"POST", target.encode(), encoded), body) + body
    assert raw[0] == 0
    assert int.from_bytes(raw[1:5], "big") == len(raw) - 5
    request = pb.HttpRequest.FromString(raw[5:])
    assert (request.method, request.target, request.body) == ("POST", target, body)
    assert [(h.name, h.value) for h in request.headers] == fields


def _response(status: int, fields: list[tuple[str, str]], bodies: list[bytes]) -> bytes:
    head = pb.HttpResponseHead(status=status, headers=[pb.HttpHeader(name=n, value=v) for n, v in fields])
    parts = [pb.HttpResponse(head=head), *[pb.HttpResponse(body=body) for body in bodies]]
    return b"".join(frame(part.SerializeToString()) for part in parts)


@given(st.integers(200, 599), headers, st.lists(st.binary(max_size=400), max_size=6), st.lists(st.integers(1, 60)))
def test_a_response_is_read_byte_for_byte_however_it_is_cut(status, fields, bodies, cuts):
    raw = _response(status, fields, bodies)
    reader = tunnel.TunnelReader()
    got = b""
    at = 0
    for cut in cuts:
        got += reader.feed(raw[at : at + cut])
        at += cut
    got += reader.feed(raw[at:])
    assert got == b"".join(bodies)
    assert reader.whole
    assert reader.head is not None
    assert reader.head.status == status
    kept = [(n.encode(), v.encode()) for n, v in fields if n.encode() not in tunnel.NOT_TO_CLIENT]
    assert reader.head.headers == kept


def test_a_long_body_message_is_handed_on_while_it_arrives():
    raw = _response(200, [], [b"x" * 1_000_000])
    reader = tunnel.TunnelReader()
    sizes = [len(reader.feed(raw[at : at + 16_384])) for at in range(0, len(raw), 16_384)]
    assert sum(sizes) == 1_000_000
    assert min(sizes[:-1]) > 16_000
    assert reader.whole


def test_a_body_beside_unknown_fields_and_an_empty_message_are_read_too():
    odd = pb.HttpResponse(body=b"abc").SerializeToString() + b"\x78\x01"
    raw = frame(b"") + _response(200, [], []) + frame(odd) + frame(b"")
    for step in (1, 2, 3, len(raw)):
        reader = tunnel.TunnelReader()
        assert b"".join(reader.feed(raw[at : at + step]) for at in range(0, len(raw), step)) == b"abc"
        assert reader.whole


def test_bytes_that_end_inside_a_message_are_not_whole():
    raw = _response(200, [], [b"abcdef"])
    reader = tunnel.TunnelReader()
    reader.feed(raw[:-2])
    assert not reader.whole


@pytest.mark.parametrize(
    "raw",
    [
        b"\1\0\0\0\1x",
        frame(b"\x0a\xff"),
        frame(pb.HttpResponse(head=pb.HttpResponseHead(status=42)).SerializeToString()),
        b"\0\x7f\xff\xff\xff\x0a\x00" + b"x" * 20,
        frame(b"\x00\x00"),
    ],
)
def test_what_is_no_tunnel_response_is_an_internal_error(raw):
    with pytest.raises(LayaError) as caught:
        tunnel.TunnelReader().feed(raw)
    assert caught.value.http_status == 500


def test_a_head_loses_framing_cookies_and_secrets_and_says_what_kind_it_is():
    fields = [
        ("content-type", "Text/Event-Stream; charset=utf-8"),
        ("content-length", "3"),
        ("transfer-encoding", "chunked"),
        ("set-cookie", "a"),
        ("server", "uvicorn"),
        ("laya-cluster-token", "secret"),
        ("retry-after", "7"),
        ("x-own", "1"),
    ]
    reader = tunnel.TunnelReader()
    reader.feed(_response(200, fields, []))
    head = reader.head
    assert head is not None
    assert head.headers == [
        (b"content-type", b"Text/Event-Stream; charset=utf-8"),
        (b"retry-after", b"7"),
        (b"x-own", b"1"),
    ]
    assert (head.events, head.json, head.retry_after) == (True, False, 7.0)


def test_a_head_of_any_size_is_read():
    for size in (10, 600, 100_000):
        reader = tunnel.TunnelReader()
        reader.feed(_response(404, [("x-long", "v" * size)], []))
        assert reader.head is not None
        assert (reader.head.status, reader.head.headers) == (404, [(b"x-long", b"v" * size)])


@given(st.binary(max_size=300))
def test_garbage_is_read_or_refused_and_never_grows(raw):
    reader = tunnel.TunnelReader()
    try:
        for at in range(0, len(raw), 7):
            reader.feed(raw[at : at + 7])
    except LayaError as error:
        assert error.http_status == 500


@pytest.mark.parametrize("cut", [1, 2, 5, 9])
def test_a_body_whose_length_ends_nowhere_is_no_message(cut: int):
    with pytest.raises(LayaError) as caught:
        tunnel.TunnelReader().feed(cut.to_bytes(5, "big") + b"\x12" + b"\xff" * (cut - 1))
    assert caught.value.reason == "NODE_PROTOCOL"
