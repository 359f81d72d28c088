"""What is fuzzed, and what must hold whatever the bytes are: no exception but the typed ones, the same outcome however
the bytes are cut, every owner told of its end once, and nothing held afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from inference_node import clamps
from router_node.discovery import registration
from router_node.gateway.tunnel import TunnelReader
from router_node.relay import fields, scan
from router_node.relay.peek import peek
from router_node.relay.settings import RelaySettings
from shared.errors import Code, LayaError, percent_decode
from shared.net import grpc_wire
from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.exchange import RequestHead
from shared.net.flusher import Flusher
from shared.net.grpc_wire import Deframer
from shared.net.http1_parser import Refusal, RequestParser
from shared.net.http2_exchange import Http2Front
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.net.splice import Splice
from shared.net.uploads import Uploads
from tests.support.h2_rig import REQUEST, ManualLoop, Wire
from tests.support.http1_site import Bench

SETTINGS = RelaySettings()
MAX_BODY = 20_000
MAX_HEADER = 4096


def cuts(data: bytes, seed: int) -> list[bytes]:
    """The same bytes in pieces."""
    pick = random.Random(seed)
    pieces = []
    while data:
        at = pick.choice((1, 2, 9, 100, 2000))
        pieces.append(data[:at])
        data = data[at:]
    return pieces


def http1_parser(data: bytes) -> None:
    """The same requests and the same refusal, however the bytes are cut; the head and the body within their limits."""
    outcomes = []
    for pieces in ([data], cuts(data, len(data))):
        seen: list[Any] = []

        def on_request(head: RequestHead, body: bytes, seen: list[Any] = seen) -> None:
            seen.append((head.method, head.target, head.headers, body, head.keep, head.modern))

        parser = RequestParser(on_request, MAX_HEADER, MAX_BODY)
        try:
            for piece in pieces:
                parser.feed(piece)
        except Refusal as refusal:
            seen.append((refusal.reason, refusal.error.http_status))
        for request in seen:
            if len(request) == 6:
                assert len(request[3]) <= MAX_BODY
                assert all(b"\n" not in value and b"\0" not in value for _, value in request[2])
        outcomes.append(seen)
        parser.release()
    assert outcomes[0] == outcomes[1], outcomes


def http1(data: bytes) -> None:
    """A connection takes anything, answers in order, and holds nothing once it is over."""

    def answer(exchange: HttpExchange) -> None:
        if exchange.target.startswith(b"/v1/models"):
            exchange.respond(200, [(b"x-target", exchange.target[:100])], exchange.body)
        else:
            exchange.start(200, [])
            exchange.write(exchange.body)
            exchange.finish()

    bench = Bench(answer, max_body_bytes=MAX_BODY, max_header_bytes=MAX_HEADER)
    for piece in cuts(data, len(data)):
        bench.say(piece)
        bench.hear()
    bench.loop.advance(400)
    bench.wire.lose()
    bench.loop.run()
    assert bench.lost and bench.uploads.held == 0 and len(bench.uploads) == 0


class _Told(ServerSink):
    """A request's owner that takes what comes and answers at the end."""

    def __init__(self, stream: ServerStream, end: bool) -> None:
        self.stream = stream
        self.closed = 0
        if end:
            self._answer()

    def _answer(self) -> None:
        self.stream.respond([(b":status", b"200"), (b"content-type", b"application/grpc")])
        self.stream.send(b"\0\0\0\0\0")
        self.stream.trailers([(b"grpc-status", b"0")])

    def on_data(self, data: bytes, end: bool) -> None:
        assert not self.closed
        self.stream.consumed(len(data))
        if end:
            self._answer()

    def on_trailers(self, headers: Headers) -> None:
        assert not self.closed
        self._answer()

    def on_sent(self, n: int) -> None:
        assert not self.closed and n > 0

    def on_closed(self, code: int) -> None:
        self.closed += 1


def _http2(data: bytes, engine: str) -> None:
    loop = ManualLoop()
    flusher = Flusher(cast(Any, loop))
    settings = NetSettings(engine=engine, max_body_bytes=MAX_BODY)
    uploads = Uploads(cast(Any, loop), 60.0, 8 * MAX_BODY)
    front = Http2Front(lambda exchange: exchange.respond(200, [], exchange.body), settings, flusher, uploads)
    told: list[_Told] = []

    def accept(stream: ServerStream, headers: Headers, end: bool) -> ServerSink | None:
        if not grpc_wire.is_grpc(headers):
            return front.accept(stream, headers, end)
        told.append(_Told(stream, end))
        return told[-1]

    conn = H2ServerProtocol(accept, settings, flusher)
    wire = Wire(loop)
    wire.attach(conn)
    for piece in cuts(data, len(data)):
        if wire.closing:
            break
        conn.data_received(piece)
        loop.run()
        wire.take()
    loop.advance(200)
    if not wire.closing:
        wire.lose()
    loop.run()
    assert all(owner.closed == 1 for owner in told)
    assert not conn.table and uploads.held == 0
    assert "owner_fault" not in flusher.counters.reasons
    assert flusher.counters.connections_closed == 1


def http2(data: bytes) -> None:
    """A client's connection on the native engine."""
    _http2(data, "ngh2")


def http2_pure(data: bytes) -> None:
    """The same on the other engine."""
    _http2(data, "h2")


