"""HTTP/1.1 connections over real sockets: limits, back-pressure, clients that go away, a graceful end."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.net.api import HttpExchange
from shared.net.http1_response import CONTINUE
from tests.support.http1_site import GET, Bench, echo, post, site
from tests.support.web import RawClient, until


async def test_continue_is_sent_once_and_only_while_the_body_is_awaited():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        client.send(head)
        assert (await client.answer()).status == 100
        client.send(b"ab")
        client.send(b"cd")
        assert (await client.answer()).body == b"abcd"
        client.send(head + b"efgh")
        assert (await client.answer()).body == b"efgh"


async def test_a_body_over_the_limit_is_refused_before_it_is_sent():
    async with site(echo, max_body_bytes=1000) as served, await RawClient.open(served.port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["code"] == "body_too_large"
        assert await client.rest() == b""
        assert not served.exchanges
        assert served.reasons() == {"http_body_too_large": 1}


async def test_a_client_that_goes_on_sending_still_reads_why_it_was_refused():
    async with site(echo, max_body_bytes=1000) as served, await RawClient.open(served.port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            client.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert answer.complete


@pytest.mark.parametrize("bad", [b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"A B C\r\n\r\n"])
async def test_bytes_that_are_no_request_get_one_400_and_the_end(bad: bytes):
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(bad + GET)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert await client.rest() == b""
        assert sum(served.reasons().values()) == 1
        assert not served.exchanges


async def test_a_refused_client_that_stays_is_closed():
    async with site(echo, close_timeout=0.1) as served, await RawClient.open(served.port) as client:
        client.send(b"garbage\r\n\r\n")
        await client.rest()
        await until(lambda: served.open == 0)


def test_a_head_must_be_whole_in_time_however_steadily_it_drips():
    bench = Bench(echo, header_timeout=10)
    for byte in GET[:10]:
        bench.say(bytes((byte,)))
        bench.loop.advance(0.9)
    assert bench.hear() == b""
    bench.loop.advance(1.1)
    heard = bench.hear()
    assert heard.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'"type":"timeout_error"' in heard
    bench.loop.advance(60)
    assert bench.lost
    assert bench.reasons == {"http_header_timeout": 1}


def test_a_body_may_be_slow_but_not_pause():
    bench = Bench(echo, body_timeout=10)
    bench.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
    for _ in range(7):
        bench.loop.advance(9)
        bench.say(b"x")
    bench.loop.advance(9)
    assert bench.hear() == b""
    bench.say(b"x")
    assert bench.hear().startswith(b"HTTP/1.1 200 OK\r\n")
    bench.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
    bench.loop.advance(11)
    assert bench.hear().startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert bench.reasons == {"http_body_timeout": 1}


def test_a_body_may_be_crowded_out_by_others():
    bench = Bench(echo, max_body_bytes=1000)
    bench.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + b"x" * 800)
    assert bench.uploads.held == 800

    class Other:
        def stalled(self) -> None:
            raise AssertionError

        crowded_out = stalled

    others = [Other() for _ in range(10)]
    for other in others:
        bench.uploads.progress(other, 799)
    heard = bench.hear()
    assert heard.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"retry-after: 1\r\n" in heard
    assert bench.uploads.held == 7990
    assert bench.reasons == {"http_crowded_out": 1}


def test_an_idle_connection_is_closed_without_a_word():
    bench = Bench(echo, idle_timeout=300, header_timeout=10)
    for _ in range(3):
        bench.loop.advance(290)
        bench.say(GET)
        assert bench.hear().startswith(b"HTTP/1.1 200 OK\r\n")
    bench.loop.advance(299)
    bench.say(b"\r\n")
    assert not bench.wire.closing
    bench.loop.advance(2)
    assert bench.lost
    assert bench.hear() == b""
    assert bench.reasons == {"http_idle": 1}


def test_a_running_answer_has_no_time_limit():
    bench = Bench(lambda exchange: None, idle_timeout=10, header_timeout=10, body_timeout=10)
    bench.say(GET)
    bench.loop.advance(3600)
    assert not bench.wire.closing
    bench.exchanges[0].respond(200, [], b"late")
    assert bench.hear().endswith(b"late")


@pytest.mark.parametrize("when", ["waiting", "streaming", "reset"])
async def test_a_client_that_goes_away_is_told_to_the_owner_once(when: str):
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET)
        exchange = await served.nth(1)
        if when == "streaming":
            exchange.start(200, [])
            exchange.write(b"x")
            await client.reader.readuntil(b"x\r\n")
        if when == "reset":
            client.writer.transport.abort()
        client.close()
        await until(lambda: served.aborted == 1)
        await until(lambda: served.open == 0)
        exchange.write(b"y")
        exchange.finish()
        exchange.respond(200, [], b"")
        exchange.abort()
        assert served.aborted == 1
        assert served.reasons() == {"http_client_gone": 1}


async def test_a_client_that_goes_away_during_upload_leaves_nothing():
    async with site(echo) as served:
        async with await RawClient.open(served.port) as client:
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b"x" * 1000)
            await until(lambda: served.protocols and not served.protocols[0]._queue.parser.idle)
        await until(lambda: served.open == 0)
        assert not served.exchanges
        assert served.aborted == 0


def pump(total: int, piece: int, high: int) -> Callable[[HttpExchange], None]:
    """A handler that writes while less than ``high`` is queued."""

    def handler(exchange: HttpExchange) -> None:
        left = total

        def more(_: int) -> None:
            nonlocal left
            while left and exchange.queued < high:
                left -= 1
                exchange.write(b"x" * piece)
            if not left:
                exchange.finish()

        exchange.start(200, [])
        exchange.on_drain = more
        more(0)

    return handler


async def test_a_client_that_does_not_read_stops_the_owner_and_loses_nothing():
    drained = 0
    written = 0

    async with site() as served, await RawClient.open(served.port, limit=1 << 16) as client:
        client.send(GET)
        exchange = await served.nth(1)
        exchange.start(200, [])

        def count(n: int) -> None:
            nonlocal drained
            drained += n

        exchange.on_drain = count
        transport = served.protocols[0]._transport
        assert transport is not None
        while exchange.queued < 100_000:
            exchange.write(b"x" * 10_000)
            written += 10_000
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() < (64 << 10) + 20_000
        assert written == drained + exchange.queued
        body = asyncio.create_task(client.answer())
        await until(lambda: exchange.queued == 0)
        assert drained == written
        exchange.finish()
        assert (await body).body == b"x" * written


async def test_a_pump_fed_by_on_drain_delivers_everything():
    async with site(pump(total=2000, piece=8192, high=64 << 10)) as served, await RawClient.open(served.port) as client:
        client.send(GET + GET)
        for _ in range(2):
            answer = await client.answer()
            assert answer.complete
            assert len(answer.body) == 2000 * 8192


async def test_a_client_that_never_reads_is_cut_off_in_the_end():
    async with site(pump(total=10_000, piece=8192, high=64 << 10), stall_timeout=0.2) as served:
        sock = socket.create_connection(("127.0.0.1", served.port))
        with sock:
            sock.sendall(GET)
            await until(lambda: served.aborted == 1)
            assert served.reasons() == {"http_write_stalled": 1, "http_client_gone": 1}


@pytest.mark.parametrize("end", ["go_away", "close_idle"])
async def test_the_end_lets_the_running_answer_end_and_say_that_it_is_the_last(end: str):
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET + GET)
        exchange = await served.nth(1)
        getattr(served.protocols[0], end)()
        assert served.protocols[0].streams == 1
        exchange.respond(200, [], b"done")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert await client.rest() == b""
        assert len(served.exchanges) == 1


async def test_go_away_leaves_one_more_request_to_a_client_that_could_not_know():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET)
        exchange = await served.nth(1)
        exchange.start(200, [])  # says nothing of an end
        served.protocols[0].go_away()
        exchange.write(b"x")
        exchange.finish()
        answer = await client.answer()
        assert (answer.body, answer.complete, answer.headers.get("connection")) == (b"x", True, None)
        client.send(GET)
        (await served.nth(2)).respond(200, [], b"y")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"y", "close")
        assert await client.rest() == b""


async def test_close_idle_lets_a_started_stream_and_an_arriving_request_end():
    async with site() as served:
        async with await RawClient.open(served.port) as client:
            client.send(GET)
            exchange = await served.nth(1)
            exchange.start(200, [])
            served.protocols[0].close_idle()
            exchange.write(b"x")
            exchange.finish()
            answer = await client.answer()
            assert (answer.body, answer.complete) == (b"x", True)
            assert await client.rest() == b""
        async with await RawClient.open(served.port) as client:
            client.send(GET[:10])
            await until(lambda: not served.protocols[1]._queue.empty)
            served.protocols[1].close_idle()
            client.send(GET[10:])
            (await served.nth(2)).respond(200, [], b"")
            assert (await client.answer()).headers["connection"] == "close"


async def test_close_idle_closes_an_idle_connection_at_once():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(GET)
        await client.answer()
        served.protocols[0].close_idle()
        assert await client.rest() == b""
        await until(lambda: served.open == 0)


async def test_a_request_cut_anywhere_gives_the_same_answer():
    request = (
        b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with site(echo) as served, await RawClient.open(served.port) as client:
        for cut in range(1, len(request), 5):
            client.send(request[:cut])
            await asyncio.sleep(0.001)
            client.send(request[cut:])
            answer = await client.answer()
            if answer.status == 100:
                answer = await client.answer()
            assert answer.body == b"abcde"


def talk(chunks: list[bytes]) -> tuple[list[bytes], bool]:
    """What a connection answers to the chunks, but for 100 Continue and dates, and whether it ends."""
    bench = Bench(echo, max_body_bytes=30)
    for chunk in chunks:
        bench.say(chunk)
    lines = bench.hear().replace(CONTINUE, b"").split(b"\r\n")
    return [line for line in lines if not line.startswith(b"date: ")], bench.wire.closing


TALK = st.one_of(
    st.builds(post, st.binary(max_size=40)),
    st.sampled_from(
        [
            GET,
            b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"noise\r\n",
        ]
    ),
)


@given(st.lists(TALK, min_size=1, max_size=6), st.lists(st.integers(0, 500), max_size=20))
def test_a_conversation_does_not_depend_on_how_its_bytes_are_cut(requests: list[bytes], at: list[int]):
    data = b"".join(requests)
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert talk(chunks) == talk([data])
