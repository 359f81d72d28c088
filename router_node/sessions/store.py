"""Pins in the store: written behind the requests, told to the other routers, and found again after a restart.

``laya:{cluster}:pins:{slice of time}`` is a hash from a session's hash to its node; it expires with its pins, and a pin
that is renewed goes into the hash of its day. ``laya:{cluster}:pins:log`` is a stream of what was written, so that
routers hear of it at once. No request waits for any of it: a pin is *acknowledged* once it is as safe as the mode asks.

* ``hybrid``: written to the store.
* ``persistent``: written, and with replicas held by one of them (``WAIT 1``), by a store that keeps an append-only file
  synced at each write. A store that does not is named in the log and in ``trouble``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router_node.discovery.backoff import Backoff
from router_node.sessions.pins import MAX_TOKENS, Backlog, Pin
from shared.config.loader import redact_url
from shared.logging import event, get
from shared.store import connect
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = get("sessions.store")

TTL: Final = 3600.0  # seconds that a pin lives without being used
SLICES: Final = 4  # hashes of one time to live
GATHER: Final = 0.01  # seconds in which pins become one write
BATCH: Final = 1000  # pins of one write
BLOCK: Final = 1.0  # seconds that a read waits in the store
ASK_AGAIN: Final = 10.0  # seconds until a store is asked anew whether it keeps the mode's promise
_LOG_LENGTH: Final = 2000  # writes, about
_WAIT_MS: Final = 500
_SCAN: Final = 1000  # pins of one step of a read

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[int, str, int]]).decode


class PinStore:
    """``take`` is given what others wrote. ``durable`` is the persistent mode. ``limit`` bounds what waits and is read.

    ``name`` is this router's own, by which it knows its own writes again.
    """

    def __init__(
        self,
        url: str,
        cluster: str,
        name: str,
        take: Callable[[Sequence[Pin]], None],
        *,
        limit: int,
        durable: bool = False,
        op_timeout: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.acknowledged = 0
        """Pins that are as safe as the mode asks."""
        self.up = False
        self.trouble = ""
        """What keeps the mode's promise from being kept, one sentence, or ""."""
        self.backlog = Backlog(limit)
        self._url = url
        self._base = f"laya:{cluster}:pins"
        self._name = name.encode()
        self._take = take
        self._limit = limit
        self._durable = durable
        self._op_timeout = op_timeout
        self._clock = clock
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def offer(self, pin: Pin) -> None:
        """A pin to write, soon; a newer one of the same session takes its place."""
        self.backlog.add(pin)
        self._news.set()

    async def start(self) -> None:
        """Begin; returns without waiting for the store."""
        import redis.asyncio  # noqa: F401 - slow to load: now, rather than while clients are there

        self._tasks = [
            asyncio.create_task(self._keep(self._write), name="pins-write"),
            asyncio.create_task(self._keep(self._follow), name="pins-follow"),
        ]

    async def close(self) -> None:
        """Write what is left, within a moment, and stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.up and len(self.backlog):  # noqa: ASYNC110 - the last moments of a process
                    await asyncio.sleep(GATHER)
        await cancel_all(self._tasks)

    async def _keep(self, work: Callable[[Redis, Backoff], Any]) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            client = connect(self._url, timeout=self._op_timeout, connections=2, name="laya-sessions")
            try:
                await work(client, backoff)
            except Exception as error:
                self._lost(error)
            finally:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(0.5):
                        await client.aclose()
            await asyncio.sleep(backoff.next())

    # Writing

    async def _write(self, client: Redis, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        replicas = await self._promises(client) if self._durable else 0
        asked = loop.time()
        self._found()
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER)
            if self._durable and loop.time() - asked > ASK_AGAIN:
                replicas = await self._promises(client)  # one may have come, or somebody changed a setting
                asked = loop.time()
            pins = self.backlog.some(BATCH)
            if not len(self.backlog):
                self._news.clear()
            if not pins:
                continue
            try:
                await self._put(client, pins, replicas)
            except BaseException:
                self.backlog.give_back(pins)
                self._news.set()
                raise
            self.acknowledged += len(pins)
            backoff.reset()

    async def _put(self, client: Redis, pins: Sequence[Pin], replicas: int) -> None:
        key = self._slice(self._clock())
        ask = client.pipeline(transaction=True)
        ask.hset(key, mapping={_field(pin.key): f"{pin.tokens} {pin.node_id}" for pin in pins})
        ask.expire(key, int(TTL * (1 + 1 / SLICES)) + 1)
        entry: dict[Any, Any] = {"by": self._name, "pins": _encode([tuple(pin) for pin in pins])}
        ask.xadd(f"{self._base}:log", entry, maxlen=_LOG_LENGTH, approximate=True)
        async with asyncio.timeout(self._op_timeout * 2):
            await ask.execute()
            if replicas and await client.wait(1, _WAIT_MS) < 1:
                raise TimeoutError("no replica has confirmed the sessions in time")

    async def _promises(self, client: Redis) -> int:
        """How many replicas there are; notes what the store does not do for the mode, or does not let us see."""
        from redis.exceptions import ResponseError

        try:
            async with asyncio.timeout(self._op_timeout * 2):
                info: Any = await client.info("replication")
                found: Any = await client.config_get("append*")
        except ResponseError:  # a user without the right to ask
            self._warn("whether sessions are durable is not known: the store's user may not call INFO and CONFIG GET")
            return 0
        settings = {_text(name): _text(value) for name, value in found.items()}
        if settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always":
            self.trouble = ""
        else:
            self._warn("sessions are not durable: the store needs appendonly yes and appendfsync always")
        return int(info.get("connected_slaves", 0))

    def _warn(self, trouble: str) -> None:
        trouble += " (router.mode: persistent)"
        if trouble != self.trouble:
            event(log, logging.WARNING, "sessions_not_durable", detail=trouble)
        self.trouble = trouble

    # Following

    async def _follow(self, client: Redis, backoff: Backoff) -> None:
        stream = f"{self._base}:log"
        async with asyncio.timeout(self._op_timeout):
            newest: Any = await client.xrevrange(stream, count=1)
        last = newest[0][0] if newest else "0-0"
        await self._read_all(client)
        self._found()
        backoff.reset()
        while True:
            async with asyncio.timeout(BLOCK + self._op_timeout):
                found: Any = await client.xread({stream: last}, count=64, block=int(BLOCK * 1000))
            for _, entries in found or ():
                for entry, fields in entries:
                    last = entry
                    if fields.get(b"by") != self._name:
                        self._hear(fields.get(b"pins", b""))

    def _hear(self, raw: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):  # not of our making
            self._take([Pin(key & _KEY, node, tokens) for key, node, tokens in _decode(raw)])

    async def _read_all(self, client: Redis) -> None:
        """Everything that lives, the oldest slice first, at most ``limit`` pins of it."""
        now, span = self._clock(), TTL / SLICES
        left = self._limit
        for age in range(SLICES, -1, -1):
            key, at = self._slice(now - age * span), 0
            while left > 0:
                async with asyncio.timeout(self._op_timeout):
                    answer: Any = await client.hscan(key, at, count=_SCAN)
                at, found = int(answer[0]), answer[1]
                pins = [pin for field, value in found.items() if (pin := _pin(field, value)) is not None]
                left -= len(pins)
                self._take(pins)
                if at == 0:
                    break

    def _slice(self, now: float) -> str:
        return f"{self._base}:{int(now / (TTL / SLICES))}"

    # State

    def _found(self) -> None:
        if not self.up:
            self.up = True
            event(log, logging.INFO, "sessions_store_up", store=redact_url(self._url))

    def _lost(self, error: BaseException) -> None:
        if self.up:
            said = redact_url(str(error))[:200] or type(error).__name__
            event(log, logging.WARNING, "sessions_store_down", detail=said, effect="sessions stay where they are known")
        self.up = False


_KEY: Final = (1 << 64) - 1


def _field(key: int) -> bytes:
    return struct.pack(">Q", key & _KEY)


def _pin(field: bytes, value: bytes) -> Pin | None:
    """A pin from a hash's field, None for what is not of our making."""
    tokens, _, node = value.partition(b" ")
    if len(field) != 8 or not tokens.isdigit() or len(tokens) > 10 or not 0 < len(node) <= 128:
        return None
    return Pin(struct.unpack(">Q", field)[0], node.decode("utf-8", "replace"), min(int(tokens), MAX_TOKENS))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
