"""The side of a router that looks for nodes, nodes for it to find, and a store to write into."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from redis.asyncio import Redis

from router_node.config import parse
from router_node.discovery.link import Link
from router_node.discovery.registration import Registration, events_channel, index_key, node_key, sign
from router_node.dispatch import Ask, Reservation
from router_node.node_side import NodeSide, configured_sources
from shared.errors import LayaError
from tests.support.certs import Authority, Pair
from tests.support.grpc_node import GrpcNode
from tests.support.leaks import REST_LIMIT
from tests.support.ports import until
from tests.support.valkey import Valkey


class NodeWorld:
    """Nodes, a store, and the side of a router that looks for nodes."""

    def __init__(self) -> None:
        self.nodes: list[GrpcNode] = []
        self.sides: list[NodeSide] = []
        self._before: set[asyncio.Task[object]] = set()

    async def node(self, node_id: str = "n1", model: str = "m", **more: str) -> GrpcNode:
        """A node that serves."""
        node = await GrpcNode(node_id, model, **more).start()
        self.nodes.append(node)
        return node

    async def router(self, *flags: str) -> NodeSide:
        """The node side of a router with these flags."""
        config = parse(["--admin-port", "0", *flags]).config
        side = NodeSide(config, configured_sources(config))
        self.sides.append(side)
        await side.start()
        return side

    async def __aenter__(self) -> NodeWorld:
        self._before = asyncio.all_tasks()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End them all. What tests have left behind is an AssertionError."""
        held = [node.id for side in self.sides for node in side.dispatcher.nodes() if node.reservations]
        queued = sum(side.dispatcher.queued for side in self.sides)
        for side in self.sides:
            await side.close()
        for node in self.nodes:
            await node.stop()
        assert not held and not queued, f"reservations at {held} and {queued} in the queue"
        await until(lambda: not self._left(), "every task ends", timeout=REST_LIMIT)

    def _left(self) -> list[str]:
        here = asyncio.current_task()
        return [str(task) for task in asyncio.all_tasks() - self._before if task is not here]


async def register(
    valkey: Valkey, node_id: str, address: str, *, token: str = "", boot_id: str = "b1", model: str = "m"
) -> None:
    """Write a node into the store, signed, as a node does."""
    record = Registration(
        node_id=node_id, boot_id=boot_id, address=address, model=model, issued_at=time.time(), ttl=60.0
    )
    async with Redis.from_url(valkey.url) as redis:
        await redis.set(node_key("laya", node_id), sign(record, "laya", token.encode()), ex=60)
        await redis.sadd(index_key("laya"), node_id)
        await redis.publish(events_channel("laya"), "1")


async def deregister(valkey: Valkey, node_id: str) -> None:
    """Take a node out of the store, as one that leaves does."""
    async with Redis.from_url(valkey.url) as redis:
        await redis.delete(node_key("laya", node_id))
        await redis.srem(index_key("laya"), node_id)
        await redis.publish(events_channel("laya"), "1")


def mutual_tls(pair: Pair, authority: Authority) -> grpc.ServerCredentials:
    """Credentials of a server that lets in only whom the authority knows."""
    chain = (Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())
    return grpc.ssl_server_credentials([chain], Path(authority.file).read_bytes(), require_client_auth=True)


def links(side: NodeSide) -> list[Link]:
    """Every link, by node id and address."""
    return [entry.link for entry in side.membership.entries()]


def state(side: NodeSide, at: int = 0) -> str:
    """State of a link, or "absent"."""
    found = links(side)
    return found[at].state if len(found) > at else "absent"


def is_ready(side: NodeSide, node_id: str) -> Callable[[], bool]:
    def look() -> bool:
        node = side.dispatcher.node(node_id)
        return node is not None and node.state == "ready"

    return look


def ask(side: NodeSide, model: str = "m") -> Reservation:
    granted = side.dispatcher.submit(Ask(model, prompt_tokens=10, max_new_tokens=10), unexpected, unexpected)
    assert isinstance(granted, Reservation)
    granted.end()
    return granted


def refused(side: NodeSide, model: str = "m") -> LayaError:
    with pytest.raises(LayaError) as caught:
        side.dispatcher.submit(Ask(model, prompt_tokens=10, max_new_tokens=10), unexpected, unexpected)
    return caught.value


def unexpected(what: object) -> None:
    raise AssertionError(f"called with {what}")
