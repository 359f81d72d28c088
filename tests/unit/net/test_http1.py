"""HTTP/1.1 connections over real sockets: limits, back-pressure, clients that go away, a graceful end."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.net.api import HttpExchange
from shared.net.flusher import Flusher
from shared.net.http1 import Http1Protocol
from shared.net.http1_response import CONTINUE
from shared.net.settings import NetSettings
from tests.support.http1_site import GET, echo, post, site
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


async def test_time_limits_on_headers_bodies_and_idleness():
    async with site(echo, header_timeout=0.1, body_timeout=0.15, idle_timeout=0.3) as served:
        async with await RawClient.open(served.port) as client:
            client.send(b"GET / HTTP/1.1\r\nHo")
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)["error"]["type"]) == (408, "timeout_error")
        async with await RawClient.open(served.port) as client:
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            assert (await client.answer()).status == 408
        async with await RawClient.open(served.port) as client:
            assert await client.rest() == b""
        async with await RawClient.open(served.port) as client:
            client.send(GET)
            await client.answer()
            assert await client.rest() == b""
        assert served.reasons() == {"http_header_timeout": 1, "http_body_timeout": 1, "http_idle": 2}


async def test_a_slow_but_steady_body_is_no_timeout_and_a_slow_head_is():
    async with site(echo, header_timeout=0.2, body_timeout=0.2) as served:
        async with await RawClient.open(served.port) as client:
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
            for _ in range(8):
                await asyncio.sleep(0.06)
                client.send(b"x")
            assert (await client.answer()).body == b"x" * 8
        async with await RawClient.open(served.port) as client:
            slow = asyncio.create_task(client.answer())
            for byte in b"GET / HTTP/1.1":
                if slow.done():
                    break
                client.send(bytes((byte,)))
                await asyncio.sleep(0.04)
            assert (await slow).status == 408


async def test_a_running_answer_has_no_time_limit():
    async with (
        site(idle_timeout=0.05, header_timeout=0.05, body_timeout=0.05) as served,
        await RawClient.open(served.port) as client,
    ):
        client.send(GET)
        exchange = await served.nth(1)
        await asyncio.sleep(0.2)
        exchange.respond(200, [], b"late")
        assert (await client.answer()).body == b"late"


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


async def test_go_away_lets_the_running_answer_end():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET + GET)
        exchange = await served.nth(1)
        served.protocols[0].go_away()
        assert served.protocols[0].streams == 1
        exchange.respond(200, [], b"done")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert await client.rest() == b""
        assert len(served.exchanges) == 1


async def test_go_away_lets_a_started_stream_and_an_arriving_request_end():
    async with site() as served:
        async with await RawClient.open(served.port) as client:
            client.send(GET)
            exchange = await served.nth(1)
            exchange.start(200, [])
            served.protocols[0].go_away()
            exchange.write(b"x")
            exchange.finish()
            answer = await client.answer()
            assert (answer.body, answer.complete) == (b"x", True)
            assert await client.rest() == b""
        async with await RawClient.open(served.port) as client:
            client.send(GET[:10])
            await until(lambda: not served.protocols[1]._queue.empty)
            served.protocols[1].go_away()
            client.send(GET[10:])
            (await served.nth(2)).respond(200, [], b"")
            assert (await client.answer()).headers["connection"] == "close"


async def test_go_away_closes_an_idle_connection_at_once():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(GET)
        await client.answer()
        served.protocols[0].go_away()
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


class MemoryTransport:
    """Keeps what is written, and whether the connection was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None:
        """Nothing follows."""

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Never full."""


def talk(chunks: list[bytes]) -> tuple[list[bytes], bool]:
    """What a connection answers to the chunks, but for 100 Continue and dates, and whether it ends."""
    loop = asyncio.new_event_loop()
    try:
        transport = MemoryTransport()
        flusher = Flusher(loop)
        protocol = Http1Protocol(echo, replace(NetSettings(), max_body_bytes=30), flusher)
        protocol.connection_made(cast(asyncio.Transport, transport))
        for chunk in chunks:
            protocol.data_received(chunk)
        protocol.connection_lost(None)
        lines = transport.written.replace(CONTINUE, b"").split(b"\r\n")
        return [line for line in lines if not line.startswith(b"date: ")], bool(flusher.counters.reasons)
    finally:
        loop.close()


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
