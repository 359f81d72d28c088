"""Drains: what runs is finished, what is new goes elsewhere, and then the process ends with 0."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc.aio
import pytest

from shared.pb.laya.v1 import admin_pb2, admin_pb2_grpc
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.faults.load import Load
from tests.faults.tally import Tally
from tests.support.calls import ask, stub_of
from tests.support.ports import eventually, free_port, until
from tests.support.processes import ROOT, Cluster, Proc, Spec, cluster, fetch, metric
from tests.support.router import RouterWorld

pytestmark = pytest.mark.integration

TOKEN = "drain-test-token"


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=1)) as c:
        yield c


async def drain_router(admin: str, grace: float) -> int:
    async with grpc.aio.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.DrainRouter(admin_pb2.DrainRouterRequest(grace_seconds=grace), timeout=5)
        return int(answer.in_flight)


async def test_a_router_that_is_told_to_drain_finishes_what_it_has_and_ends(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.address) as channel:
        call = stub_of(channel).Generate(ask(150), timeout=30)
        pieces = aiter(call)
        got = len((await anext(pieces)).token_ids)
        assert await drain_router(running.admin, 0) == 1
        async for piece in pieces:
            got += len(piece.token_ids)
        assert got == 150
    assert await asyncio.to_thread(running.router.popen.wait, 10) == 0


async def test_its_grace_bounds_a_drain(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.address) as channel:
        call = stub_of(channel).Generate(ask(30_000), timeout=60)
        pieces = aiter(call)
        await anext(pieces)
        await drain_router(running.admin, 0.5)
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in pieces:
                pass
    assert await asyncio.to_thread(running.router.popen.wait, 10) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_drain_timeout_bounds_what_sigterm_lets_finish(workers: str) -> None:
    limit = 1.5
    spec = Spec(router={"LAYA_SERVER__DRAIN_TIMEOUT": str(limit)}, router_args=("--workers", workers))
    with cluster(spec) as c:
        async with grpc.aio.insecure_channel(c.address) as channel:
            pieces = aiter(stub_of(channel).Generate(ask(30_000), timeout=15))
            await anext(pieces)
            told = last = time.monotonic()
            c.router.signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in pieces:
                    last = time.monotonic()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, caught.value
            assert last - told > limit / 2, "it was cut off before its time"
        assert await asyncio.to_thread(c.router.popen.wait, 10) == 0
        assert limit <= time.monotonic() - told < limit + 5
        assert "router_stopped finished=False" in c.router.output()


async def test_the_command_drains_a_router(running: Cluster) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "shared.cli.main", "drain", "--router", "--json", "--admin", running.admin],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0 and '"in_flight"' in done.stdout, done.stderr
    assert await asyncio.to_thread(running.router.popen.wait, 10) == 0


async def test_a_router_says_that_it_leaves_before_it_closes_its_port() -> None:
    world = RouterWorld()
    try:
        node = await world.node()
        router = await world.router("--node", node.address, env={"LAYA_SERVER__DRAIN_DELAY": "1.5"})
        await router.ready()
        router.proc.signal(signal.SIGTERM)

        async def says_so() -> bool:
            return (await router.get("/readyz"))[0] == 503

        await eventually(says_so, "it says that it leaves")
        call = router.inference.Generate(pb.GenerateRequest(model="m", text="hi"), timeout=10)
        node.chunks.put_nowait("served")
        assert (await call.read()).text == "served"  # new requests are still taken
        node.chunks.put_nowait("")
        assert await asyncio.to_thread(router.proc.popen.wait, 10) == 0
    finally:
        await world.close()


class Pair:
    """Two routers and two nodes at fixed addresses, each of which may be replaced."""

    def __init__(self) -> None:
        self.ports = [free_port() for _ in range(4)]
        self.nodes = [self._node(i) for i in range(2)]
        self.routers = [self._router(i) for i in range(2)]

    def _node(self, i: int) -> Proc:
        argv = ["inference_node.main", "--engine", "sim", "--port", str(self.ports[i]), "--node-id", f"n{i}"]
        env = {"LAYA_SERVER__CLUSTER_TOKEN": TOKEN, "LAYA_INFERENCE__RAMP_SECONDS": "0"}
        return Proc(f"node-{i}", argv, env)

    def _router(self, i: int) -> Proc:
        argv = ["router_node.main", "--port", str(self.ports[2 + i]), "--admin-port", "0"]
        for port in self.ports[:2]:
            argv += ["--node", f"127.0.0.1:{port}"]
        return Proc(f"router-{i}", argv, {"LAYA_SERVER__CLUSTER_TOKEN": TOKEN})

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports[2:]]

    async def whole(self) -> None:
        """Until both routers have both nodes."""

        def look() -> bool:
            pages = [fetch(f"http://{router.ready['admin']}/metrics") for router in self.routers]
            return all(metric(page, "laya_router_nodes", state="ready") == 2 for page in pages)

        await until(look, "both routers have both nodes", 20)

    async def replace(self, procs: list[Proc], i: int) -> None:
        """SIGTERM, an exit with 0, and a new process in its place."""
        old = procs[i]
        old.signal(signal.SIGTERM)
        assert await asyncio.to_thread(old.popen.wait, 30) == 0, old.output()
        old.stop()
        procs[i] = self._node(i) if procs is self.nodes else self._router(i)
        assert await asyncio.to_thread(lambda: procs[i].ready)
        await self.whole()

    def close(self) -> list[int]:
        return [proc.stop() for proc in (*self.routers, *self.nodes)]


async def test_every_node_and_router_is_replaced_under_load_and_no_request_fails() -> None:
    pair = Pair()
    try:
        await pair.whole()
        load = Load(pair.addresses, clients=10, seed=3, pause=0.02)
        load.tally = tally = Tally("rolling restart")
        load.start()
        try:
            for procs in (pair.nodes, pair.routers):
                for i in range(2):
                    await asyncio.sleep(0.3)
                    await pair.replace(procs, i)
            await until(lambda: tally.sent > 200, "200 requests have been made", 30)
        finally:
            await load.stop()
        assert tally.succeeded == tally.sent, (tally.row(), dict(tally.reasons), tally.examples)
    finally:
        assert pair.close() == [0, 0, 0, 0]
