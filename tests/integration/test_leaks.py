"""The look for leaks that ends every test with processes sees what it should, in a router and in a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc.aio
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import leaks
from tests.support.calls import ask, stub_of
from tests.support.processes import Cluster, Proc, cluster

pytestmark = pytest.mark.integration


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster() as c:
        yield c


async def look(proc: Proc, limit: float) -> list[str]:
    base = proc._baseline
    assert base is not None
    return await asyncio.to_thread(leaks.left_behind, base, limit)


async def test_what_runs_is_seen_and_what_has_ended_is_not(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.address) as channel:
        calls = [stub_of(channel).Generate(ask(8000)) for _ in range(20)]
        await asyncio.gather(*(call.read() for call in calls))
        router, node = await asyncio.gather(look(running.router, 0.2), look(running.nodes[0], 0.2))
        assert any("requests_in_flight is 20" in one for one in router)
        assert any("streams to" in one for one in router)
        assert any("running_requests is 20" in one for one in node)
        assert any("kv_held_tokens" in one for one in node)
        for call in calls:
            call.cancel()
        assert await look(running.router, 5) == [] and await look(running.nodes[0], 5) == []


async def test_connections_count_for_what_they_are_and_no_more(running: Cluster) -> None:
    channels = [
        grpc.aio.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(40)
    ]
    try:
        await asyncio.gather(*(stub_of(one).Complete(pb.CompleteRequest(request=ask(1))) for one in channels))
        assert await look(running.router, 5) == []  # forty files, and forty connections that explain them
    finally:
        await asyncio.gather(*(one.close(None) for one in channels))
    assert await look(running.router, 5) == []
