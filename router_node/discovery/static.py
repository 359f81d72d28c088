"""Nodes named in the configuration or on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from router_node.discovery.base import Candidate, Publish, Source, SourceHealth


class StaticSource(Source):
    """Publishes its addresses once; the nodes' ids are learnt from the nodes themselves."""

    name = "static"

    def __init__(self, addresses: Iterable[str]) -> None:
        self._nodes = tuple(Candidate(address) for address in dict.fromkeys(addresses))

    async def start(self, publish: Publish) -> None:
        publish(self._nodes)

    async def close(self) -> None:
        return None

    def health(self) -> SourceHealth:
        return SourceHealth(up=True)
