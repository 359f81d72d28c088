"""HTTP/1.1 requests out of bytes, by llhttp (httptools), with what RFC 9112 asks of a server on top of it.

llhttp refuses by itself: both or several lengths, bare LF and CR, folded headers, bad names and values, bad chunks.
Refused here: a request without exactly one good Host, transfer codings other than one ``chunked``, HTTP versions other
than 1.0 and 1.1, targets that are neither a path nor an http URL, unknown expectations, and whatever is too large.

The outcome depends on the bytes alone, not on how they were cut into reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import httptools

from shared.errors import Code, LayaError, invalid
from shared.net.api import Headers
from shared.net.exchange import RequestHead
from shared.net.gather import Piece, gather, whole
from shared.net.http1_known import KnownHeads

# A callback for each whole request: its head and its body.
OnRequest = Callable[[RequestHead, bytes], None]

# Method, target, headers and the body's length, None for chunks: an error where the body is not wanted.
BodyGate = Callable[[bytes, bytes, Headers, int | None], LayaError | None]

_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_DONE: Final = 3

# Headers that speak of the connection or of framing: read here, and not passed on (Host alone is).
_HOST: Final = 1
_LENGTH: Final = 2
_CODING: Final = 3
_CONNECTION: Final = 4
_EXPECT: Final = 5
_UPGRADE: Final = 6
_HOP: Final = 7
_SPECIAL: Final = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"expect": _EXPECT,
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    b"te": _HOP,
    b"trailer": _HOP,
    b"upgrade": _UPGRADE,
    b"http2-settings": _HOP,
}

_HEADER_COST: Final = 32  # beside its bytes, as HTTP/2 counts a header list (RFC 9113, section 6.5.2)
_HEAD_SLACK: Final = 1024  # bytes of a head that are neither target, name nor value
_CHUNK_SLACK: Final = 64 << 10  # framing bytes a chunked body may have beside eight for each byte of content
_good_host = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?").fullmatch
_absolute = re.compile(rb"https?://([^/?#@]+)(/[^#]*|\?[^#]*)?", re.IGNORECASE).fullmatch


class Refusal(Exception):
    """Why a request is refused: ``reason`` is a short name for counters, ``error`` is what the client is told."""

    def __init__(self, reason: str, error: LayaError) -> None:
        super().__init__(error.message)
        self.reason = reason
        self.error = error


def _refused(reason: str, message: str, status: int = 400) -> Refusal:
    error = invalid(message)
    error.http_status = status
    return Refusal(reason, error)


class Llhttp:
    """Parses one connection's requests; ``on_request`` is called for each within ``feed``.

    ``max_header`` bounds a request's head as HTTP/2 counts it: target, names and values, and 32 bytes a header.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_close",
        "_expect",
        "_feeding",
        "_gate",
        "_got",
        "_head",
        "_headers",
        "_heads",
        "_host",
        "_host_seen",
        "_keep",
        "_length",
        "_max_body",
        "_max_header",
        "_nominated",
        "_on_request",
        "_parser",
        "_raw",
        "_state",
        "_target",
        "_upgrade",
        "known",
        "raw_head",
    )

    def __init__(
        self,
        on_request: OnRequest,
        max_header: int,
        max_body: int,
        gate: BodyGate | None,
        heads: KnownHeads,
    ) -> None:
        """``gate`` is asked before a body is taken, and may refuse it."""
        self._on_request: OnRequest | None = on_request
        self._gate = gate
        self._heads = heads
        self._max_header = max_header
        self._max_body = max_body
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._state = _IDLE
        self._raw = self._feeding = 0
        self.raw_head = b""  # all bytes of the head that is fed next, where it may be worth keeping
        self.known: RequestHead | None = None  # the last one that was
        self._head: RequestHead | None = None  # of the request whose body is arriving
        self._host_seen = b""
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: Headers = []
        self._host: bytes | None = None
        self._length: int | None = None
        self._chunked = False
        self._close = self._keep = self._upgrade = self._expect = False
        self._nominated: set[bytes] | None = None
        self._body: list[Piece] = []
        self._got = 0

    @property
    def idle(self) -> bool:
        """Between requests: no byte of the next one has come."""
        return self._state == _IDLE

    @property
    def in_head(self) -> bool:
        """Inside a request's line or headers."""
        return self._state == _HEAD

    @property
    def expecting(self) -> bool:
        """The client waits for 100 Continue before it sends its body."""
        return self._expect and self._state == _BODY and not self._got

    @property
    def held(self) -> int:
        """Bytes of the body that is arriving."""
        return self._got

    def continued(self) -> None:
        """100 Continue has been sent."""
        self._expect = False

    def drop(self) -> None:
        """Let go of the request that is arriving: it is refused, and nothing follows it."""
        self._state = _DONE
        self._reset()

    def release(self) -> None:
        """Break the reference cycle with httptools; call it when the connection is gone."""
        self._state = _DONE
        self._on_request = self._gate = self._parser = None

    def feed(self, data: bytes | memoryview) -> None:
        """Parse; raises Refusal, after which nothing more can be fed. Bytes after the last request are ignored."""
        parser = self._parser
        before = self._state
        if parser is None or before == _DONE:
            return
        self._feeding = len(data)
        if before != _IDLE:
            self._raw += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data, upgrade.args[0])
        except httptools.HttpParserCallbackError as wrapper:
            cause = wrapper.__context__
            raise cause if isinstance(cause, Refusal) else wrapper from None
        except httptools.HttpParserError as error:
            if self._state != _DONE:
                raise _from_llhttp(error) from None
        if before != _IDLE and self._state == before:
            self._check_raw()

    def _check_raw(self) -> None:
        """Bound what leads to no progress: a header that does not end, and chunk framing without content."""
        if self._state == _HEAD and self._raw > self._max_header + _HEAD_SLACK:
            raise self._head_too_large()
        if self._state == _BODY and self._chunked and self._raw > 8 * self._got + _CHUNK_SLACK:
            raise _refused("chunk_overhead", "The chunks of the request body are mostly framing: send larger chunks.")

    def _without_upgrade(self, data: bytes | memoryview, offset: int) -> None:
        """Serve a request that asks for another protocol as if it did not, and take no further one.

        llhttp believes such a request to have no body. Where its headers say it has, a parser that sees the same
        framing without the upgrade reads it.
        """
        if self._state != _BODY:
            return
        framing = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % (self._length or 0)
        self._parser = parser = httptools.HttpRequestParser(_BodyOnly(self))
        parser.feed_data(b"POST / HTTP/1.1\r\nconnection: close\r\n" + framing + b"\r\n\r\n")
        self.feed(memoryview(data)[offset:])

    # Called by httptools.

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._reset()
        self._raw = 0
        self._state = _HEAD

    def on_url(self, piece: bytes) -> None:
        """A part of the target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; or one trailer of a chunked body, which nobody reads. ``_check_raw`` bounds how many."""
        self._headers.append((name, value))

    def _sort_headers(self) -> Headers:
        """The headers to pass on, in lower case; those that are ours are read."""
        headers = self._headers
        # What came in is at least what a head has: only a large one is measured to the byte.
        if self._raw + self._feeding + _HEADER_COST * len(headers) > self._max_header:
            size = len(self._target) + sum(len(name) + len(value) + _HEADER_COST for name, value in headers)
            if size > self._max_header:
                raise self._head_too_large()
        kept: Headers = []
        kind_of = _SPECIAL.get
        for name, value in headers:
            name = name.lower()
            kind = kind_of(name)
            if kind is None:
                kept.append((name, value.rstrip()))
            elif kind == _LENGTH:
                self._length = int(value)  # llhttp let digits through only, once
            elif kind == _HOST and self._host is None and value == self._host_seen:
                self._host = value
            else:
                self._special(kind, value.rstrip())
        return kept

    def _special(self, kind: int, value: bytes) -> None:
        if kind == _HOST:
            if self._host is not None:
                raise _refused("host", "The request has more than one Host header: send exactly one.")
            if not _good_host(value):
                raise _refused("host", "The Host header is not a host name or address with an optional port.")
            self._host = self._host_seen = value
        elif kind == _CODING:
            if self._chunked or value.lower() != b"chunked":
                raise _refused("framing", "The only transfer coding supported is a single chunked.", 501)
            self._chunked = True
        elif kind == _CONNECTION:
            self._connection(value.lower())
        elif kind == _UPGRADE:
            self._upgrade = True
        elif kind == _EXPECT:
            if value.lower() != b"100-continue":
                raise _refused("expectation", "The only expectation supported is 100-continue.", 417)
            self._expect = True

    def _connection(self, value: bytes) -> None:
        for token in value.split(b","):
            token = token.strip(b" \t")
            if token == b"close":
                self._close = True
            elif token == b"keep-alive":
                self._keep = True
            elif token and token != b"host":
                if self._nominated is None:
                    self._nominated = set()
                self._nominated.add(token)

    def on_headers_complete(self) -> None:
        """The head is whole: check it before any of the body is taken."""
        parser = self._parser
        if parser is None:
            return
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _refused("version", f"HTTP/{version} is not spoken here: use HTTP/1.1 or HTTP/2.", 505)
        modern = version == "1.1"
        headers = self._sort_headers()
        method = parser.get_method()
        if self._host is None and modern:
            raise _refused("host", "The request has no Host header: HTTP/1.1 needs exactly one.")
        if self._chunked and not modern:
            raise _refused("framing", "An HTTP/1.0 request cannot be chunked: send a content-length.")
        if self._target[:1] != b"/" or b"#" in self._target:
            self._resolve_target(method)
        if self._host is not None:
            headers.append((b"host", self._host))
        if self._length is not None and self._length > self._max_body:
            raise body_too_large(self._max_body)
        if self._nominated is not None:
            headers = [pair for pair in headers if pair[0] not in self._nominated]
        if self._gate is not None and (self._chunked or self._length):
            error = self._gate(method, self._target, headers, self._length)
            if error is not None:
                raise Refusal("refused_early", error)
        expected = self._expect
        self._expect = expected and modern and (self._chunked or bool(self._length))
        # llhttp takes such a request's body for another protocol's bytes.
        self._upgrade = self._upgrade and parser.should_upgrade()
        keep = not (self._close or self._upgrade) and (modern or self._keep)
        head = RequestHead(method, self._target, headers, keep, modern, self._length is not None)
        raw, self.raw_head = self.raw_head, b""
        if raw and keep and not (self._chunked or expected):
            self.known = self._heads.learn(raw, head, self._length)
            if self.known is not None:
                head = self.known
        self._head = head
        self._raw = 0
        self._state = _BODY

    def _resolve_target(self, method: bytes) -> None:
        """``*`` and the absolute form; its authority replaces Host (RFC 9112, section 3.2.2)."""
        if method == b"CONNECT":
            raise _refused("target", "CONNECT is not supported: this server is not a proxy.", 501)
        if self._target == b"*" and method == b"OPTIONS":
            return
        match = _absolute(self._target)
        if match is None or not _good_host(match[1]):
            raise _refused("target", "The request target must be a path that begins with /, or an http URL.")
        path = match[2] or b"/"
        self._target = path if path[:1] == b"/" else b"/" + path
        self._host = match[1]

    def on_body(self, piece: bytes) -> None:
        """A part of the body."""
        got = self._got = self._got + len(piece)
        if got > self._max_body:
            raise body_too_large(self._max_body)
        gather(self._body, piece)

    def on_message_complete(self) -> None:
        """The request is whole, unless llhttp takes its body for another protocol's bytes."""
        if not (self._upgrade and (self._chunked or self._length)):
            self.on_body_complete()

    def on_body_complete(self) -> None:
        """The body is whole, also of a request that asked for another protocol."""
        body = whole(self._body)
        self._body = []
        head, self._head = self._head, None
        if head is None:
            return
        self._state = _IDLE if head.keep else _DONE
        if self._on_request is not None:
            self._on_request(head, body)

    def _head_too_large(self) -> Refusal:
        text = f"The request's headers are limited to {self._max_header} bytes: send fewer or shorter ones."
        return _refused("header_too_large", text, 431)


def body_too_large(limit: int) -> Refusal:
    """A body of more than ``limit`` bytes is refused."""
    text = f"The request body is limited to {limit} bytes: send less."
    return Refusal("body_too_large", LayaError(Code.INVALID_ARGUMENT, "BODY_TOO_LARGE", text, http_status=413))


class _BodyOnly:
    """Hands on the body of a request whose head has been read."""

    def __init__(self, owner: Llhttp) -> None:
        self.on_body = owner.on_body
        self.on_message_complete = owner.on_body_complete


def _from_llhttp(error: httptools.HttpParserError) -> Refusal:
    text = str(error)
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return _refused("garbage", "These bytes are no HTTP request: speak HTTP/1.1 or HTTP/2 on this port.")
    if "Content-Length" in text or "Transfer-Encoding" in text:
        return _refused("framing", f"The request's length is ambiguous or malformed ({text}).")
    return _refused("malformed", f"The request is malformed ({text}).")
