"""Nodes that restart, a router that stops, and clients that cancel in a storm, all under load: no call fails for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.calls import ask, stub_of
from tests.support.ports import until
from tests.support.processes import Cluster, Spec, cluster, fetch, metric

APART = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=2, node={"LAYA_SERVER__DRAIN_TIMEOUT": "20"})) as c:
        yield c


@pytest.fixture
async def stub(running: Cluster) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(running.address, options=APART) as channel:
        yield stub_of(channel)


class Load:
    """Calls in closed loops until it is stopped; an error ends it."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.done = 0
        self.stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._unary()) for _ in range(6)]
        self._tasks += [asyncio.create_task(self._stream()) for _ in range(6)]

    async def _unary(self) -> None:
        while not self.stop.is_set():
            await self.stub.Complete(pb.CompleteRequest(request=ask(2)), timeout=30)
            self.done += 1

    async def _stream(self) -> None:
        while not self.stop.is_set():
            got = 0
            async for piece in self.stub.Generate(ask(60), timeout=30):
                got += len(piece.token_ids)
            assert got == 60
            self.done += 1

    async def go_on(self, calls: int) -> None:
        """Until so many more calls have ended well."""
        wanted = self.done + calls
        await until(lambda: self.done >= wanted or any(t.done() for t in self._tasks), f"{calls} more calls", 30)
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """Let the last calls end; an error of any is raised."""
        self.stop.set()
        await asyncio.gather(*self._tasks)


async def test_nodes_that_restart_in_turn_cost_no_call(running: Cluster, stub: Any) -> None:
    load = Load(stub)
    await load.go_on(50)
    for i in (0, 1):
        old = running.nodes[i]
        port = int(old.address.rpartition(":")[2])
        old.signal(signal.SIGTERM)
        assert await asyncio.to_thread(old.popen.wait, 30) == 0
        await load.go_on(30)
        running.nodes[i] = running.start_node(i, port)
        old.stop()
        await asyncio.to_thread(running.wait_ready, 2)
        await load.go_on(50)
    await load.end()
    assert running.metric("laya_router_requests_in_flight") == 0
    assert running.metric("laya_router_reservations") == 0


async def test_a_router_that_stops_finishes_what_it_has_and_says_goodbye(running: Cluster, stub: Any) -> None:
    streams = [stub.Generate(ask(200), timeout=30) for _ in range(20)]
    pieces = [aiter(stream) for stream in streams]
    heads = [await anext(one) for one in pieces]
    running.router.signal(signal.SIGTERM)
    counts = [len(head.token_ids) for head in heads]
    for i, stream in enumerate(streams):
        counts[i] += sum([len(piece.token_ids) async for piece in pieces[i]])
        assert await stream.code() == grpc.StatusCode.OK
    assert counts == [200] * 20
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Complete(pb.CompleteRequest(request=ask(1)), timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert await asyncio.to_thread(running.router.popen.wait, 30) == 0
    assert "router_stopped" in running.router.output()


async def test_a_storm_of_cancels_costs_the_nodes_connections_nothing(running: Cluster, stub: Any) -> None:
    bystander = stub.Generate(ask(4000), timeout=60)
    await bystander.read()
    dialled = running.metric("laya_router_net_total", event="connections_dialled")

    async def storm(channel: grpc.aio.Channel) -> None:
        mine = stub_of(channel)
        for _ in range(40):
            calls = [mine.Generate(ask(4000)) for _ in range(10)]
            await asyncio.gather(*(call.read() for call in calls))
            for call in calls:
                call.cancel()

    channels = [grpc.aio.insecure_channel(running.address, options=APART) for _ in range(6)]
    try:
        await asyncio.gather(*(storm(channel) for channel in channels))
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))
    text = running.metrics()
    assert metric(text, "laya_router_net_total", event="streams_reset") >= 2400
    assert metric(text, "laya_router_net_total", event="connections_dialled") == dialled
    assert metric(text, "laya_router_net_total", event="goaways_received") == 0
    before = 0
    for _ in range(50):
        before += len((await bystander.read()).token_ids)
    assert before >= 50
    bystander.cancel()

    def at_rest() -> bool:
        return not running.metric("laya_router_requests_in_flight") and not any(
            metric(fetch(f"http://{node.address}/metrics"), "laya_node_kv_held_tokens") for node in running.nodes
        )

    await until(at_rest, "the nodes hold nothing")
