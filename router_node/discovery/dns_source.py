"""Nodes behind a DNS name: a headless service, swarm's ``tasks.<service>``, or SRV records.

Every address of the name, A and AAAA, is a node at the configured port; with port 0 the name's SRV records say host and
port of each. The answer is asked for again as its time to live says, between a second and ``interval``. A server that
does not answer, or says SERVFAIL, keeps the last view; a name that does not exist, or has no records, is an empty one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from router_node.discovery.backoff import Backoff
from router_node.discovery.base import Candidate, Publish, Snapshot, Source, SourceHealth
from router_node.discovery.standing import Standing
from shared.config.schema import DnsConfig
from shared.logging import get
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

log = get("discovery.dns")

MAX_NODES: Final = 4096
_LEAST: Final = 1.0  # seconds between two questions at least
_LIFETIME: Final = 3.0  # seconds for an answer, all servers together


class DnsSource(Source):
    """One name. ``servers`` and ``server_port`` stand in for the system's own resolver."""

    def __init__(self, config: DnsConfig, *, servers: Sequence[str] = (), server_port: int = 53) -> None:
        self.name = f"dns:{config.name}"
        self._config = config
        self._servers = servers
        self._server_port = server_port
        self._standing = Standing(log, "dns", f"{config.name} has not been looked up yet", name=config.name)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, publish: Publish) -> None:
        self._task = asyncio.create_task(self._run(publish), name=self.name)

    async def close(self) -> None:
        await cancel_all([self._task])

    def health(self) -> SourceHealth:
        return self._standing.health

    def look_now(self) -> None:
        self._wake.set()

    async def _run(self, publish: Publish) -> None:
        backoff = Backoff(0.5, max(_LEAST, self._config.interval))
        resolver = await asyncio.to_thread(self._resolver)
        seen: Snapshot | None = None
        while True:
            try:
                view, ttl = await self._look(resolver)
            except Exception as error:  # whatever it is, the nodes stay
                self._failed(error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._standing.succeeded()
            if view != seen:
                seen = view
                publish(view)
            await self._rest(min(max(ttl, _LEAST), self._config.interval))

    async def _rest(self, seconds: float) -> None:
        """Until the next turn, or a little after a node was lost."""
        self._wake.clear()
        await asyncio.sleep(_LEAST)
        try:
            async with asyncio.timeout(max(0.0, seconds * random.uniform(0.9, 1.1) - _LEAST)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _resolver(self) -> Resolver:
        from dns.asyncresolver import Resolver

        resolver = Resolver(configure=not self._servers)
        if self._servers:
            resolver.nameservers = list(self._servers)
            resolver.port = self._server_port
        resolver.lifetime = _LIFETIME
        resolver.cache = None
        return resolver

    async def _look(self, resolver: Resolver) -> tuple[Snapshot, float]:
        """The nodes there are, and the seconds for which that holds."""
        if not self._config.port:
            records, ttl = await self._ask(resolver, "SRV")
            found = [(str(record.target).rstrip("."), int(record.port)) for record in records]
        else:
            answers = await asyncio.gather(*(self._ask(resolver, kind) for kind in ("A", "AAAA")))
            ttl = min(ttl for _, ttl in answers)
            found = [(record.address, self._config.port) for records, _ in answers for record in records]
        addresses = sorted({f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found if host})
        if len(addresses) > MAX_NODES:
            raise ValueError(f"it has {len(addresses)} addresses, more than {MAX_NODES}")
        config = self._config
        return tuple(Candidate(at, model=config.model, revision=config.revision) for at in addresses), ttl

    async def _ask(self, resolver: Resolver, kind: str) -> tuple[Sequence[Any], float]:
        import dns.resolver

        try:
            async with asyncio.timeout(_LIFETIME + 1.0):
                answer = await resolver.resolve(self._config.name, kind, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return (), self._config.interval
        return list(answer), float(answer.rrset.ttl) if answer.rrset is not None else 0.0

    def _failed(self, error: BaseException) -> None:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        name = self._config.name
        self._standing.failed(f"{name} cannot be looked up: {said}", name=name, detail=said, effect="known nodes stay")
