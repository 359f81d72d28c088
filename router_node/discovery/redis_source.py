"""Nodes that registered themselves in Redis.

Two tasks with a connection each. One reads the whole view every ``interval`` (with jitter): that is the truth. The
other listens for "look now" messages, and only makes the first one hurry; a message carries no data, so it cannot
lie. Every call has a deadline, an idle subscription must answer a PING in time (a half-open socket never does), and
whatever fails drops its connection and is tried again with back-off. A failed read publishes nothing, so a router
goes on with what it knew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from router_node.discovery import registration
from router_node.discovery.address import is_loopback, split_address
from router_node.discovery.backoff import Backoff
from router_node.discovery.base import Candidate, Publish, Snapshot, Source, SourceHealth
from router_node.discovery.registration import RecordError, Registration
from router_node.discovery.standing import Standing
from shared.config.loader import redact_url
from shared.logging import event, get
from shared.store import connect
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = get("discovery.redis")

MAX_NODES = 4096
_CHUNK = 512  # records read with one command
_READ_DEADLINE = 5.0  # one whole view, in seconds
_MIN_GAP = 0.05  # seconds between two reads, however many messages hurry
_PING_EVERY = 5.0  # seconds without a message before the subscription must prove itself
_FORGET_AFTER = 60.0  # seconds after which the id of a vanished record leaves the index
_MAX_TOLD = 256  # refused records that are remembered as logged


class StoreError(Exception):
    """The store was read and makes no sense; one sentence."""


class RedisSource(Source):
    """Reads ``laya:{cluster}:nodes`` and the records behind it.

    ``op_timeout`` bounds each command and each connect, in seconds. ``trust_all`` accepts nodes beyond loopback even
    though there is no token to check their records with. ``rejected`` counts refused records by reason.
    """

    name = "redis"

    def __init__(
        self,
        url: str,
        cluster: str,
        token: str,
        *,
        interval: float = 1.0,
        op_timeout: float = 2.0,
        trust_all: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rejected: dict[str, int] = dict.fromkeys(registration.REASONS, 0)
        self._url = url
        self._cluster = cluster
        self._token = token.encode()
        self._interval = interval
        self._op_timeout = op_timeout
        self._trust_all = trust_all
        self._clock = clock
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        shown = redact_url(url)
        self._standing = Standing(log, "store", f"store {shown} has not been read yet", store=shown)
        self._view: Snapshot | None = None
        self._told: set[tuple[str, str]] = set()
        self._gone_since: dict[str, float] = {}

    async def start(self, publish: Publish) -> None:
        import redis.asyncio  # noqa: F401 - slow to load: now, rather than in the first read, when clients are there

        self._tasks = [
            asyncio.create_task(self._poll(publish), name="redis-poll"),
            asyncio.create_task(self._listen(), name="redis-listen"),
        ]

    async def close(self) -> None:
        await cancel_all(self._tasks)

    def health(self) -> SourceHealth:
        return self._standing.health

    def rejections(self) -> Mapping[str, int]:
        return self.rejected

    def look_now(self) -> None:
        self._wake.set()

    # Reading

    async def _poll(self, publish: Publish) -> None:
        backoff = Backoff(0.2, 10.0)
        client = self._connect()
        try:
            while True:
                try:
                    async with asyncio.timeout(_READ_DEADLINE):
                        view = await self._read(client)
                    if view != self._view:
                        publish(view)
                        self._view = view
                except Exception as error:  # whatever it is, the last view stays and it is tried again
                    self._failed(error)
                    await _discard(client)
                    client = self._connect()
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                self._standing.succeeded()
                await self._pause()
        finally:
            await _discard(client)

    async def _pause(self) -> None:
        """Wait for the next turn, or for a message, but never less than the least gap."""
        await asyncio.sleep(_MIN_GAP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval * random.uniform(0.8, 1.2) - _MIN_GAP):
                await self._wake.wait()
        self._wake.clear()

    async def _read(self, client: Redis) -> Snapshot:
        # SRANDMEMBER with a count gives the whole set once, and no more than the count of a set gone wild.
        ids: Any = await client.srandmember(registration.index_key(self._cluster), MAX_NODES + 1)
        if len(ids) > MAX_NODES:
            raise StoreError(f"it lists more than {MAX_NODES} nodes in {registration.index_key(self._cluster)}")
        known = sorted(name for name in (raw.decode("ascii", "replace") for raw in ids) if self._sane_id(name))
        now = self._clock()
        view: list[Candidate] = []
        missing: list[str] = []
        for start in range(0, len(known), _CHUNK):
            names = known[start : start + _CHUNK]
            for name, raw in zip(names, await self._records(client, names), strict=True):
                if not raw:
                    missing.append(name)
                    continue
                record = self._accept(raw, name, now)
                if record is not None:
                    view.append(Candidate(record.address, record.node_id, record.boot_id, record.model))
        await self._forget(client, missing)
        return tuple(view)

    async def _records(self, client: Redis, names: Sequence[str]) -> list[bytes]:
        """What is stored under each name; empty for nothing. Never more than shows that a record is too large."""
        ask = client.pipeline(transaction=False)
        for name in names:
            ask.getrange(registration.node_key(self._cluster, name), 0, registration.MAX_RECORD)
        answers: Any = await ask.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        return [b"no string" if isinstance(answer, Exception) else answer for answer in answers]

    def _sane_id(self, name: str) -> bool:
        if registration.valid_node_id(name):
            return True
        self._reject(name[:128], RecordError("invalid", "its id in the index is not a node id"))
        return False

    def _accept(self, raw: bytes, node_id: str, now: float) -> Registration | None:
        try:
            record = registration.verify(raw, node_id, self._cluster, self._token, now)
            if not self._token and not self._trust_all and not is_loopback(split_address(record.address)[0]):
                raise RecordError(
                    "untrusted", f"it is at {record.address}, beyond loopback, and server.cluster_token is not set"
                )
        except RecordError as error:
            self._reject(node_id, error)
            return None
        self._told = {told for told in self._told if told[0] != node_id} if self._told else self._told
        return record

    def _reject(self, node_id: str, error: RecordError) -> None:
        """Count every refusal, log the first of each kind for a node."""
        self.rejected[error.reason] += 1
        told = (node_id, error.reason)
        if told not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(told)
            event(log, logging.WARNING, "record_rejected", node=node_id, reason=error.reason, detail=str(error))

    async def _forget(self, client: Redis, missing: Sequence[str]) -> None:
        """Take ids whose record expired long ago out of the index; a living node adds itself with each heartbeat."""
        now = time.monotonic()
        self._gone_since = {name: self._gone_since.get(name, now) for name in missing}
        old = [name for name, since in self._gone_since.items() if now - since > _FORGET_AFTER][:_CHUNK]
        if old:
            from redis.exceptions import ResponseError

            with contextlib.suppress(ResponseError):  # a reader without the right to write
                await client.srem(registration.index_key(self._cluster), *old)

    # Hurrying

    async def _listen(self) -> None:
        backoff = Backoff(0.2, 10.0)
        while True:
            client = self._connect()
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            try:
                async with asyncio.timeout(self._op_timeout * 2):
                    await pubsub.subscribe(registration.events_channel(self._cluster))
                backoff.reset()
                self._wake.set()  # what was announced meanwhile was missed
                await self._hear(pubsub)
            except Exception:  # the poll reports the store's state; this connection only makes it faster
                pass
            finally:
                await _discard(pubsub)
                await _discard(client)
            await asyncio.sleep(backoff.next())

    async def _hear(self, pubsub: Any) -> None:
        """Wake the poll at each message until the connection is dead; raises then."""
        heard = time.monotonic()
        asked = False
        while True:
            message = await pubsub.get_message(timeout=self._op_timeout if asked else 1.0)
            if message is not None:
                heard = time.monotonic()
                asked = False
                if message["type"] == "message":
                    self._wake.set()
            elif asked and time.monotonic() - heard > _PING_EVERY + self._op_timeout:
                raise TimeoutError("the subscription does not answer")
            elif not asked and time.monotonic() - heard > _PING_EVERY:
                async with asyncio.timeout(self._op_timeout):
                    await pubsub.ping()
                asked = True

    # State

    def _connect(self) -> Redis:
        """A client of its own, with one connection made at its first command."""
        return connect(self._url, timeout=self._op_timeout, connections=2, name="laya-router")

    def _failed(self, error: BaseException) -> None:
        detail = f"store {redact_url(self._url)} cannot be read: {redact_url(str(error)) or type(error).__name__}"
        self._standing.failed(detail, detail=detail, effect="known nodes stay; it is tried again")


async def _discard(thing: Any) -> None:
    """Close a client or a subscription whatever state it is in, without waiting long for a dead peer."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(0.5):
            await thing.aclose()
