"""Heads that are known are not parsed again, and mean what they meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import LayaError, invalid
from shared.net.api import Headers
from shared.net.exchange import RequestHead
from shared.net.http1_known import MOST_BYTES, KnownHeads
from shared.net.http1_parser import SLICE, Refusal, RequestParser

Seen = list[tuple[RequestHead, bytes]]


def head(length: bytes, *extra: bytes, name: bytes = b"Content-Length", version: bytes = b"1.1") -> bytes:
    lines = [b"POST /p?q HTTP/" + version, b"Host: a.example", b"X-One: 1", name + b": " + length, *extra]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def parser(seen: Seen, heads: KnownHeads | None = None, max_body: int = 100_000, **more: object) -> RequestParser:
    def on_request(head: RequestHead, body: bytes) -> None:
        seen.append((head, body))

    return RequestParser(on_request, 4096, max_body, heads=heads, **more)  # type: ignore[arg-type]


def test_requests_that_differ_in_length_alone_share_one_head():
    seen: Seen = []
    one = parser(seen)
    for body in (b"abc", b"", b"x" * 1234):
        one.feed(head(b"%d" % len(body)) + body)
    assert [body for _, body in seen] == [b"abc", b"", b"x" * 1234]
    first = seen[0][0]
    assert all(found is first for found, _ in seen)
    assert (first.method, first.target, first.sized, first.keep) == (b"POST", b"/p?q", True, True)
    assert first.headers == [(b"x-one", b"1"), (b"host", b"a.example")]


def test_connections_share_the_heads_of_clients_that_say_the_same():
    heads = KnownHeads()
    seen: Seen = []
    for _ in range(3):
        parser(seen, heads).feed(head(b"1") + b"a")
    parser(seen, heads).feed(head(b"1", b"X-Two: 2") + b"a")
    assert len(heads) == 2
    assert seen[0][0] is seen[1][0] is seen[2][0] is not seen[3][0]


def test_heads_without_a_body_are_known_too():
    seen: Seen = []
    one = parser(seen)
    get = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    one.feed(get * 3)
    one.feed(get)
    assert len(seen) == 4
    assert seen[3][0] is seen[0][0] and not seen[0][0].sized


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (head(b"1") + b"a", head(b"1", b"X-Two: 2") + b"a"),
        (head(b"1") + b"a", b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"),
        (head(b"1") + b"a", head(b"1", name=b"content-length") + b"a"),
        (head(b"1") + b"a", head(b"1", version=b"1.0") + b"a"),
    ],
)
def test_another_head_is_parsed_for_itself(first: bytes, second: bytes):
    seen: Seen = []
    one = parser(seen)
    one.feed(first)
    one.feed(second)
    alone: Seen = []
    parser(alone).feed(second)
    got, want = seen[1][0], alone[0][0]
    assert (got.method, got.target, got.headers, got.keep, got.modern) == (
        want.method,
        want.target,
        want.headers,
        want.keep,
        want.modern,
    )
    assert seen[1][1] == alone[0][1]


@pytest.mark.parametrize(
    "length", [b"", b"+1", b"-1", b"0x1", b"1 0", b"1\x0b", b"\0", b"1\r\nContent-Length: 1", b"99999999999", b"\xb2"]
)
def test_lengths_that_are_no_plain_numbers_are_refused_behind_a_known_head_as_before_it(length: bytes):
    def reason(*data: bytes) -> str:
        seen: Seen = []
        one = parser(seen)
        with pytest.raises(Refusal) as caught:
            for piece in data:
                one.feed(piece)
        return caught.value.reason

    bad = head(length) + b"a" * 10
    assert reason(head(b"1") + b"a", bad) == reason(bad)


def test_a_known_head_keeps_the_limits():
    seen: Seen = []
    asked: list[tuple[bytes, bytes, Headers, int | None]] = []

    def gate(method: bytes, target: bytes, headers: Headers, length: int | None) -> LayaError | None:
        asked.append((method, target, headers, length))
        return invalid("no") if length == 7 else None

    one = parser(seen, max_body=10, gate=gate)
    one.feed(head(b"1") + b"a")
    one.feed(head(b"9") + b"123456789")
    with pytest.raises(Refusal) as caught:
        one.feed(head(b"11"))
    assert (caught.value.reason, caught.value.error.http_status) == ("body_too_large", 413)
    with pytest.raises(Refusal) as caught:
        one.feed(head(b"7"))
    assert caught.value.reason == "refused_early"
    assert [(method, length) for method, _, _, length in asked] == [(b"POST", 1), (b"POST", 9), (b"POST", 7)]


@pytest.mark.parametrize(
    "request_",
    [
        head(b"1", b"Expect: 100-continue") + b"a",
        head(b"1", b"Connection: close") + b"a",
        head(b"1", b"Connection: Upgrade", b"Upgrade: h2c") + b"a",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head(b"1", b"X-Long: " + b"x" * MOST_BYTES) + b"a",
        b"\r\n" + head(b"1") + b"a",
    ],
)
def test_heads_out_of_the_ordinary_are_not_kept(request_: bytes):
    heads = KnownHeads()
    seen: Seen = []
    parser(seen, heads).feed(request_)
    assert len(seen) == 1 and len(heads) == 0


def test_a_head_that_came_in_pieces_is_not_kept():
    heads = KnownHeads()
    seen: Seen = []
    one = parser(seen, heads)
    whole = head(b"1")
    one.feed(whole[:20])
    one.feed(whole[20:] + b"a")
    assert len(seen) == 1 and len(heads) == 0


def test_a_body_behind_a_known_head_may_come_in_pieces():
    seen: Seen = []
    one = parser(seen)
    one.feed(head(b"0"))
    body = bytes(range(256)) * 200
    data = head(b"%d" % len(body)) + body + head(b"3") + b"end"
    for start in range(0, len(data), 1000):
        one.feed(data[start : start + 1000])
        assert one.idle == (start + 1000 >= len(data))
        assert not one.in_head or start + 1000 >= len(data) - 100
        if start == 1000:
            assert one.held == 2000 - len(head(b"%d" % len(body)))
    assert [found for _, found in seen] == [b"", body, b"end"]


def test_a_refused_body_behind_a_known_head_is_let_go():
    seen: Seen = []
    one = parser(seen)
    one.feed(head(b"0"))
    one.feed(head(b"50") + b"x" * 10)
    assert one.held == 10
    one.drop()
    one.feed(b"x" * 40 + head(b"0"))
    assert len(seen) == 1


def test_one_call_takes_one_known_request_or_a_slice():
    seen: Seen = []
    one = parser(seen)
    one.feed(head(b"0"))
    data = head(b"2") + b"ab" + head(b"40000") + b"x" * 40_000
    at = one.take(data, 0)
    assert (at, len(seen)) == (len(head(b"2")) + 2, 2)
    assert one.take(data, at) == len(data)
    assert seen[-1][1] == b"x" * 40_000
    fresh = parser(seen)
    assert fresh.take(data[at:], 0) == SLICE


def test_how_many_heads_are_kept_is_bounded():
    heads = KnownHeads()
    seen: Seen = []
    for i in range(1000):
        parser(seen, heads).feed(head(b"0", b"X-Id: %d" % i))
    assert len(heads) <= 256


BODIES = st.binary(max_size=30)
HEADS = st.sampled_from(
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", b"\r\nX: 1\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nContent-Length:", b"\r\nHost: a\r\n\r\n"),
        (b"POST / HTTP/1.0\r\nConnection: keep-alive\r\ncontent-length: ", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: ", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: ", b"\r\n\r\n"),
    ]
)


@given(st.lists(st.tuples(HEADS, BODIES), min_size=1, max_size=8), st.integers(1, 200))
def test_knowing_heads_changes_nothing(requests: list[tuple[tuple[bytes, bytes], bytes]], step: int):
    """A parser that sees each byte alone knows no head: it says what the others should."""
    data = b"".join(before + b"%d" % len(body) + after + body for (before, after), body in requests)

    def outcome(size: int) -> tuple[list[tuple[object, ...]], str | None]:
        seen: Seen = []
        one = parser(seen)
        reason = None
        try:
            for at in range(0, len(data), size):
                one.feed(data[at : at + size])
        except Refusal as refusal:
            reason = refusal.reason
        return [(h.method, h.target, h.headers, h.keep, h.modern, h.sized, body) for h, body in seen], reason

    assert outcome(step) == outcome(1) == outcome(len(data))
