"""Random two-way traffic through a relay of the network layer: every byte is checked, and every window at the end.

A client writes random lumps on many streams at once and pauses at random; a server sends each byte back, also at its
own pace; some calls are cancelled in the middle. Nothing may be lost, and no connection's window may shrink for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Final

from loadtest.splice_relay import SpliceRelay
from shared.net.api import CANCEL, ClientSink, ClientStream, Headers, HttpExchange, ServerSink, ServerStream
from shared.net.conn import H2Connection
from shared.net.flusher import Flusher
from shared.net.listener import Listener
from shared.net.pool import Pool
from shared.net.settings import NetSettings

_STALL_LIMIT: Final = 30.0  # seconds without a byte anywhere
_REQUEST: Headers = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/t.T/Echo"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
_LUMPS: Final = (1, 100, 1000, 9000, 16_384, 50_000)
_NOISE: Final = random.Random(0).randbytes(1 << 20)


class TrafficError(Exception):
    """Bytes or window were lost: one sentence."""


@dataclass(slots=True)
class Tally:
    """What has passed: ``sent`` and ``back`` in bytes, and how calls ended."""

    sent: int = 0
    back: int = 0
    whole: int = 0
    cancelled: int = 0


class _Echo(ServerSink):
    """Sends back what it gets; takes a lump only once the one before has left, and now and then waits first."""

    __slots__ = ("_ended", "_held", "_loop", "_pick", "_stream", "_waiting")

    def __init__(self, stream: ServerStream, pick: random.Random, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._pick = pick
        self._loop = loop
        self._held = bytearray()
        self._ended = False
        self._waiting = False
        stream.respond([(b":status", b"200"), (b"content-type", b"application/grpc")])

    def on_data(self, data: bytes, end: bool) -> None:
        self._held += data
        self._ended = self._ended or end
        if not self._waiting:
            if self._pick.random() < 0.05:
                self._waiting = True
                self._loop.call_later(self._pick.random() * 0.01, self._wake)
            else:
                self._go_on()

    def on_trailers(self, headers: Headers) -> None:
        self.on_data(b"", True)

    def on_sent(self, n: int) -> None:
        self._stream.consumed(n)

    def on_closed(self, code: int) -> None:
        self._held.clear()

    def _wake(self) -> None:
        self._waiting = False
        self._go_on()

    def _go_on(self) -> None:
        if self._stream.closed:
            return
        if self._held:
            self._stream.send(bytes(self._held))
            self._held.clear()
        if self._ended:
            self._stream.trailers([(b"grpc-status", b"0")])


class _Call(ClientSink):
    """One call: what was sent must come back, in order and whole, unless it is cancelled."""

    __slots__ = ("_got", "_heard", "_room", "_sent", "_tally", "code", "done", "stream")

    def __init__(self, tally: Tally) -> None:
        self.stream: ClientStream | None = None
        self.done = asyncio.Event()
        self.code = -1
        self._tally = tally
        self._sent = hashlib.blake2b()
        self._heard = hashlib.blake2b()
        self._got = 0
        self._room = asyncio.Event()

    @property
    def matches(self) -> bool:
        """Whether everything came back."""
        return self.code == 0 and self._sent.digest() == self._heard.digest()

    def write(self, data: bytes) -> None:
        """Send and remember."""
        assert self.stream is not None
        self._sent.update(data)
        self._tally.sent += len(data)
        self._room.clear()
        self.stream.send(data)

    async def room(self) -> None:
        """Wait until what was sent has left, or the call is over."""
        while self.stream is not None and self.stream.queued and not self.done.is_set():
            await self._room.wait()
            self._room.clear()

    def on_response(self, headers: Headers, end: bool) -> None:
        pass

    def on_response_data(self, data: bytes, end: bool) -> None:
        self._heard.update(data)
        self._got += len(data)
        self._tally.back += len(data)
        if self.stream is not None:
            self.stream.consumed(len(data))

    def on_response_trailers(self, headers: Headers) -> None:
        pass

    def on_request_sent(self, n: int) -> None:
        self._room.set()

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        self.code = code
        self._room.set()
        self.done.set()


async def _one_call(pool: Pool, pick: random.Random, tally: Tally) -> None:
    call = _Call(tally)
    call.stream = pool.open(_REQUEST, call)
    if call.stream is None:
        raise TrafficError("a stream could not be opened")
    cancel_at = pick.randrange(1, 20) if pick.random() < 0.2 else 0
    for lump in range(1, pick.randrange(2, 30)):
        size = pick.choice(_LUMPS)
        at = pick.randrange(len(_NOISE) - size)
        call.write(_NOISE[at : at + size])
        if pick.random() < 0.3:
            await call.room()
        if lump == cancel_at:
            call.stream.reset(CANCEL)
            await call.done.wait()
            tally.cancelled += 1
            return
    call.stream.send(b"", end=True)
    await call.done.wait()
    if not call.matches:
        raise TrafficError(f"a call ended with HTTP/2 code {call.code}, or with other bytes than were sent")
    tally.whole += 1


async def run_traffic(size: int, *, settings: NetSettings, streams: int = 32, seed: int = 0) -> Tally:
    """Echo about ``size`` bytes through a relay on ``streams`` streams at a time. Raises TrafficError."""
    loop = asyncio.get_running_loop()
    pick = random.Random(seed)
    flusher = Flusher(loop)
    tally = Tally()

    def accept(stream: ServerStream, headers: Headers, end: bool) -> ServerSink:
        return _Echo(stream, random.Random(pick.random()), loop)

    echo = Listener(accept, _no_http, settings, flusher)
    await echo.start()
    try:
        async with SpliceRelay(echo.address, settings) as relay:
            up = asyncio.Event()
            pool = Pool(relay.address, settings, flusher, on_state=lambda _: up.set())
            pool.start()
            try:
                async with asyncio.timeout(_STALL_LIMIT):
                    await up.wait()
                await _load(pool, pick, tally, size, streams)
                owners = (echo, relay.listener, relay.pool, pool)
                await _check_windows([conn for owner in owners for conn in _connections(owner)], settings)
            finally:
                await pool.close()
    finally:
        await echo.close()
    return tally


async def _load(pool: Pool, pick: random.Random, tally: Tally, size: int, streams: int) -> None:
    async def work(own: random.Random) -> None:
        while tally.back < size:
            await _one_call(pool, own, tally)

    async def watch() -> None:
        seen = -1
        while seen != tally.back + tally.sent:
            seen = tally.back + tally.sent
            await asyncio.sleep(_STALL_LIMIT)
        raise TrafficError(f"nothing has moved for {_STALL_LIMIT:g} s")

    watcher = asyncio.create_task(watch())
    workers = [asyncio.create_task(work(random.Random(pick.random()))) for _ in range(streams)]
    pending: set[asyncio.Task[None]] = {watcher, *workers}
    try:
        while pending != {watcher}:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (watcher, *workers):
            task.cancel()
        await asyncio.gather(watcher, *workers, return_exceptions=True)


def _connections(owner: Listener | Pool) -> list[H2Connection]:
    """The HTTP/2 connections that a listener serves, or a pool has ready."""
    held = owner._served if isinstance(owner, Listener) else owner._ready
    return [conn for conn in held if isinstance(conn, H2Connection)]


async def _check_windows(conns: list[H2Connection], settings: NetSettings) -> None:
    """With no stream left, what is missing of a window is only what its engine has yet to announce: under half."""
    if len(conns) < 4:
        raise TrafficError(f"of four connections only {len(conns)} are left")
    for conn in conns:
        for _ in range(200):
            if not conn.table:
                break
            await asyncio.sleep(0.01)
        if conn.table or conn.window_left() < settings.connection_window // 2 or conn.engine.queued():
            raise TrafficError(
                f"a connection has {len(conn.table)} streams and a window of {conn.window_left()} bytes left at rest"
            )


def _no_http(exchange: HttpExchange) -> None:
    exchange.respond(415, [], b"")
