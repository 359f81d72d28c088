"""Keeps the node's signed record alive in the store, so that routers find it. Never in the way of serving.

Each heartbeat writes the record anew with its time to live; a node that dies leaves the table by itself. Every command
has a deadline; when the store is away it is tried again with growing, jittered waits, and the node goes on serving the
routers that know it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inference_node.state import NodeState
from router_node.discovery import registration
from router_node.discovery.backoff import Backoff
from router_node.discovery.registration import Registration
from shared.config.loader import redact_url
from shared.config.schema import Config
from shared.logging import event
from shared.store import connect
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from redis.asyncio import Redis

COMMAND_TIMEOUT = 2.0  # seconds
LAST_WORDS_TIMEOUT = 1.0  # for taking the record away at the end


class Registrar:
    """Registers one node; ``address`` is the host:port that routers dial."""

    def __init__(
        self, state: NodeState, address: str, log: logging.Logger, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises RecordError when no router would accept the record."""
        server, inference = state.config.server, state.config.inference
        self._state = state
        self._address = address
        self._log = log
        self._clock = clock
        self._url = server.redis
        self._cluster = server.cluster
        self._token = server.cluster_token.encode()
        self._heartbeat = inference.heartbeat
        self._ttl = inference.registration_ttl
        self._task: asyncio.Task[None] | None = None
        self._revision = ""
        self.up = False
        self._told_down = False
        self._record()

    def start(self, revision: str = "") -> None:
        """Register, and keep doing so in the background."""
        self._revision = revision
        self._task = asyncio.get_running_loop().create_task(self._run(), name="registrar")

    async def close(self) -> None:
        """Take the record away, if the store answers in time and the record is still ours."""
        if self._task is None:
            return
        await cancel_all([self._task])
        self._task = None
        if not self.up:
            return
        client = self._connect()
        try:
            async with asyncio.timeout(LAST_WORDS_TIMEOUT):
                await self._withdraw(client)
        except Exception as e:
            event(self._log, logging.WARNING, "not_deregistered", why=self._why(e))
        finally:
            await _discard(client)

    async def _run(self) -> None:
        await asyncio.to_thread(_load)
        backoff = Backoff(0.2, 5.0)
        client = self._connect()
        try:
            while True:
                try:
                    async with asyncio.timeout(COMMAND_TIMEOUT):
                        await self._write(client)
                except Exception as e:  # whatever it is, the node serves on
                    self._down(e)
                    await _discard(client)
                    client = self._connect()
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                await asyncio.sleep(self._heartbeat * random.uniform(0.9, 1.1))
        finally:
            await _discard(client)

    async def _write(self, client: Redis) -> None:
        node_id = self._state.node_id
        pipe = client.pipeline(transaction=False)
        pipe.set(registration.node_key(self._cluster, node_id), self._record(), px=round(self._ttl * 1000))
        pipe.sadd(registration.index_key(self._cluster), node_id)
        if not self.up:
            pipe.publish(registration.events_channel(self._cluster), b"")
        await pipe.execute()
        if not self.up:
            self.up = True
            self._told_down = False
            event(self._log, logging.INFO, "registered", store=redact_url(self._url), address=self._address)

    async def _withdraw(self, client: Redis) -> None:
        key = registration.node_key(self._cluster, self._state.node_id)
        found = await client.get(key)
        # A successor of the same name may have registered already.
        if found is not None and self._state.boot_id.encode() not in found:
            return
        pipe = client.pipeline(transaction=False)
        pipe.delete(key)
        pipe.srem(registration.index_key(self._cluster), self._state.node_id)
        pipe.publish(registration.events_channel(self._cluster), b"")
        await pipe.execute()

    def _record(self) -> bytes:
        state = self._state
        name, *aliases = state.names
        record = Registration(
            node_id=state.node_id,
            boot_id=state.boot_id,
            address=self._address,
            model=name,
            aliases=tuple(aliases),
            revision=self._revision,
            issued_at=self._clock(),
            ttl=self._ttl,
        )
        return registration.sign(record, self._cluster, self._token)

    def _down(self, error: BaseException) -> None:
        if self.up or not self._told_down:
            event(
                self._log,
                logging.WARNING,
                "store_down",
                store=redact_url(self._url),
                why=self._why(error),
                effect="the node serves on; registering is tried again",
            )
        self.up = False
        self._told_down = True

    def _why(self, error: BaseException) -> str:
        return redact_url(str(error)) or type(error).__name__

    def _connect(self) -> Redis:
        return connect(self._url, timeout=COMMAND_TIMEOUT, connections=1, name="laya-node")


def advertised(config: Config, bound: str, port: int) -> str:
    """The host:port that routers dial: as configured, else as bound; a wildcard becomes this machine's address."""
    if config.inference.advertise:
        return config.inference.advertise
    host = config.inference.host
    try:
        wildcard = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return bound
    return f"{_own_address(config.server.redis)}:{port}" if wildcard else bound


def _own_address(store: str) -> str:
    """The address this machine uses towards the store; while the store has none, that of its own name. Sends nothing.

    In a container its own name has the address that others dial.
    """
    name = socket.gethostname()
    own = (where[0] for _, where in _resolved(name) if not ipaddress.ip_address(where[0]).is_loopback)
    found = next(_sources(urlsplit(store).hostname or "192.0.2.1"), None) or next(own, name)
    return f"[{found}]" if ":" in found else found


def _sources(target: str) -> Iterator[str]:
    """This machine's addresses towards a host, over IPv4 and IPv6."""
    for family, where in _resolved(target):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            found = str(probe.getsockname()[0])
            if not ipaddress.ip_address(found).is_unspecified:
                yield found


def _resolved(host: str) -> list[tuple[int, Any]]:
    """Families and addresses of a host; none where it has none."""
    try:
        return [(one[0], one[4]) for one in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)]
    except (OSError, UnicodeError):
        return []


def _load() -> None:
    """Load the store's library off the event loop: it is half the cost of a start."""
    import redis.asyncio  # noqa: F401


async def _discard(client: Any) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(0.5):
            await client.aclose()
