"""Several workers on one port: they share the load, their numbers add up, and the supervisor keeps them alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis

from router_node import fleet as fleet_module
from router_node.config import parse
from router_node.discovery.registration import Registration, index_key, node_key, sign
from router_node.supervisor import supervise
from shared.pb.laya.v1 import admin_pb2, inference_pb2
from tests.support.alive import alive
from tests.support.calls import ask, stub_of
from tests.support.grpc_errors import END
from tests.support.grpc_node import GrpcNode
from tests.support.ports import eventually, until
from tests.support.processes import Spec, children, cluster
from tests.support.router import Router, RouterWorld
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


def listeners(address: str) -> int:
    """How many sockets accept connections on a port of 127.0.0.1."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port}") and row[3] == "0A" for row in rows)


async def generate(router: Router, node: GrpcNode) -> None:
    """One request over a connection of its own, so that any worker may get it."""
    node.chunks.put_nowait("text")
    node.chunks.put_nowait("")
    call = router.inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=10)
    assert [answer.text async for answer in call] == ["text"]


async def test_workers_share_a_port_and_their_numbers_add_up(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--workers", "2", "--node", node.address)).ready()
    await until(lambda: node.watching == 3, "the supervisor and both workers watch the node")
    assert len(set(node.watchers)) == 3
    for _ in range(12):
        await generate(router, node)
    await router.metric_is("laya_router_requests_total", 12, method="Generate", code="OK")
    assert await router.metric("laya_router_workers") == 2
    assert len(children(router.proc.popen.pid)) == 2
    (status,) = (await router.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=5)).nodes
    assert status.state == "ready"
    explained = await router.admin.Explain(admin_pb2.ExplainRequest(model="m", prompt_tokens=5), timeout=5)
    assert explained.node_id == "n1"


async def test_health_on_the_public_port_is_the_supervisors_word(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--workers", "2", "--node", node.address)).ready()
    stub = health_pb2_grpc.HealthStub(router.channel(router.public))
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="laya.v1.Inference"), timeout=20)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await node.stop()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


