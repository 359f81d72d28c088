"""Pools over real sockets: dialled ahead, sized by load, mended when a peer leaves, closed within their grace."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.net.api import CANCEL, REFUSED_STREAM, Headers, ServerStream
from shared.net.client import H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.pool import Pool
from shared.net.server import H2ServerProtocol
from shared.net.settings import NetSettings
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Asked, Heard
from tests.support.ports import until

FAST = NetSettings(reconnect_min=0.01, reconnect_max=0.05, connect_timeout=2.0, close_timeout=1.0)


class Peer:
    """A server that answers every ended request, or keeps it when ``holds``."""

    def __init__(self, settings: NetSettings = FAST) -> None:
        self.settings = settings
        self.flusher = Flusher(asyncio.get_running_loop())
        self.conns: list[H2ServerProtocol] = []
        self.accepted = 0
        self.holds = False
        self.held: list[Heard] = []
        self.server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0, path: str | None = None) -> Peer:
        loop = asyncio.get_running_loop()
        if path is not None:
            self.server = await loop.create_unix_server(self.make, path)
        else:
            self.server = await loop.create_server(self.make, "127.0.0.1", port)
            self.port = self.server.sockets[0].getsockname()[1]
        return self

    def make(self) -> asyncio.Protocol:
        conn = H2ServerProtocol(self.accept, self.settings, self.flusher, self.conns.remove)
        self.conns.append(conn)
        self.accepted += 1
        return conn.protocol

    def accept(self, stream: ServerStream, headers: Headers, end: bool) -> Heard:
        heard = Heard(stream, headers, end)
        if self.holds:
            self.held.append(heard)
        else:
            self.answer(heard)
        return heard

    def answer(self, heard: Heard) -> None:
        heard.stream.respond(RESPONSE)
        heard.stream.send(b"answer")
        heard.stream.trailers(TRAILERS)

    def release(self) -> None:
        held, self.held = self.held, []
        for heard in held:
            self.answer(heard)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for conn in list(self.conns):
            conn.close()
        await until(lambda: not self.conns, "the peer's connections are closed")


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    server = await Peer().start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def pool_to(address: str | int, settings: NetSettings = FAST, **more: Any) -> AsyncIterator[Pool]:
    where = f"127.0.0.1:{address}" if isinstance(address, int) else address
    pool = Pool(where, settings, Flusher(asyncio.get_running_loop()), **more)
    pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def ask(pool: Pool) -> Asked:
    asked = Asked()
    asked.stream = pool.open(REQUEST, asked, True)
    assert asked.stream is not None
    return asked


async def closed(asked: Asked) -> tuple[int, bool]:
    await until(lambda: asked.closed, "the stream is closed")
    return asked.closed[0]


async def test_a_call_over_a_connection_that_was_dialled_ahead(peer: Peer):
    states: list[bool] = []
    async with pool_to(peer.port, on_state=states.append) as pool:
        await until(lambda: pool.connected, "connected")
        assert (pool.connections, pool.streams, states) == (1, 0, [True])
        asked = ask(pool)
        assert pool.streams == 1
        assert await closed(asked) == (0, False)
        assert (bytes(asked.data), asked.trailers) == (b"answer", TRAILERS)
        assert pool.counters.connections_dialled == 1
    assert states == [True, False]
    assert pool.open(REQUEST, Asked(), True) is None


async def test_several_connections_share_the_load(peer: Peer):
    peer.holds = True
    async with pool_to(peer.port, dataclasses.replace(FAST, connections=3)) as pool:
        await until(lambda: pool.connections == 3, "three connections")
        owners = [ask(pool) for _ in range(9)]
        await until(lambda: len(peer.held) == 9, "all streams are there")
        assert sorted(conn.streams for conn in peer.conns) == [3, 3, 3]
        peer.release()
        for asked in owners:
            assert await closed(asked) == (0, False)


async def test_a_unix_socket(tmp_path: Path):
    peer = await Peer().start(path=str(tmp_path / "s.sock"))
    async with pool_to(f"unix:{tmp_path}/s.sock") as pool:
        await until(lambda: pool.connected, "connected")
        assert await closed(ask(pool)) == (0, False)
    await peer.stop()


async def test_keepalive_is_left_to_the_kernel_on_a_unix_socket(tmp_path: Path):
    pool = Pool(f"unix:{tmp_path}/s.sock", FAST, Flusher(asyncio.get_running_loop()))
    assert pool.settings.keepalive_time == 0
    assert Pool("h:1", FAST, Flusher(asyncio.get_running_loop())).settings.keepalive_time == FAST.keepalive_time


async def test_a_peer_that_is_not_there_yet_is_found_when_it_comes(peer: Peer):
    port = peer.port
    await peer.stop()
    states: list[bool] = []
    async with pool_to(port, on_state=states.append) as pool:
        await until(lambda: pool.counters.dials_failed >= 3, "three dials failed")
        assert not pool.connected
        assert pool.open(REQUEST, Asked(), True) is None
        assert pool.last_error
        again = await Peer().start(port)
        await until(lambda: pool.connected, "connected")
        assert states == [True]
        assert pool.last_error == ""
        await again.stop()


async def test_a_peer_that_restarts_is_connected_again(peer: Peer):
    states: list[bool] = []
    async with pool_to(peer.port, on_state=states.append) as pool:
        await until(lambda: pool.connected, "connected")
        peer.holds = True
        asked = ask(pool)
        await until(lambda: len(peer.held) == 1, "the stream is there")
        port = peer.port
        await peer.stop()
        assert await closed(asked) == (CANCEL, False)
        await until(lambda: pool.last_error, "a dial has failed")
        assert states == [True, False]
        again = await Peer().start(port)
        await until(lambda: pool.connected, "connected again")
        assert states == [True, False, True]
        assert await closed(ask(pool)) == (0, False)
        await again.stop()


async def test_a_connection_that_gets_goaway_is_replaced_at_once_and_finishes_its_streams(peer: Peer):
    async with pool_to(peer.port) as pool:
        await until(lambda: pool.connected, "connected")
        peer.holds = True
        asked = ask(pool)
        await until(lambda: len(peer.held) == 1, "the stream is there")
        peer.conns[0].go_away()
        await until(lambda: peer.accepted == 2 and pool.connections == 1, "a second connection")
        assert asked.closed == []
        second = ask(pool)
        await until(lambda: len(peer.held) == 2, "the second stream is there")
        assert pool.streams == 2
        peer.release()
        assert await closed(asked) == (0, False)
        assert await closed(second) == (0, False)
        await until(lambda: len(peer.conns) == 1, "the first connection is closed")


async def test_no_call_fails_while_the_peer_sends_goaway_again_and_again(peer: Peer):
    failed: list[tuple[int, bool]] = []
    retried = 0
    async with pool_to(peer.port, dataclasses.replace(FAST, connections=2)) as pool:
        await until(lambda: pool.connections == 2, "connected")

        async def caller() -> None:
            nonlocal retried
            for _ in range(150):
                while True:
                    asked = Asked()
                    asked.stream = pool.open(REQUEST, asked, True)
                    if asked.stream is None:
                        await until(lambda: pool.connected, "connected")
                        continue
                    end = await closed(asked)
                    if end[1]:
                        retried += 1
                        continue
                    if end != (0, False):
                        failed.append(end)
                    break

        async def shaker() -> None:
            for _ in range(20):
                await until(lambda: bool(peer.conns), "a connection")
                peer.conns[0].go_away()
                await asyncio.sleep(0.01)

        await asyncio.gather(*(caller() for _ in range(8)), shaker())
    assert failed == []


def ask_when_leaving(pool: Pool, n: int) -> list[Asked]:
    """Requests made at the very moment at which the last connection has said that it leaves."""
    owners: list[Asked] = []
    real = pool.on_leaving

    def on_leaving(conn: H2ClientProtocol) -> None:
        real(conn)
        assert not pool.connected
        owners.extend(ask(pool) for _ in range(n))

    pool.on_leaving = on_leaving  # type: ignore[method-assign]
    return owners


async def test_requests_between_a_goaway_and_the_next_connection_wait_for_it(peer: Peer):
    told: list[bool] = []
    async with pool_to(peer.port, on_state=told.append) as pool:
        await until(lambda: pool.connected, "connected")
        owners = ask_when_leaving(pool, 20)
        for goaways in range(1, 4):
            peer.conns[-1].go_away()
            await until(lambda n=20 * goaways: len(owners) == n, "asked")  # type: ignore[misc]
            assert [await closed(asked) for asked in owners] == [(0, False)] * 20 * goaways
            assert all(asked.data == b"answer" for asked in owners)
        assert told == [True]
        del pool.on_leaving
    assert told == [True, False]


async def test_a_peer_that_says_goaway_and_is_gone_gives_the_requests_back(peer: Peer):
    told: list[bool] = []
    async with pool_to(peer.port, on_state=told.append) as pool:
        await until(lambda: pool.connected, "connected")
        owners = ask_when_leaving(pool, 3)
        assert peer.server is not None
        peer.server.close()
        peer.conns[0].go_away()
        await until(lambda: owners, "asked")
        assert [await closed(asked) for asked in owners] == [(REFUSED_STREAM, True)] * 3
        assert told == [True, False]
        assert pool.open(REQUEST, Asked(), True) is None
        assert pool.last_error


async def test_a_connection_that_just_breaks_is_not_waited_for(peer: Peer):
    told: list[bool] = []
    async with pool_to(peer.port, on_state=told.append) as pool:
        await until(lambda: pool.connected, "connected")
        refused: list[object] = []
        real = pool.on_leaving

        def on_leaving(conn: H2ClientProtocol) -> None:
            real(conn)
            refused.append(pool.open(REQUEST, Asked(), True))

        pool.on_leaving = on_leaving  # type: ignore[method-assign]
        peer.conns[0].transport.abort()
        await until(lambda: refused, "the connection is lost")
        assert refused == [None]
        assert told[:2] == [True, False]
        del pool.on_leaving


async def test_a_pool_that_is_closed_in_between_gives_the_requests_back(peer: Peer):
    async with pool_to(peer.port, dataclasses.replace(FAST, reconnect_min=5.0, reconnect_max=5.0)) as pool:
        await until(lambda: pool.connected, "connected")
        owners = ask_when_leaving(pool, 3)
        peer.conns[0].go_away()  # so young that the next dial waits
        await until(lambda: owners, "asked")
        await pool.close()
        assert [await closed(asked) for asked in owners] == [(REFUSED_STREAM, True)] * 3


async def test_load_near_the_limit_dials_one_more_and_no_more_than_allowed(peer: Peer):
    peer.holds = True
    async with pool_to(peer.port, dataclasses.replace(FAST, max_streams=4, max_connections=2)) as pool:
        await until(lambda: pool.connected, "connected")
        owners = [ask(pool) for _ in range(4)]
        await until(lambda: pool.connections == 2, "a second connection")
        owners += [ask(pool) for _ in range(4)]
        assert pool.open(REQUEST, Asked(), True) is None
        assert pool.connections == 2
        for asked in owners:
            assert asked.stream is not None
            asked.stream.reset(CANCEL)
        await until(lambda: pool.streams == 0, "all streams are over")


async def test_those_sent_away_are_told_when_there_is_room(peer: Peer):
    peer.holds = True
    told: list[bool] = []
    one = dataclasses.replace(FAST, max_streams=1, max_connections=1)
    async with pool_to(peer.port, one, on_room=lambda: told.append(True)) as pool:
        assert pool.open(REQUEST, Asked(), True) is None
        await until(lambda: told, "told that there is a connection")
        asked = ask(pool)
        assert pool.open(REQUEST, Asked(), True) is None
        assert pool.open(REQUEST, Asked(), True) is None
        assert told == [True]
        await until(lambda: len(peer.held) == 1, "the stream is there")
        peer.release()
        await closed(asked)
        assert told == [True, True]
        await closed_after_release(peer, ask(pool))
        assert told == [True, True]


async def closed_after_release(peer: Peer, asked: Asked) -> None:
    await until(lambda: len(peer.held) == 1, "the stream is there")
    peer.release()
    await closed(asked)


async def test_load_near_what_the_peer_allows_dials_one_more_though_we_would_open_many():
    peer = await Peer(dataclasses.replace(FAST, max_streams=4)).start()
    peer.holds = True
    async with pool_to(peer.port, dataclasses.replace(FAST, max_streams=1000, grow_at=0.75)) as pool:
        await until(lambda: pool.connected, "connected")
        owners = [ask(pool) for _ in range(3)]
        await until(lambda: len(peer.held) == 3, "three streams are there")
        assert peer.accepted == 1
        owners.append(ask(pool))  # beside three, which is three quarters; none is refused for want of room
        await until(lambda: pool.connections == 2, "a second connection")
        await until(lambda: len(peer.held) == 4, "four streams are there")
        peer.release()
        for asked in owners:
            assert await closed(asked) == (0, False)
    await peer.stop()


async def test_surplus_connections_go_when_the_load_has_gone(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shared.net.pool._SURPLUS_AFTER", 0.05)
    peer.holds = True
    async with pool_to(peer.port, dataclasses.replace(FAST, max_streams=4, max_connections=3)) as pool:
        await until(lambda: pool.connected, "connected")
        owners = [ask(pool) for _ in range(4)]
        await until(lambda: pool.connections == 2, "a second connection")
        await until(lambda: len(peer.held) == 4, "the streams are there")
        peer.release()
        for asked in owners:
            await closed(asked)
        await until(lambda: pool.connections == 1 and len(peer.conns) == 1, "one connection is left")
        assert pool.counters.reasons == {"surplus": 1}
        assert await closed_by(peer, pool) == (0, False)


async def closed_by(peer: Peer, pool: Pool) -> tuple[int, bool]:
    peer.holds = False
    return await closed(ask(pool))


async def test_a_peer_that_hangs_up_again_and_again_is_not_hammered(peer: Peer):
    """A peer that takes connections and drops them: the back-off grows."""
    dials = 0

    class Rude(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal dials
            dials += 1
            transport.close()

    server = await asyncio.get_running_loop().create_server(Rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with pool_to(port, dataclasses.replace(FAST, reconnect_min=0.02, reconnect_max=10.0)) as pool:
        await until(lambda: dials >= 3, "it dials")
        before = dials
        await asyncio.sleep(0.2)
        assert dials - before <= 5
        assert not pool.connected
        assert "before it said anything" in pool.last_error
    server.close()


async def test_a_peer_that_says_nothing_is_given_up_in_time():
    taken: list[asyncio.BaseTransport] = []

    class Mute(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(transport)

    server = await asyncio.get_running_loop().create_server(Mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with pool_to(port, dataclasses.replace(FAST, connect_timeout=0.1)) as pool:
        await until(lambda: pool.counters.dials_failed >= 2, "given up twice")
        assert "no answer within 0.1 s" in pool.last_error
    server.close()
    for transport in taken:
        transport.abort()  # type: ignore[attr-defined]


async def test_closing_waits_for_streams_within_its_grace(peer: Peer):
    peer.holds = True
    async with pool_to(peer.port) as pool:
        await until(lambda: pool.connected, "connected")
        asked = ask(pool)
        await until(lambda: len(peer.held) == 1, "the stream is there")
        closing = asyncio.get_running_loop().create_task(pool.close(grace=5.0))
        await until(lambda: not pool.connected, "no new streams")
        assert not closing.done()
        assert pool.open(REQUEST, Asked(), True) is None
        peer.release()
        assert await closed(asked) == (0, False)
        await asyncio.wait_for(closing, 2.0)
        await until(lambda: not peer.conns, "the connection is closed")


async def test_closing_without_grace_cancels_what_runs(peer: Peer):
    peer.holds = True
    async with pool_to(peer.port) as pool:
        await until(lambda: pool.connected, "connected")
        asked = ask(pool)
        await until(lambda: len(peer.held) == 1, "the stream is there")
        await pool.close()
        assert asked.closed == [(CANCEL, False)]
        await until(lambda: peer.held[0].closed, "the peer knows")
    await pool.close()


async def test_a_pool_closed_while_it_dials_leaves_nothing_behind(peer: Peer):
    for _ in range(20):
        pool = Pool(f"127.0.0.1:{peer.port}", FAST, Flusher(asyncio.get_running_loop()))
        pool.start()
        pool.start()
        await asyncio.sleep(0)
        await pool.close()
        pool.start()
    await until(lambda: not peer.conns, "no connection is left")


async def test_back_off_grows_to_its_limit_with_jitter():
    pool = Pool("h:1", dataclasses.replace(FAST, reconnect_min=0.1, reconnect_max=2.0), Flusher())
    for failures, most in ((1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (1000, 2.0)):
        pool._failures = failures
        pauses = [pool._pause() for _ in range(200)]
        assert most / 2 <= min(pauses) and max(pauses) <= most
        assert max(pauses) - min(pauses) > most / 10


async def test_a_connection_whose_window_shrank_is_replaced(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    async with pool_to(peer.port, dataclasses.replace(FAST, keepalive_time=0.2)) as pool:
        await until(lambda: pool.connected, "connected")
        engine = pool._ready[0].engine
        real = type(engine).local_window
        monkeypatch.setattr(type(engine), "local_window", lambda self: 1000 if self is engine else real(self))
        await until(lambda: peer.accepted == 2 and pool.connections == 1, "a new connection")
        assert pool.counters.reasons == {"window_lost": 1}
        assert await closed(ask(pool)) == (0, False)
