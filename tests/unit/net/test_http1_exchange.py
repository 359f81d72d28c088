"""How answers are framed, and what becomes of the connection after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shared.net.api import HttpExchange
from tests.support.fake_http import ENDS, owned
from tests.support.http1_site import GET, Bench, echo, post, site
from tests.support.web import RawClient, until

SSE = [(b"content-type", b"text/event-stream")]


async def test_a_connection_serves_requests_one_after_the_other():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        for body in (b"", b"one", b"x" * 100_000):
            client.send(post(body))
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, body)
            assert answer.headers["content-length"] == str(len(body))
            assert "connection" not in answer.headers
            assert answer.headers["date"].endswith("GMT")
        assert len(served.protocols) == 1
        assert served.exchanges[0].peer.startswith("127.0.0.1:")


async def test_http_1_0_closes_unless_asked_to_keep_alive():
    async with site(echo) as served:
        async with await RawClient.open(served.port) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.rest() == b""
        async with await RawClient.open(served.port) as client:
            for _ in range(2):
                client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert (await client.answer()).headers["connection"] == "keep-alive"


async def test_connection_close_is_honoured_and_said():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.rest() == b""
        assert len(served.exchanges) == 1


async def test_a_streamed_answer_is_chunked_and_each_write_is_sent_at_once():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET)
        exchange = await served.nth(1)
        exchange.start(200, SSE)
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked\r\n" in head
        for i in range(5):
            exchange.write(b"data: %d\n\n" % i)
            assert await client.reader.readuntil(b"\n\n\r\n") == b"9\r\ndata: %d\n\n\r\n" % i
        exchange.finish()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        client.send(GET)
        (await served.nth(2)).respond(200, [], b"next")
        assert (await client.answer()).body == b"next"


async def test_writes_of_one_batch_leave_in_one_write():
    written: list[bytes] = []

    def handler(exchange: HttpExchange) -> None:
        exchange.start(200, SSE)
        for i in range(3):
            exchange.write(b"%d" % i)
        exchange.finish()

    class Spy:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            written.append(data)
            self._transport.write(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self._transport, name)

    async with site(handler) as served, await RawClient.open(served.port) as client:
        await until(lambda: served.protocols and served.protocols[0]._transport)
        served.protocols[0]._transport = Spy(served.protocols[0]._transport)  # type: ignore[assignment, arg-type]
        client.send(GET)
        assert (await client.answer()).body == b"012"
    assert len(written) == 1


async def test_a_streamed_answer_to_http_1_0_ends_with_the_connection():
    def handler(exchange: HttpExchange) -> None:
        exchange.start(200, [])
        exchange.write(b"abc")
        exchange.finish()

    async with site(handler) as served, await RawClient.open(served.port) as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.answer()
        assert "transfer-encoding" not in answer.headers
        assert (answer.headers["connection"], answer.body) == ("close", b"abc")


async def test_head_has_the_length_and_no_body():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(b"HEAD /h HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
        assert (await client.answer(head=True)).headers["content-length"] == "3"
        served.handler = lambda exchange: exchange.respond(200, [(b"content-length", b"77")], b"")
        client.send(b"HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer(head=True)).headers["content-length"] == "77"

        def streamed(exchange: HttpExchange) -> None:
            exchange.start(200, [])
            exchange.write(b"not sent")
            exchange.finish()

        served.handler = streamed
        client.send(b"HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await client.answer(head=True)
        assert (await client.answer()).body == b"not sent"


async def test_answers_without_content_have_no_length():
    async with (
        site(lambda exchange: exchange.respond(204, [], b"")) as served,
        await RawClient.open(served.port) as client,
    ):
        client.send(GET + GET)
        for _ in range(2):
            answer = await client.answer()
            assert answer.status == 204
            assert not {"content-length", "transfer-encoding"} & answer.headers.keys()


async def test_an_owners_headers_cannot_break_the_answer():
    bad = [(b"x", b"1\r\ny: 2"), (b"a\nb", b"1"), (b"connection", b"x"), (b"content-length", b"9"), (b"ok", b"1")]
    async with (
        site(lambda exchange: exchange.respond(200, bad, b"body")) as served,
        await RawClient.open(served.port) as client,
    ):
        client.send(GET)
        answer = await client.answer()
        assert answer.headers.keys() == {"date", "content-length", "ok"}
        assert answer.body == b"body"


async def test_aborts_are_visible_as_incomplete_answers():
    def cut(exchange: HttpExchange) -> None:
        exchange.start(200, [])
        exchange.write(b"part")
        asyncio.get_running_loop().call_later(0.05, exchange.abort)

    async with site(cut) as served:
        async with await RawClient.open(served.port) as client:
            client.send(GET)
            answer = await client.answer()
            assert (answer.body, answer.complete) == (b"part", False)
        async with await RawClient.open(served.port) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert not (await client.answer()).complete
        served.handler = lambda exchange: exchange.abort()
        async with await RawClient.open(served.port) as client:
            client.send(GET)
            assert await client.rest() == b""
        assert served.aborted == 0


async def test_a_handler_that_raises_costs_a_500_or_the_answer(caplog: pytest.LogCaptureFixture):
    def early(exchange: HttpExchange) -> None:
        raise RuntimeError("private detail")

    def late(exchange: HttpExchange) -> None:
        exchange.start(200, [])
        raise RuntimeError("private detail")

    async with site(early) as served, await RawClient.open(served.port) as client:
        client.send(GET)
        answer = await client.answer()
        assert answer.status == 500
        assert b"private" not in answer.body
        served.handler = late
        client.send(GET)
        assert not (await client.answer()).complete
    assert len(caplog.records) == 2


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_an_exchange_that_is_over_lets_go_of_its_owner(end: Callable[[HttpExchange], object]):
    bench = Bench(owned(end))
    bench.say(GET)
    (exchange,) = bench.exchanges
    assert exchange.on_abort is None and exchange.on_drain is None