async def test_a_killed_worker_comes_back_and_nothing_is_forgotten(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--workers", "2", "--node", node.address)).ready()
    for _ in range(8):
        await generate(router, node)
    await router.metric_is("laya_router_requests_total", 8, method="Generate", code="OK")
    pid = router.proc.popen.pid
    victim, other = children(pid)
    os.kill(victim, signal.SIGKILL)
    await until(lambda: listeners(router.public) == 1, "the port is the other worker's alone")
    await generate(router, node)
    await until(lambda: len(children(pid)) == 2 and victim not in children(pid), "another worker was started")
    await router.metric_is("laya_router_events_total", 1, event="worker_restart")
    await until(lambda: node.watching == 3, "the new worker watches the node", timeout=20)
    await generate(router, node)
    await router.metric_is("laya_router_requests_total", 10, method="Generate", code="OK")
    assert other in children(pid)
    assert "worker_ended" in router.proc.output()


async def test_a_killed_supervisor_leaves_no_orphan(world: RouterWorld) -> None:
    router = await world.router("--workers", "2")
    workers = children(router.proc.popen.pid)
    assert len(workers) == 2
    router.proc.popen.kill()
    await asyncio.to_thread(router.proc.popen.wait, 5)
    await until(lambda: not any(alive(worker) for worker in workers), "the workers have ended")


async def test_streams_finish_when_the_supervisor_is_stopped(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--workers", "2", "--node", node.address)).ready()
    call = router.inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=20)
    node.chunks.put_nowait("one")
    assert (await call.read()).text == "one"
    router.proc.popen.terminate()

    async def draining() -> bool:
        return (await router.get("/readyz"))[0] == 503

    await eventually(draining, "the drain is seen")
    node.chunks.put_nowait("two")
    assert (await call.read()).text == "two"
    node.chunks.put_nowait("")
    assert await call.read() is END
    assert await call.code() is grpc.StatusCode.OK
    assert await asyncio.to_thread(router.proc.popen.wait, 10) == 0


async def test_a_second_signal_cuts_the_workers_off(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--workers", "2", "--node", node.address)).ready()
    call = router.inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=20)
    node.chunks.put_nowait("one")
    assert (await call.read()).text == "one"
    workers = children(router.proc.popen.pid)
    router.proc.popen.send_signal(signal.SIGINT)

    async def draining() -> bool:
        return (await router.get("/readyz"))[0] == 503

    await eventually(draining, "the drain is seen")
    router.proc.popen.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(router.proc.popen.wait, 8) == 1
    assert not any(alive(worker) for worker in workers)


async def test_nodes_of_the_store_reach_the_workers(world: RouterWorld, valkey: Valkey) -> None:
    node = await world.node()
    router = await world.router("--workers", "2", "--redis", valkey.url)
    record = Registration(node_id="n1", boot_id="b1", address=node.address, model="m", issued_at=time.time(), ttl=60.0)
    async with Redis.from_url(valkey.url) as redis:
        await redis.set(node_key("laya", "n1"), sign(record, "laya", b""), ex=60)
        await redis.sadd(index_key("laya"), "n1")
        await until(lambda: node.watching == 3, "the supervisor and both workers watch the node")
        clients = await redis.client_list()
    assert len([client for client in clients if client["name"] == "laya-router"]) == 2  # the supervisor's alone
    for _ in range(4):
        await generate(router, node)
    assert await router.metric("laya_router_store_up") == 1


async def test_a_hung_worker_is_replaced(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fleet_module, "SILENCE", 2.5)
    said, tells = os.pipe()
    options = parse(["--port", "0", "--admin-port", "0", "--workers", "2", "--ready-fd", str(tells)])
    before = set(children(os.getpid()))
    running = asyncio.create_task(supervise(options))
    try:
        await until(lambda: len(set(children(os.getpid())) - before) == 2, "two workers")
        workers = set(children(os.getpid())) - before
        victim = min(workers)
        await until(lambda: select.select([said], [], [], 0)[0], "both workers have said that they serve", timeout=30)
        os.kill(victim, signal.SIGSTOP)
        await until(lambda: not alive(victim), "the hung worker is gone", timeout=20)
        await until(lambda: len(set(children(os.getpid())) - before) == 2, "another one was started", timeout=20)
    finally:
        os.close(said)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await running == 0


async def test_a_worker_that_is_told_to_leave_keeps_no_new_connection_waiting() -> None:
    with cluster(Spec(nodes=1, router_args=("--workers", "2"))) as c:
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(12):  # so many that each worker has some
                channel = grpc.aio.insecure_channel(c.address, options=[("grpc.use_local_subchannel_pool", 1)])
                await stack.enter_async_context(channel)
                call = stub_of(channel).Generate(ask(400), timeout=60)
                pieces = aiter(call)
                streams.append((pieces, len((await anext(pieces)).token_ids)))
            leaving = children(c.router.popen.pid)[0]
            os.kill(leaving, signal.SIGTERM)
            await until(lambda: listeners(c.address) == 1, "its port is closed")
            for _ in range(12):
                channel = grpc.aio.insecure_channel(c.address, options=[("grpc.use_local_subchannel_pool", 1)])
                await stack.enter_async_context(channel)
                answer = await stub_of(channel).Complete(inference_pb2.CompleteRequest(request=ask(1)), timeout=8)
                assert len(answer.completions[0].token_ids) == 1
            assert alive(leaving)
            for pieces, got in streams:
                async for piece in pieces:
                    got += len(piece.token_ids)
                assert got == 400
        await until(lambda: not alive(leaving), "it ends", timeout=15)
        await until(lambda: listeners(c.address) == 2, "another one takes its place", timeout=15)
