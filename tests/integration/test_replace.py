"""A router that replaces itself: one process after another on the same sockets, and no client sees a difference."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.faults import limits
from tests.faults.load import Load
from tests.faults.tally import Tally
from tests.support.calls import ask, stub_of
from tests.support.ports import eventually, until
from tests.support.processes import Cluster, Proc, Spec, cluster
from tests.support.router import RouterWorld

pytestmark = pytest.mark.integration


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def running(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(Spec(nodes=2, router_args=("--workers", str(request.param)))) as c:
        yield c


def said(router: Proc) -> str:
    """All that a router has written."""
    return Path(router.log.name).read_text()


def started(router: Proc) -> int:
    """The number of the successor that a router has started last."""
    return int(said(router).rpartition("successor_starting pid=")[2].split()[0])


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


async def test_no_request_of_a_steady_load_notices(running: Cluster) -> None:
    load = Load([running.address], clients=6, seed=3, pause=0.01, tries=1)
    load.tally = tally = Tally("replaced twice")
    load.start()
    before = []
    for _ in range(2):
        await until(lambda seen=tally.sent: tally.sent > seen + 40, "requests go on", timeout=30)
        before.append(await asyncio.to_thread(running.router.replace))
    await until(lambda seen=tally.sent: tally.sent > seen + 40, "requests go on", timeout=30)
    await load.stop()
    assert tally.succeeded == tally.sent, (dict(tally.reasons), tally.examples)
    assert [await asyncio.to_thread(one.wait, 30) for one in before] == [0, 0]
    assert running.router.popen.pid not in [one.pid for one in before]


async def test_streams_end_where_they_began_and_new_requests_are_the_successors(running: Cluster) -> None:
    async def is_the_successors() -> bool:
        # The process before goes on accepting until it has heard that the new one serves.
        async with grpc.aio.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
            call = stub_of(other).Generate(ask(2), timeout=30)
            assert sum([len(piece.token_ids) async for piece in call]) == 2
        return running.metric("laya_router_requests_total", method="Generate", code="OK") > 0

    async with grpc.aio.insecure_channel(running.address) as channel:
        call = stub_of(channel).Generate(ask(600), timeout=100)
        pieces = aiter(call)
        got = len((await anext(pieces)).token_ids)
        before = await asyncio.to_thread(running.router.replace)
        assert before.poll() is None
        await eventually(is_the_successors, "new requests are the successor's", timeout=30)
        async for piece in pieces:
            got += len(piece.token_ids)
        assert got == 600
    assert await asyncio.to_thread(before.wait, 30) == 0


async def test_a_kept_connection_hears_of_the_end_with_an_answer(running: Cluster) -> None:
    body = json.dumps({"model": "sim", "prompt": "hi", "max_tokens": 2}).encode()

    def post() -> str | None:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        return answer.getheader("connection")

    with contextlib.closing(http.client.HTTPConnection(running.address)) as connection:
        assert await asyncio.to_thread(post) != "close"
        before = await asyncio.to_thread(running.router.replace)

        async def is_told() -> bool:
            return await asyncio.to_thread(post) == "close"

        await eventually(is_told, "an answer says that it is the last")
        assert await asyncio.to_thread(before.wait, 20) == 0
        assert await asyncio.to_thread(post) != "close"


async def test_probes_of_the_private_listener_see_a_ready_router_all_the_time(running: Cluster) -> None:
    stop = asyncio.Event()
    answers: set[int] = set()

    async def probe() -> None:
        host, _, port = running.admin.rpartition(":")
        while not stop.is_set():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answers.add(int((await reader.read(-1)).split()[1]))
            writer.close()

    probing = asyncio.create_task(probe())
    before = await asyncio.to_thread(running.router.replace)
    await asyncio.to_thread(before.wait, 20)
    stop.set()
    await probing
    assert answers == {200}


async def test_a_probe_that_has_yet_to_ask_is_answered_by_a_router_that_leaves(running: Cluster) -> None:
    host, _, port = running.admin.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        before = await asyncio.to_thread(running.router.replace)
        await until(lambda: "router_stopping" in said(running.router), "it leaves", timeout=20)
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(-1), 10)  # which is the last
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert b"connection: close" in answer.lower()
    assert await asyncio.to_thread(before.wait, 20) == 0


async def test_a_successor_that_cannot_start_changes_nothing(world: RouterWorld, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    config.write_text("router:\n  workers: 1\n")
    node = await world.node()
    router = await (await world.router("--config", str(config), "--node", node.address)).ready()
    config.write_text("router:\n  wrokers: 1\n")
    router.proc.signal(signal.SIGUSR2)
    await until(lambda: "successor_failed" in router.proc.output(), "it is seen to fail", timeout=20)
    assert (await router.get("/readyz"))[0] == 200
    config.write_text("router:\n  workers: 1\n  access_log_size: 100\n")
    before = await asyncio.to_thread(router.proc.replace)
    assert await asyncio.to_thread(before.wait, 20) == 0
    assert (await router.get("/readyz"))[0] == 200


async def test_a_new_configuration_may_change_the_number_of_workers(world: RouterWorld, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    node = await world.node()
    config.write_text("router:\n  workers: 1\n")
    one = await (await world.router("--config", str(config), "--node", node.address)).ready()
    for workers in (3, 2, 1):
        config.write_text(f"router:\n  workers: {workers}\n")
        before = await asyncio.to_thread(one.proc.replace)
        assert await asyncio.to_thread(before.wait, 30) == 0
        assert await one.metric("laya_router_workers") == workers
        await one.ready()
        for _ in range(6):
            node.chunks.put_nowait("text")
            node.chunks.put_nowait("")
            call = one.inference.Generate(pb.GenerateRequest(model="m", text="hi"), timeout=10)
            assert [answer.text async for answer in call] == ["text"]


async def test_a_router_that_another_process_keeps_is_not_replaced(world: RouterWorld) -> None:
    router = await world.router(env={"LAYA_KEPT_BY": "laya up"})
    router.proc.signal(signal.SIGUSR2)
    await until(lambda: "successor_refused" in router.proc.output(), "it says why")
    assert "laya up" in router.proc.output()
    assert router.proc.popen.poll() is None


async def test_an_end_that_is_asked_for_while_a_successor_starts_is_the_end_of_both(world: RouterWorld) -> None:
    router = await world.router()
    router.proc.signal(signal.SIGUSR2)
    await until(lambda: "successor_starting" in router.proc.output(), "it starts one")
    router.proc.signal(signal.SIGTERM)
    assert await asyncio.to_thread(router.proc.popen.wait, 20) == 0
    with pytest.raises(OSError):
        await asyncio.open_connection(*router.public.split(":"))


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_successor_that_meets_no_node_takes_no_request(tmp_path: Path, workers: int) -> None:
    token = tmp_path / "router.yaml"
    token.write_text("server:\n  cluster_token: test-cluster-token\n")
    with cluster(Spec(nodes=1)) as c:
        argv = ["router_node.main", "--port", "0", "--admin-port", "0", "--workers", str(workers)]
        argv += ["--config", str(token), "--node", c.nodes[0].address]
        c.router.stop()
        c.router = Proc("router", argv)
        c.wait_ready(1)
        token.write_text("server:\n  cluster_token: another-cluster-token\n")
        load = Load([c.address], clients=4, seed=5, pause=0.02, tries=1)
        load.tally = tally = Tally("a successor without nodes")
        load.start()
        c.router.signal(signal.SIGUSR2)
        await until(lambda: "successor_waits" in said(c.router), "it says that it waits", timeout=30)
        await until(lambda seen=tally.sent: tally.sent > seen + 30, "requests go on", timeout=30)
        token.write_text("server:\n  cluster_token: test-cluster-token\n")
        os.kill(started(c.router), signal.SIGKILL)
        await until(lambda: "successor_failed" in said(c.router), "it is seen to end", timeout=30)
        before = await asyncio.to_thread(c.router.replace)
        await until(lambda seen=tally.sent: tally.sent > seen + 30, "requests go on", timeout=30)
        await load.stop()
        assert tally.succeeded == tally.sent, (dict(tally.reasons), tally.examples)
        assert await asyncio.to_thread(before.wait, 30) == 0


async def test_one_that_is_killed_while_it_starts_costs_nothing_however_often(running: Cluster) -> None:
    load = Load([running.address], clients=4, seed=7, pause=0.02, tries=1)
    load.tally = tally = Tally("successors killed")
    load.start()
    router = running.router
    files = len(os.listdir(f"/proc/{router.popen.pid}/fd"))
    for turn in range(1, 4):
        router.signal(signal.SIGUSR2)
        await until(lambda n=turn: said(router).count("successor_starting") >= n, "one starts", timeout=20)
        os.kill(started(router), signal.SIGKILL)
        await until(lambda n=turn: said(router).count("successor_failed") >= n, "it is seen to end", timeout=20)
    router.signal(signal.SIGUSR2)
    await until(lambda: said(router).count("successor_starting") > 3, "one starts", timeout=20)
    before = await asyncio.to_thread(router.replace)  # which says it again, to no avail
    await until(lambda seen=tally.sent: tally.sent > seen + 30, "requests go on", timeout=30)
    await load.stop()
    assert tally.succeeded == tally.sent, (dict(tally.reasons), tally.examples)
    assert await asyncio.to_thread(before.wait, 30) == 0
    assert said(router).count("successor_starting") == 4
    assert len(os.listdir(f"/proc/{router.popen.pid}/fd")) <= files + 16


async def test_a_router_without_descriptors_goes_on_and_is_replaced_later(running: Cluster) -> None:
    router = running.router
    limits.deny_files(router.popen.pid)
    router.signal(signal.SIGUSR2)
    await until(lambda: "successor_failed" in said(router), "it cannot start one", timeout=20)
    assert router.popen.poll() is None
    limits.allow_files(router.popen.pid)
    before = await asyncio.to_thread(router.replace)
    assert await asyncio.to_thread(before.wait, 30) == 0
