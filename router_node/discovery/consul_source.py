"""Nodes that Consul's health endpoint names, followed by blocking queries.

A query waits in Consul until something has changed since the index of the last answer, or its time is over. An index
that goes back, or is 0, says that Consul began anew: the next query does not wait. Waits are drawn a little apart, so
that many routers do not ask at the same moment. A query that fails keeps the last view.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from router_node.discovery.address import AddressError, split_address
from router_node.discovery.backoff import Backoff
from router_node.discovery.base import Candidate, Publish, Snapshot, Source, SourceHealth
from router_node.discovery.registration import valid_node_id
from router_node.discovery.standing import Standing
from shared.config.schema import ConsulConfig
from shared.logging import get
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from collections.abc import Iterator

log = get("discovery.consul")

MAX_NODES: Final = 4096
_MIN_GAP: Final = 0.1  # seconds between two queries at least


class ConsulSource(Source):
    """The passing instances of one service."""

    name = "consul"

    def __init__(self, config: ConsulConfig) -> None:
        self._config = config
        unread = f"Consul at {config.address} has not been asked yet"
        self._standing = Standing(log, "consul", unread, address=config.address, service=config.service)
        self._rejected: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def start(self, publish: Publish) -> None:
        self._task = asyncio.create_task(self._run(publish), name="consul")

    async def close(self) -> None:
        await cancel_all([self._task])

    def health(self) -> SourceHealth:
        return self._standing.health

    def rejections(self) -> Mapping[str, int]:
        return self._rejected

    async def _run(self, publish: Publish) -> None:
        client = await asyncio.to_thread(self._client)
        backoff = Backoff(0.5, 15.0)
        seen: Snapshot | None = None
        index = 0
        while True:
            try:
                newest, nodes = await self._ask(client, index)
            except Exception as error:  # whatever it is, the nodes stay
                self._failed(error)
                index = 0
                await asyncio.sleep(backoff.next())
                continue
            index = newest if newest >= index else 0
            backoff.reset()
            self._standing.succeeded()
            view = tuple(sorted(self._read(nodes), key=lambda candidate: candidate.address))
            if view != seen:
                seen = view
                publish(view)
            await asyncio.sleep(_MIN_GAP)

    def _client(self) -> Any:
        from shared.consul_client import connect

        config = self._config
        return connect(config.address, config.token, config.datacenter, config.ca_file)

    async def _ask(self, client: Any, index: int) -> tuple[int, list[Any]]:
        config = self._config
        wait = max(1, int(config.wait * random.uniform(0.8, 1.0)))
        newest, nodes = await client.health.service(
            config.service, index=index or None, wait=f"{wait}s", passing=True, tag=list(config.tags) or None
        )
        if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
            raise ValueError(f"it names {len(nodes) if isinstance(nodes, list) else 'no list of'} nodes")
        return int(newest), nodes

    def _read(self, nodes: list[Any]) -> Iterator[Candidate]:
        for node in nodes:
            candidate = _candidate(node)
            if candidate is None:
                self._rejected["invalid"] += 1
            else:
                yield candidate

    def _failed(self, error: BaseException) -> None:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        address = self._config.address
        self._standing.failed(
            f"Consul at {address} cannot be asked: {said}", address=address, detail=said, effect="nodes stay"
        )


def _candidate(node: Any) -> Candidate | None:
    """What an entry of the health endpoint names, None for one that names no node."""
    try:
        service = node["Service"]
        host = str(service.get("Address") or node["Node"]["Address"])
        address = f"[{host}]:{service['Port']}" if ":" in host else f"{host}:{service['Port']}"
        split_address(address)
        said = service.get("Meta") or {}
        found = {key: str(said.get(key) or "") for key in ("node_id", "boot_id", "model", "revision")}
    except (KeyError, TypeError, AttributeError, AddressError):
        return None
    if found["node_id"] and not valid_node_id(found["node_id"]):
        return None
    return Candidate(address, found["node_id"], found["boot_id"], found["model"], found["revision"])
