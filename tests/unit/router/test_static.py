"""Static nodes are published once, each address once."""

from __future__ import annotations

from router_node.discovery.base import Candidate, Snapshot
from router_node.discovery.static import StaticSource


async def test_addresses_are_published_in_order_without_repeats() -> None:
    seen: list[Snapshot] = []
    source = StaticSource(["b:2", "a:1", "b:2"])
    await source.start(seen.append)
    assert seen == [(Candidate("b:2"), Candidate("a:1"))]
    assert source.health().up
    await source.close()
