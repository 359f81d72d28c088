"""The end of a listener: what runs is finished, what crosses it is answered, and its sockets may live on."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from ngh2 import Role

from shared.net.api import CANCEL
from shared.net.http1 import Http1Protocol
from shared.net.server import H2ServerProtocol
from shared.net.sniff import PREFACE
from tests.support.attack import GOAWAY, HEADERS, SETTINGS, frame
from tests.support.garbage import no_collector
from tests.support.h2_rig import REQUEST, Asked, Raw
from tests.support.listener_house import GET, House, house, kinds_of, pool
from tests.support.web import RawClient, until


async def test_close_lets_running_answers_end_and_closes_idle_connections():
    async with house() as (made, listener):
        idle = await RawClient.open(listener.port)
        idle.send(GET)
        await idle.answer()
        silent = await RawClient.open(listener.port)
        made.answers = False
        busy = await RawClient.open(listener.port)
        busy.send(GET)
        await until(lambda: len(made.exchanges) == 2 and listener.connections == 3)
        async with pool(listener.address, made) as upstream:
            asked = Asked()
            upstream.open([pair for pair in REQUEST if pair[0] != b"content-type"], asked, end=True)
            await until(lambda: len(made.exchanges) == 3)
            assert listener.streams == 2

            closing = asyncio.create_task(listener.close(grace=10, last_request=0.01))
            assert await idle.rest() == b""
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await silent.reader.readexactly(1)
            await until(lambda: not upstream.connected)  # GOAWAY
            with pytest.raises(ConnectionError):
                await RawClient.open(listener.port)
            assert not closing.done()

            made.exchanges[1].respond(200, [], b"done")
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            made.exchanges[2].respond(200, [], b"done")
            await until(lambda: asked.closed)
            assert bytes(asked.data) == b"done"
            await asyncio.wait_for(closing, 5)
        assert made.aborted == 0


async def test_close_answers_what_crosses_it_and_says_that_it_was_the_last():
    async with house() as (made, listener):
        idle = await RawClient.open(listener.port)
        idle.send(GET)
        await idle.answer()
        silent = await RawClient.open(listener.port)
        await until(lambda: listener.connections == 2)
        closing = asyncio.create_task(listener.close(grace=10, last_request=10))
        await until(lambda: not listener.sockets)
        for client in (idle, silent):
            client.send(GET)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.rest() == b""
        await asyncio.wait_for(closing, 5)
        assert made.aborted == 0


async def test_a_connection_that_turns_out_to_be_http2_after_the_end_has_begun_is_served_and_told():
    async with house() as (made, listener):
        silent = await RawClient.open(listener.port)
        await until(lambda: listener.connections == 1)
        closing = asyncio.create_task(listener.close(grace=10, last_request=10))
        await until(lambda: not listener.sockets)
        head = b"\x82\x86\x84\x41\x01x"  # GET http / with an authority
        silent.send(PREFACE + frame(SETTINGS) + frame(HEADERS, 0x5, 1, head))
        kinds = kinds_of(await silent.reader.read(-1))
        assert kinds.count(GOAWAY) == 2
        assert HEADERS in kinds
        silent.close()
        await asyncio.wait_for(closing, 5)
        assert len(made.exchanges) == 1


async def test_another_listener_goes_on_with_the_sockets_and_no_connection_is_lost():
    async with house() as (made, first):
        heirs = [socket.socket(fileno=os.dup(sock.fileno())) for sock in first.sockets]
        await first.close()
        waiting = await RawClient.open(first.port)  # nobody accepts: it waits in the backlog
        waiting.send(GET)
        second = made.make(port=first.port, inherited=heirs)
        await second.start()
        assert second.port == first.port and second.sockets == heirs
        assert (await waiting.answer()).status == 200
        waiting.close()
        await second.close()


async def test_inherited_sockets_of_another_address_are_closed():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        made = House()
        listener = made.make(host="127.0.0.1", port=0, inherited=[other])
        await listener.start()
        assert listener.port == other.getsockname()[1]  # port 0 takes the one there is
        await listener.close()
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        listener = made.make(host="127.0.0.1", port=0, inherited=[other])
        await listener.start()
        assert other.fileno() == -1
        await listener.close()


async def test_close_cuts_off_what_does_not_end_in_time():
    async with house() as (made, listener):
        made.answers = False
        async with await RawClient.open(listener.port) as client, pool(listener.address, made) as upstream:
            client.send(GET)
            asked = Asked()
            upstream.open([pair for pair in REQUEST if pair[0] != b"content-type"], asked, end=True)
            await until(lambda: len(made.exchanges) == 2)
            await listener.close(grace=0.05)
            assert listener.connections == 0
            assert made.aborted == 2
            await until(lambda: asked.closed)
            assert asked.closed[0][0] == CANCEL or asked.closed[0][0] > 0


@pytest.mark.parametrize("kind", [Http1Protocol, H2ServerProtocol])
@pytest.mark.parametrize("engine", ["ngh2", "h2"])
async def test_a_connection_that_is_over_leaves_nothing_for_the_collector(kind: type, engine: str):
    if kind is H2ServerProtocol:
        raw = Raw(Role.CLIENT)
        raw.request()
        asks = raw.take()
    else:
        asks = GET

    async with house({"engine": engine}) as (made, listener):
        with no_collector(kind) as left:
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(asks)
                await reader.read(1000)
                writer.close()
                await writer.wait_closed()
            await until(lambda: listener.connections == 0)
            made.exchanges.clear()
            await until(lambda: left() == 0)  # the transport lets go of its own a turn later