class _Owner(ClientOwner):
    def on_ready(self, conn: H2ClientProtocol) -> None:
        """Of no interest."""

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        """Of no interest."""

    def on_gone(self, conn: H2ClientProtocol) -> None:
        """Of no interest."""


class _Client(ServerStream):
    """The client's side of a relayed call."""

    def __init__(self) -> None:
        self.over = 0
        self.sent = 0
        self._closed = False

    def respond(self, headers: Headers, end: bool = False) -> None:
        assert headers
        self.over += end

    def send(self, data: bytes, end: bool = False) -> None:
        self.sent += len(data)
        self.over += end

    def trailers(self, headers: Headers) -> None:
        self.over += 1

    def reset(self, code: int) -> None:
        self.over += 1

    def consumed(self, n: int) -> None:
        assert n >= 0

    queued = property(lambda self: 0)
    peer = property(lambda self: "")
    closed = property(lambda self: self._closed)


def node(data: bytes) -> None:
    """A node's bytes, with three calls under way: each is over for its client once the connection is."""
    loop = ManualLoop()
    flusher = Flusher(cast(Any, loop))
    conn = H2ClientProtocol(_Owner(), NetSettings(), flusher)
    wire = Wire(loop)
    wire.attach(conn)
    conn.data_received(b"\0\0\0\x04\0\0\0\0\0")
    clients = [_Client() for _ in range(3)]
    for client in clients:
        assert Splice(client).join(cast(Any, conn), REQUEST, True)
    loop.run()
    for piece in cuts(data, len(data)):
        if wire.closing:
            break
        conn.data_received(piece)
        loop.run()
        wire.take()
    if not wire.closing:
        wire.lose()
    loop.run()
    assert all(client.over == 1 for client in clients), [client.over for client in clients]
    assert "owner_fault" not in flusher.counters.reasons


def tunnel(data: bytes) -> None:
    """A node's tunnel messages: the same head and body however they are cut, or NODE_PROTOCOL."""
    outcomes = []
    for pieces in ([data], cuts(data, len(data))):
        reader = TunnelReader()
        body = b""
        failed = False
        try:
            for piece in pieces:
                body += reader.feed(piece)
        except LayaError as error:
            assert (error.code, error.reason) == (Code.INTERNAL, "NODE_PROTOCOL")
            failed = True
        head = reader.head
        outcomes.append((failed, None if failed else (body, head and (head.status, head.headers), reader.whole)))
    assert outcomes[0] == outcomes[1], outcomes


def grpc(data: bytes) -> None:
    """Message frames, time limits and trailers."""
    outcomes = []
    for encoding in (b"identity", b"gzip"):
        for pieces in ([data], cuts(data, len(data))):
            deframer = Deframer(MAX_BODY, encoding)
            messages: list[bytes] = []
            reason = ""
            try:
                for piece in pieces:
                    messages += deframer.feed(piece)
            except LayaError as error:
                reason = error.reason
            assert all(len(message) <= MAX_BODY for message in messages)
            assert deframer.pending <= MAX_BODY + 5
            outcomes.append((reason, messages if not reason else None))
        assert outcomes[-1] == outcomes[-2], outcomes[-2:]
    for read in (grpc_wire.parse_timeout, grpc_wire.decode_bin):
        _typed(lambda read=read: read(data))  # type: ignore[misc]
    percent_decode(data).encode("utf-8")
    parts = data.split(b"\0")
    names = (b"grpc-status", b"grpc-message", b"grpc-status-details-bin")
    error = grpc_wire.error_from_trailers(list(zip(names, parts, strict=False)))
    if error is not None:
        error.grpc_trailers()
        error.openai_body()
    grpc_wire.error_from_response([(b":status", parts[0]), (b"content-type", parts[-1])])


SCANNERS = (scan.scan_generate, scan.scan_complete, scan.scan_chat, scan.scan_embed, scan.scan_tunnel)


def message(data: bytes) -> None:
    """First messages and OpenAI bodies: read, or INVALID_ARGUMENT; what is read is within its bounds."""
    for read in (*SCANNERS, peek):
        into = fields.Fields()
        if _typed(lambda read=read, into=into: read(data, into, SETTINGS)):  # type: ignore[misc]
            assert 0 <= into.n <= SETTINGS.max_n
            assert 0 <= into.max_new_tokens <= SETTINGS.max_n * SETTINGS.max_max_tokens
            assert -(2**31) <= into.priority < 2**31
            assert len(into.model) <= 4 * fields.MAX_MODEL
            assert len(into.prefix) <= 64 and into.prompt_bytes <= 4 * len(data) + 4096


def metadata(data: bytes) -> None:
    """What clients, routers and stores say in words."""
    parts = data.split(b"\n")
    names = sorted(fields.names.CLIENT_SET)
    _typed(lambda: fields.from_metadata(dict(zip(names, parts, strict=False))))
    _typed(lambda: clamps.parse(data))
    for raw in (data, registration._signature(data, "laya", b"token") + b"\n" + data):
        try:
            registration.verify(raw, "n1", "laya", b"token", 1e9)
        except registration.RecordError as error:
            assert error.reason in registration.REASONS


def _typed(read: Callable[[], object]) -> bool:
    """True when it could be read; False for an error that a client may be told, in one sentence."""
    try:
        read()
    except LayaError as error:
        assert error.code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND), error
        assert 0 < len(error.message) <= 2048
        error.grpc_trailers()
        error.openai_body()
        return False
    return True


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (http1_parser, http1, http2, http2_pure, node, tunnel, grpc, message, metadata)
}
