"""Readers and nodes that stop, through a relay, in clear and over TLS: little is held, and nobody else waits."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtest.splice_relay import SpliceRelay
from shared.config.schema import TlsConfig
from shared.net.api import Headers, HttpExchange, ServerSink, ServerStream
from shared.net.flusher import Flusher
from shared.net.listener import Listener
from shared.net.pool import Pool
from shared.net.settings import NetSettings
from shared.net.tls import client_context, server_context
from tests.support.certs import Authority
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Asked
from tests.support.ports import until

MIB = 1 << 20
STALLED = 40
# A window at the client, one at the relay, and what either transport may hold.
HELD = 2 * (64 << 10) + 2 * (128 << 10)


class Bulk(ServerSink):
    """Answers with so many MiB, as fast as they are taken; counts what has left and what has come."""

    def __init__(self, stream: ServerStream, left: int, takes: bool) -> None:
        self.stream = stream
        self.left = left
        self.takes = takes
        self.sent = 0
        self.got = 0
        self.ended = False

    def begin(self) -> None:
        self.stream.respond(RESPONSE)
        self.more()

    def more(self) -> None:
        if self.left:
            self.left -= 1
            self.stream.send(bytes(MIB))
        else:
            self.stream.trailers(TRAILERS)

    def on_data(self, data: bytes, end: bool) -> None:
        self.got += len(data)
        if self.takes:
            self.stream.consumed(len(data))
        if end:
            self.ended = True
            self.begin()

    def on_trailers(self, headers: Headers) -> None:
        self.on_data(b"", True)

    def on_sent(self, n: int) -> None:
        self.sent += n
        if not self.stream.queued:
            self.more()

    def on_closed(self, code: int) -> None:
        pass


@dataclass
class House:
    """A server of bulk answers, a relay in front of it, and a client of the relay."""

    relay: SpliceRelay
    pool: Pool
    served: list[Bulk] = field(default_factory=list)
    size: int = 64  # MiB of an answer
    takes: bool = True

    def ask(self, takes: bool, body: int = 0) -> Asked:
        asked = Asked(takes)
        asked.stream = self.pool.open(REQUEST, asked)
        assert asked.stream is not None
        for _ in range(body):
            asked.stream.send(bytes(MIB))
        asked.stream.send(b"", end=True)
        return asked


@pytest.fixture(params=["ngh2", "h2"])
async def settings(request: pytest.FixtureRequest) -> NetSettings:
    return NetSettings(engine=request.param)


@pytest.fixture(params=["clear", "tls"])
async def house(request: pytest.FixtureRequest, settings: NetSettings, tmp_path: Path) -> AsyncIterator[House]:
    flusher = Flusher()
    houses: list[House] = []

    def accept(stream: ServerStream, headers: Headers, end: bool) -> ServerSink:
        made = houses[0]
        made.served.append(Bulk(stream, made.size, made.takes))
        return made.served[-1]

    def refuse(exchange: HttpExchange) -> None:
        exchange.respond(415, [], b"")

    theirs: ssl.SSLContext | None = None
    ours: ssl.SSLContext | None = None
    if request.param == "tls":
        authority = Authority(tmp_path)
        pair = authority.pair("relay")
        theirs = server_context(TlsConfig(cert_file=pair.cert, key_file=pair.key))
        ours = client_context(TlsConfig(ca_file=authority.file))
    bulk = Listener(accept, refuse, settings, flusher)
    await bulk.start()
    try:
        async with SpliceRelay(bulk.address, settings, theirs) as relay:
            pool = Pool(relay.address, settings, flusher, tls=ours)
            houses.append(House(relay, pool))
            pool.start()
            await until(lambda: pool.connected, "the client is connected")
            yield houses[0]
            await pool.close()
    finally:
        await bulk.close()


async def at_rest(house: House, count: int) -> None:
    """Until nothing has moved for a while."""
    seen = (-1, -1)

    def still() -> bool:
        nonlocal seen
        now = (sum(one.sent for one in house.served), sum(one.got for one in house.served))
        same, seen = now == seen, now
        return same and len(house.served) == count

    for _ in range(20):
        await until(still, "traffic has come to rest")


async def test_clients_that_do_not_read_stop_their_node_and_nobody_else(house: House):
    stalled = [house.ask(takes=False) for _ in range(STALLED)]
    await at_rest(house, STALLED)
    assert all(len(asked.data) <= 64 << 10 for asked in stalled)
    assert all(one.sent <= HELD for one in house.served), max(one.sent for one in house.served)
    house.size = 8
    quick = house.ask(takes=True)
    await until(lambda: quick.closed, "the other's answer is whole")
    assert (len(quick.data), quick.trailers) == (8 * MIB, TRAILERS)
    assert not any(asked.closed for asked in stalled)


async def test_a_node_that_does_not_take_uploads_stops_their_clients_and_nobody_else(house: House):
    house.takes = False
    stalled = [house.ask(takes=True, body=8) for _ in range(STALLED)]
    await at_rest(house, STALLED)
    assert all(one.got <= 64 << 10 for one in house.served)
    assert all(asked.sent <= HELD for asked in stalled), max(asked.sent for asked in stalled)
    house.takes, house.size = True, 1
    quick = house.ask(takes=True, body=8)
    await until(lambda: quick.closed, "the other's upload is taken")
    assert house.served[-1].got == 8 * MIB
    assert not any(asked.closed for asked in stalled)
