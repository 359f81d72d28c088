"""Which bytes are HTTP requests, and what they say."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.net.api import Headers
from shared.net.exchange import RequestHead
from shared.net.http1_parser import Refusal, RequestParser

Seen = list[tuple[bytes, bytes, Headers, bytes, bool, bool]]
Outcome = tuple[Seen, str | None]

HOST = b"Host: a.example\r\n"


def parse(*chunks: bytes, max_header: int = 4096, max_body: int = 1000) -> Outcome:
    """The requests in the chunks, and why the rest was refused."""
    seen: Seen = []

    def on_request(head: RequestHead, body: bytes) -> None:
        seen.append((head.method, head.target, head.headers, body, head.keep, head.modern))

    parser = RequestParser(on_request, max_header, max_body)
    try:
        for chunk in chunks:
            parser.feed(chunk)
    except Refusal as refusal:
        return seen, refusal.reason
    finally:
        parser.release()
    return seen, None


def get(*headers: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    return get(b"Content-Length: %d" % len(body), *headers, line=b"POST /p HTTP/1.1") + body


def test_a_request_has_lower_case_headers_and_none_about_the_connection():
    seen, refused = parse(
        get(
            b"X-Two: 2", b"Connection: keep-alive, X-Hop", b"X-Hop: 1", b"TE: trailers", b"Keep-Alive: 5", b"X-One:  1 "
        )
    )
    assert refused is None
    assert seen == [(b"GET", b"/", [(b"x-two", b"2"), (b"x-one", b"1"), (b"host", b"a.example")], b"", True, True)]


def test_bodies_come_by_length_and_by_chunks():
    chunked = get(b"Transfer-Encoding: Chunked", line=b"POST /c HTTP/1.1")
    chunked += b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
    seen, refused = parse(post(b"hello") + chunked + get())
    assert refused is None
    assert [(target, body) for _, target, _, body, _, _ in seen] == [(b"/p", b"hello"), (b"/c", b"abcde"), (b"/", b"")]
    assert all(name != b"x-trailer" for name, _ in seen[1][2])


@pytest.mark.parametrize(
    ("version", "connection", "keep"),
    [
        (b"HTTP/1.1", b"", True),
        (b"HTTP/1.1", b"close", False),
        (b"HTTP/1.1", b"foo, CLOSE", False),
        (b"HTTP/1.0", b"", False),
        (b"HTTP/1.0", b"Keep-Alive", True),
        (b"HTTP/1.0", b"keep-alive, close", False),
    ],
)
def test_persistence_follows_version_and_connection_header(version: bytes, connection: bytes, keep: bool):
    headers = [b"Connection: " + connection] if connection else []
    seen, refused = parse(get(*headers, line=b"GET / " + version))
    assert refused is None
    assert seen[0][4] is keep
    assert seen[0][5] is (version == b"HTTP/1.1")


def test_nothing_is_parsed_after_a_request_that_ends_the_connection():
    assert len(parse(get(b"Connection: close") + get())[0]) == 1
    assert parse(get(b"Connection: close"), b"\x00garbage")[1] is None


SMUGGLING = {
    "length and chunked": get(b"Content-Length: 3", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunked and length": get(b"Transfer-Encoding: chunked", b"Content-Length: 3") + b"0\r\n\r\n",
    "two lengths": get(b"Content-Length: 1", b"Content-Length: 2") + b"ab",
    "one length twice": get(b"Content-Length: 1", b"Content-Length: 1") + b"a",
    "list of lengths": get(b"Content-Length: 1, 1") + b"a",
    "signed length": get(b"Content-Length: +1") + b"a",
    "negative length": get(b"Content-Length: -1"),
    "hex length": get(b"Content-Length: 0x1") + b"a",
    "empty length": get(b"Content-Length:"),
    "length with a gap": get(b"Content-Length: 1 0") + b"0123456789",
    "overflowing length": get(b"Content-Length: 99999999999999999999"),
    "chunked twice": get(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "gzip, chunked": get(b"Transfer-Encoding: gzip, chunked"),
    "chunked, gzip": get(b"Transfer-Encoding: chunked, gzip"),
    "gzip": get(b"Transfer-Encoding: gzip"),
    "xchunked": get(b"Transfer-Encoding: xchunked"),
    "quoted chunked": get(b'Transfer-Encoding: "chunked"'),
    "chunked with a vertical tab": get(b"Transfer-Encoding: \x0bchunked"),
    "chunked in HTTP/1.0": get(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"),
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: a\nX: 1\r\n\r\n",
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LF for the empty line": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "bare CR in a value": get(b"X: 1\rY: 2"),
    "folded header": get(b"X: 1\r\n  2"),
    "tab-folded header": get(b"X: 1\r\n\t2"),
    "first header begins with a space": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "space before the colon": get(b"Content-Length : 1") + b"a",
    "name with a space": get(b"Content Length: 1"),
    "name with a bracket": get(b"X(: 1"),
    "empty name": get(b": 1"),
    "no colon": get(b"nonsense"),
    "NUL in a value": get(b"X: a\0b"),
    "NUL in a name": get(b"X\0: a"),
    "control character in a value": get(b"X: a\x01b"),
    "no host": get(host=b""),
    "two hosts": get(b"Host: b"),
    "one host twice": get(b"Host: a.example"),
    "host with a path": get(host=b"Host: a/b\r\n"),
    "host with a user": get(host=b"Host: u@a\r\n"),
    "host with a space": get(host=b"Host: a b\r\n"),
    "host with a bad port": get(host=b"Host: a:80x\r\n"),
    "host list": get(host=b"Host: a, b@c\r\n"),
    "relative target": get(line=b"GET p HTTP/1.1"),
    "target with a fragment": get(line=b"GET /a#b HTTP/1.1"),
    "star for GET": get(line=b"GET * HTTP/1.1"),
    "another scheme": get(line=b"GET ftp://a/p HTTP/1.1"),
    "absolute target with a user": get(line=b"GET http://u@a/p HTTP/1.1"),
    "absolute target without a host": get(line=b"GET http:///p HTTP/1.1"),
    "CONNECT": get(line=b"CONNECT a:80 HTTP/1.1"),
    "control character in the target": get(line=b"GET /a\x01 HTTP/1.1"),
    "high bytes in the target": get(line=b"GET /\xff HTTP/1.1"),
    "no version": b"GET /\r\n\r\n",
    "HTTP/0.9": get(line=b"GET / HTTP/0.9"),
    "HTTP/2.0": get(line=b"GET / HTTP/2.0"),
    "HTTP/1.2": get(line=b"GET / HTTP/1.2"),
    "HTTP/1.11": get(line=b"GET / HTTP/1.11"),
    "chunk size ends in LF": get(b"Transfer-Encoding: chunked") + b"1\na\r\n0\r\n\r\n",
    "chunk data ends in LF": get(b"Transfer-Encoding: chunked") + b"1\r\na\n0\r\n\r\n",
    "chunk extension ends in LF": get(b"Transfer-Encoding: chunked") + b"1;x\na\r\n0\r\n\r\n",
    "chunk size with 0x": get(b"Transfer-Encoding: chunked") + b"0x1\r\na\r\n0\r\n\r\n",
    "negative chunk size": get(b"Transfer-Encoding: chunked") + b"-1\r\na\r\n0\r\n\r\n",
    "overflowing chunk size": get(b"Transfer-Encoding: chunked") + b"fffffffffffffffff\r\na\r\n0\r\n\r\n",
    "chunk longer than its size": get(b"Transfer-Encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n",
    "space after the chunk size": get(b"Transfer-Encoding: chunked") + b"1 \r\na\r\n0\r\n\r\n",
    "unknown expectation": get(b"Expect: 200-ok", b"Content-Length: 1"),
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "noise": bytes(range(128, 256)),
    "lower-case method": get(line=b"get / HTTP/1.1"),
    "unknown method": get(line=b"FETCH / HTTP/1.1"),
}


@pytest.mark.parametrize("attack", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_an_ambiguous_or_malformed_request_is_refused_however_it_is_cut(attack: bytes):
    smuggled = attack + get(line=b"GET /smuggled HTTP/1.1")
    seen, reason = parse(smuggled)
    assert reason is not None
    assert not seen
    assert parse(*(smuggled[i : i + 1] for i in range(len(smuggled)))) == (seen, reason)


def test_refusals_carry_the_status_that_says_most():
    def status(data: bytes) -> int:
        parser = RequestParser(lambda *_: None, 400, 10)
        with pytest.raises(Refusal) as caught:
            parser.feed(data)
        return caught.value.error.http_status

    assert status(get(b"Content-Length: 11")) == 413
    assert status(get(b"Transfer-Encoding: chunked") + b"b\r\n01234567890\r\n0\r\n\r\n") == 413
    assert status(get(b"X: " + b"x" * 400)) == 431
    assert status(get(line=b"GET /" + b"x" * 400 + b" HTTP/1.1")) == 431
    assert status(get(line=b"GET / HTTP/2.0")) == 505
    assert status(get(b"Transfer-Encoding: gzip, chunked")) == 501
    assert status(get(b"Expect: more", b"Content-Length: 1")) == 417
    assert status(get(host=b"")) == 400


def test_absolute_targets_become_paths_and_their_host_wins():
    for line, target in (
        (b"GET http://b.example:81/p?q=1 HTTP/1.1", b"/p?q=1"),
        (b"GET HTTPS://b.example:81?q HTTP/1.1", b"/?q"),
        (b"GET http://b.example:81 HTTP/1.1", b"/"),
    ):
        seen, refused = parse(get(line=line))
        assert refused is None
        assert (seen[0][1], seen[0][2]) == (target, [(b"host", b"b.example:81")])
    assert parse(get(line=b"OPTIONS * HTTP/1.1"))[0][0][1] == b"*"


def test_good_hosts_of_every_kind_pass():
    for host in (b"a", b"a.b:8000", b"127.0.0.1:1", b"[::1]", b"[::1]:8000", b""):
        assert parse(get(host=b"Host: " + host + b"\r\n"))[0][0][2] == [(b"host", host)]
    assert parse(get(host=b"", line=b"GET / HTTP/1.0"))[0][0][2] == []


def test_an_endless_header_is_refused_at_the_limit():
    for start in (b"GET /", b"GET / HTTP/1.1\r\nHost: a\r\nX", b"GET / HTTP/1.1\r\nHost: a\r\nX: "):
        chunks = [start] + [b"x" * 512] * 20
        seen, reason = parse(*chunks)
        assert (seen, reason) == ([], "header_too_large")
    assert parse(b"GET / HTTP/1.1\r\nHost: a\r\n", *[b"a:\r\n"] * 2000)[1] == "header_too_large"


def test_chunks_that_are_mostly_framing_are_refused():
    start = get(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.1")
    assert parse(start, *[b"1;" + b"x" * 1000 + b"\r\na\r\n"] * 100)[1] == "chunk_overhead"
    assert parse(start, b"1\r\na\r\n0\r\n", *[b"Trailer: 1\r\n"] * 10_000)[1] == "chunk_overhead"
    seen, reason = parse(start, *[b"1\r\na\r\n"] * 900, b"0\r\n\r\n")
    assert reason is None
    assert seen[0][3] == b"a" * 900


def test_a_request_to_upgrade_is_served_without_it_and_is_the_last():
    ask = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    seen, refused = parse(get(*ask) + get())
    assert (len(seen), refused) == (1, None)
    assert seen[0][2] == [(b"host", b"a.example")]
    assert seen[0][4] is False

    with_length = post(b"GET /smuggled HTTP/1.1\r\n\r\n", *ask)
    chunked = get(*ask, b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.1") + b"3\r\nabc\r\n0\r\n\r\n"
    for request, body in ((with_length, b"GET /smuggled HTTP/1.1\r\n\r\n"), (chunked, b"abc")):
        for cut in range(1, len(request)):
            seen, refused = parse(request[:cut], request[cut:] + get())
            assert refused is None
            assert [(one[3], one[4]) for one in seen] == [(body, False)]


def test_expect_is_seen_only_while_the_body_is_awaited():
    parser = RequestParser(lambda *_: None, 4096, 1000)

    def after(data: bytes) -> bool:
        parser.feed(data)
        return parser.expecting

    assert after(get(b"Expect: 100-Continue", b"Content-Length: 2", line=b"POST / HTTP/1.1"))
    parser.continued()
    assert not after(b"")
    assert not after(b"ab")
    assert not after(get(b"Expect: 100-continue", b"Content-Length: 0"))
    assert not after(get(b"Expect: 100-continue", b"Content-Length: 2") + b"a")
    assert not parser.idle


BODIES = st.binary(max_size=40)
VALID = st.one_of(
    st.builds(post, BODIES),
    st.builds(lambda body: post(body, b"Expect: 100-continue"), BODIES),
    st.just(get()),
    st.just(get(line=b"HEAD http://x/ HTTP/1.1")),
    st.just(b"\r\n" + get(line=b"GET / HTTP/1.0")),
    st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(
        lambda parts: (
            get(b"Transfer-Encoding: chunked", line=b"POST /c HTTP/1.1")
            + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            + b"0\r\n\r\n"
        )
    ),
)
ANYTHING = st.one_of(VALID, VALID, VALID, st.sampled_from(list(SMUGGLING.values())), st.binary(max_size=30))


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(ANYTHING, max_size=5), st.lists(st.integers(0, 600), max_size=12))
def test_the_outcome_does_not_depend_on_how_the_bytes_are_cut(requests: list[bytes], at: list[int]):
    data = b"".join(requests)
    assert parse(*cut(data, at)) == parse(data)


@given(st.lists(VALID, min_size=1, max_size=4), st.data())
def test_damage_to_a_stream_never_raises_anything_but_a_refusal(requests: list[bytes], data: st.DataObject):
    stream = bytearray(b"".join(requests))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    parse(bytes(stream))
