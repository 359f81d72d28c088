"""Plain HTTP over HTTP/2: the same exchange as over HTTP/1.1, with a raw client on the other side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from ngh2 import Role

from shared.net.api import INTERNAL_ERROR, NO_ERROR, Headers, HttpExchange
from shared.net.flusher import Flusher
from shared.net.http2_exchange import Http2Front
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from shared.net.uploads import Uploads, upload_limit
from tests.support.fake_http import ENDS, owned
from tests.support.h2_rig import Link, ManualLoop, Raw, Seen


def request(*extra: tuple[bytes, bytes], method: bytes = b"POST", path: bytes = b"/v1/x") -> Headers:
    return [
        (b":method", method),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"a.example"),
        (b"content-type", b"application/json"),
        *extra,
    ]


class Site:
    """A front behind a connection, and the exchanges it made."""

    def __init__(self, handler: Callable[[HttpExchange], None] | None = None, **raw: object) -> None:
        self.handler = handler
        self.exchanges: list[HttpExchange] = []
        self.aborted = 0
        self.loop = ManualLoop()
        self.flusher = Flusher(self.loop)  # type: ignore[arg-type]
        settings = replace(NetSettings(), max_body_bytes=200_000, body_timeout=5.0)
        uploads = Uploads(self.flusher.loop, settings.body_timeout, upload_limit(settings.max_body_bytes))
        self.front = Http2Front(self.handle, settings, self.flusher, uploads)
        self.link = Link(
            self.loop,
            H2ServerProtocol(self.front.accept, settings, self.flusher),
            Raw(Role.CLIENT, **raw),  # type: ignore[arg-type]
        )

    def handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        exchange.on_abort = self.count_abort
        if self.handler is not None:
            self.handler(exchange)

    def count_abort(self) -> None:
        self.aborted += 1

    def ask(self, headers: Headers, body: bytes | None = None, end: bool = True) -> int:
        number = self.link.raw.request(headers, body, end)
        self.link.pump()
        return number

    def seen(self, number: int) -> Seen:
        return self.link.raw.streams[number]

    def reasons(self) -> dict[str, int]:
        return self.flusher.counters.reasons


def echo(exchange: HttpExchange) -> None:
    exchange.respond(200, [(b"x-target", exchange.target), (b"connection", b"close")], exchange.body)


def test_an_exchange_says_what_one_over_http_1_would():
    site = Site(echo)
    site.ask(request((b"x-a", b"1"), (b"te", b"trailers"), (b"content-length", b"4")), b"body")
    (exchange,) = site.exchanges
    assert (exchange.method, exchange.target, exchange.body) == (b"POST", b"/v1/x", b"body")
    assert exchange.headers == [(b"content-type", b"application/json"), (b"x-a", b"1"), (b"host", b"a.example")]
    assert exchange.peer == "127.0.0.1:4242"


@pytest.mark.parametrize("size", [0, 3, 16_384, 150_000])
def test_whole_answers_have_length_date_and_body(size: int):
    site = Site(echo)
    body = b"x" * size
    seen = site.seen(site.ask(request(), body))
    headers = dict(seen.headers)
    assert headers[b":status"] == b"200"
    assert headers[b"content-length"] == b"%d" % size
    assert headers[b"date"].endswith(b"GMT")
    assert b"connection" not in headers
    assert (bytes(seen.data), seen.ended, seen.closed) == (body, True, NO_ERROR)


def test_head_and_no_content_have_headers_alone():
    site = Site(lambda exchange: exchange.respond(200, [(b"content-length", b"77")], b"not sent"))
    seen = site.seen(site.ask(request(method=b"HEAD")))
    assert (dict(seen.headers)[b"content-length"], bytes(seen.data), seen.ended) == (b"77", b"", True)
    site.handler = lambda exchange: exchange.respond(204, [], b"")
    seen = site.seen(site.ask(request()))
    assert b"content-length" not in dict(seen.headers)
    assert seen.ended


def test_a_streamed_answer_leaves_write_by_write():
    site = Site()
    number = site.ask(request())
    exchange = site.exchanges[0]
    drained: list[int] = []
    exchange.on_drain = drained.append
    exchange.start(200, [(b"content-type", b"text/event-stream")])
    site.link.pump()
    assert dict(site.seen(number).headers)[b"content-type"] == b"text/event-stream"
    for i in range(3):
        exchange.write(b"data: %d\n\n" % i)
        site.link.pump()
        assert site.seen(number).data.endswith(b"data: %d\n\n" % i)
    assert (sum(drained), exchange.queued) == (27, 0)
    exchange.finish()
    site.link.pump()
    assert site.seen(number).closed == NO_ERROR
    assert site.aborted == 0


def test_a_client_that_does_not_read_stops_the_owner():
    site = Site(reads=False, window=None)
    number = site.ask(request())
    exchange = site.exchanges[0]
    drained: list[int] = []
    exchange.on_drain = drained.append
    exchange.start(200, [])
    for _ in range(20):
        exchange.write(b"x" * 10_000)
    site.link.pump()
    assert sum(drained) == 65_535
    assert exchange.queued == 200_000 - 65_535
    while exchange.queued:
        site.link.raw.read(number)
        site.link.pump()
    assert sum(drained) == 200_000
    assert len(site.seen(number).data) == 200_000


@pytest.mark.parametrize("started", [False, True])
def test_a_client_that_resets_is_told_to_the_owner_once(started: bool):
    site = Site()
    number = site.ask(request())
    exchange = site.exchanges[0]
    if started:
        exchange.start(200, [])
        exchange.write(b"x")
    site.link.raw.connection.reset_stream(number, 8)
    site.link.pump()
    assert site.aborted == 1
    exchange.write(b"y")
    exchange.finish()
    exchange.respond(200, [], b"")
    exchange.abort()
    site.link.wire.lose()
    assert site.aborted == 1
    assert site.reasons()["http_client_gone"] == 1


def test_a_lost_connection_is_told_to_every_owner():
    site = Site()
    for _ in range(3):
        site.ask(request())
    site.link.wire.lose()
    assert site.aborted == 3


def test_a_client_that_goes_away_during_upload_leaves_nothing():
    site = Site(echo)
    number = site.ask(request(), b"half", end=False)
    assert len(site.front.uploads) == 1
    site.link.raw.connection.reset_stream(number, 8)
    site.link.pump()
    assert len(site.front.uploads) == 0
    assert (site.exchanges, site.aborted) == ([], 0)


def test_an_abort_is_a_reset():
    site = Site()
    number = site.ask(request())
    exchange = site.exchanges[0]
    exchange.start(200, [])
    exchange.write(b"part")
    site.link.pump()
    exchange.abort()
    site.link.pump()
    assert (site.seen(number).closed, site.seen(number).ended) == (INTERNAL_ERROR, False)
    assert site.aborted == 0


def problem(seen: Seen) -> tuple[int, str]:
    headers = dict(seen.headers)
    assert headers[b"content-type"] == b"application/json"
    assert seen.ended
    return int(headers[b":status"]), json.loads(bytes(seen.data))["error"]["code"]


def test_a_body_over_the_limit_is_refused_by_its_length_or_when_it_gets_there():
    site = Site(echo)
    number = site.ask(request((b"content-length", b"200001")), b"x", end=False)
    assert problem(site.seen(number)) == (413, "body_too_large")
    number = site.ask(request(), b"x" * 250_000, end=False)
    assert problem(site.seen(number)) == (413, "body_too_large")
    assert site.exchanges == []
    assert site.reasons()["http_body_too_large"] == 2
    assert len(site.front.uploads) == 0


def test_a_body_that_pauses_too_long_is_refused():
    site = Site(echo)
    number = site.ask(request(), b"half", end=False)
    site.loop.advance(4)
    site.link.raw.connection.send_data(number, b"more")
    site.link.pump()
    site.loop.advance(4)
    site.link.pump()
    assert number not in site.link.raw.streams
    site.loop.advance(2)
    site.link.pump()
    assert problem(site.seen(number)) == (408, "deadline")


def test_the_largest_body_makes_room_when_all_together_are_too_much():
    site = Site(echo)
    large = site.ask(request(), b"x" * 199_000, end=False)
    rest = [site.ask(request(), b"x" * 190_000, end=False) for _ in range(8)]
    assert problem(site.seen(large)) == (503, "uploads_full")
    assert dict(site.seen(large).headers)[b"retry-after"] == b"1"
    assert site.front.uploads.held == 8 * 190_000
    for number in rest:
        site.link.raw.connection.send_data(number, b"", end_stream=True)
    site.link.pump()
    assert all(len(site.seen(number).data) == 190_000 for number in rest)
    assert site.front.uploads.held == 0
    assert site.reasons()["http_crowded_out"] == 1


def test_who_is_refused_early_may_read_why_before_it_is_told_to_stop():
    site = Site(echo)
    number = site.ask(request(), b"x" * 300_000, end=False)
    seen = site.seen(number)
    assert (problem(seen), seen.ended, seen.closed) == ((413, "body_too_large"), True, None)
    site.link.raw.connection.send_data(number, b"more")
    site.link.pump()
    site.loop.advance(0.9)
    site.link.pump()
    assert seen.closed is None
    site.loop.advance(0.2)
    site.link.pump()
    assert seen.closed == NO_ERROR


@pytest.mark.parametrize("stops", [True, False])
def test_who_stops_by_itself_or_is_done_is_told_nothing(stops: bool):
    site = Site(echo)
    number = site.ask(request(), b"x" * 300_000, end=False)
    connection = site.link.raw.connection
    if stops:
        connection.reset_stream(number, NO_ERROR)
    else:
        connection.send_data(number, b"", end_stream=True)
    site.link.pump()
    assert site.link.protocol.streams == 0
    site.loop.advance(2)
    site.link.pump()
    assert site.exchanges == [] and not site.link.protocol.dead


def test_a_length_that_is_a_lie_is_refused():
    site = Site(echo)
    number = site.ask(request((b"content-length", b"10")), b"short")
    assert site.exchanges == []
    assert site.seen(number).closed != NO_ERROR or problem(site.seen(number))[0] == 400


def test_trailers_end_the_body():
    site = Site(echo)
    number = site.ask(request(), b"body", end=False)
    site.link.raw.connection.send_trailers(number, [(b"x-check", b"1")])
    site.link.pump()
    assert bytes(site.seen(number).data) == b"body"


def test_connect_is_refused():
    site = Site(echo)
    number = site.ask([(b":method", b"CONNECT"), (b":authority", b"a:80")], b"", end=False)
    assert problem(site.seen(number))[0] == 501


def test_a_handler_that_raises_costs_a_500_or_the_answer(caplog: pytest.LogCaptureFixture):
    def early(exchange: HttpExchange) -> None:
        raise RuntimeError("private detail")

    def late(exchange: HttpExchange) -> None:
        exchange.start(200, [])
        raise RuntimeError("private detail")

    site = Site(early)
    seen = site.seen(site.ask(request()))
    assert problem(seen) == (500, "internal")
    assert b"private" not in seen.data
    site.handler = late
    assert site.seen(site.ask(request())).closed == INTERNAL_ERROR
    assert len(caplog.records) == 2


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_an_exchange_that_is_over_lets_go_of_its_owner(end: Callable[[HttpExchange], object]):
    site = Site(owned(end))
    site.ask(request())
    (exchange,) = site.exchanges
    assert exchange.on_abort is None and exchange.on_drain is None
    assert site.aborted == 0
