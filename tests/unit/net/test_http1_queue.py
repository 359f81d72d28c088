"""Requests that a client sends ahead of their turn."""

from __future__ import annotations

import asyncio

from tests.support.http1_site import GET, echo, post, site
from tests.support.web import RawClient


async def test_pipelined_requests_are_answered_in_order_one_at_a_time():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(b"".join(post(b"%d" % i) for i in range(40)))
        for i in range(40):
            exchange = await served.nth(i + 1)
            assert len(served.exchanges) == i + 1
            exchange.respond(200, [], b"answer to " + exchange.body)
        for i in range(40):
            assert (await client.answer()).body == b"answer to %d" % i


async def test_pipelined_answers_that_are_ready_leave_together():
    async with site(echo) as served, await RawClient.open(served.port) as client:
        client.send(post(b"a") * 1000)
        for _ in range(1000):
            assert (await client.answer()).body == b"a"
        assert len(served.exchanges) == 1000


async def test_a_client_that_sends_far_ahead_is_not_read():
    async with site() as served, await RawClient.open(served.port) as client:
        await asyncio.sleep(0)
        client.send(GET)
        first = await served.nth(1)
        ahead = post(b"x" * 1000) * 20_000  # 21 MB
        client.send(ahead)
        transport = client.writer.transport
        last = -1
        while last != (last := transport.get_write_buffer_size()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert last > 8 << 20  # the rest is in the kernel's buffers, and at most 320 KiB with us
        served.handler = echo
        first.respond(200, [], b"")
        for _ in range(20_001):
            assert (await client.answer()).status == 200


async def test_a_refusal_comes_after_the_answers_that_are_owed():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET + b"garbage\r\n\r\n")
        (await served.nth(1)).respond(200, [], b"first")
        assert (await client.answer()).body == b"first"
        assert (await client.answer()).status == 400


async def test_continue_waits_for_the_answer_before_it():
    async with site() as served, await RawClient.open(served.port) as client:
        client.send(GET + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        first = await served.nth(1)
        first.start(200, [])
        first.write(b"one")
        first.finish()
        assert (await client.answer()).body == b"one"
        assert (await client.answer()).status == 100
