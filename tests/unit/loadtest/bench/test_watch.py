"""Pages of servers are read for what a report shows."""

from __future__ import annotations

import asyncio
import os

import pytest

from loadtest.bench.report import NodeSample
from loadtest.bench.watch import Watched, Watcher, family, histograms, means, nodes_of, page, ready_nodes, split, value
from tests.support.ports import free_port

PAGE = """\
# HELP laya_router_nodes Nodes
laya_router_nodes{state="ready"} 2.0
laya_router_nodes{state="dark"} 1.0
laya_router_node_headroom_tokens{node="b"} 900.0
laya_router_node_capacity_tokens{node="b"} 1000.0
laya_router_node_running{node="b"} 3.0
laya_router_node_waiting{node="b"} 1.0
laya_router_node_capacity_tokens{node="a"} 5.0
laya_router_queue_depth 7.0
process_cpu_seconds_total 1.5
process_resident_memory_bytes 6e+07
laya_node_ttft_seconds_bucket{le="0.1",service="chat"} 1.0
laya_node_ttft_seconds_sum{service="chat"} 2.0
laya_node_ttft_seconds_count{service="chat"} 4.0
laya_node_ttft_seconds_sum{service="generate"} 1.0
laya_node_ttft_seconds_count{service="generate"} 2.0
laya_router_stage_seconds_bucket{stage="match",le="1.0"} 1.0
laya_router_stage_seconds_sum{stage="match"} 0.5
laya_router_stage_seconds_count{stage="match"} 5.0
laya_router_stage_seconds_sum{stage="queue"} 3.0
laya_router_stage_seconds_count{stage="queue"} 1.0
"""

HISTOGRAMS = {
    "laya_node_ttft_seconds": (3.0, 6.0),
    "laya_router_stage_seconds, match": (0.5, 5.0),
    "laya_router_stage_seconds, queue": (3.0, 1.0),
}


async def serve(answer: bytes) -> tuple[asyncio.Server, str]:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def whole(text: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text.encode())


def test_nodes_and_figures_of_a_page() -> None:
    assert nodes_of(PAGE) == {"a": NodeSample(0.0, 5.0, 0.0, 0.0), "b": NodeSample(900.0, 1000.0, 3.0, 1.0)}
    assert ready_nodes(PAGE) == 2 and ready_nodes("") == 0
    assert value(PAGE, "laya_router_nodes") == 3.0 and value(PAGE, "missing") == 0.0
    assert histograms(PAGE) == HISTOGRAMS


def test_a_split_is_of_what_came_in_between() -> None:
    before = {"laya_node_ttft_seconds": (5.0, 5.0), "laya_node_request_seconds": (50.0, 5.0)}
    after = {"laya_node_ttft_seconds": (6.0, 10.0), "laya_node_request_seconds": (55.0, 10.0)}
    found = split(before, after, [1.0, 2.0])
    assert (found["prefill"], found["decode"], found["rest"], found["total"]) == (0.2, 0.8, 0.5, 1.5)
    assert split(before, after, []) == split(after, after, [1.0]) == {}


def test_means_are_of_what_came_in_between() -> None:
    assert means({"x": (1.0, 2.0)}, {"x": (4.0, 4.0), "y": (1.0, 4.0)}) == {"x": 1.5, "y": 0.25}
    assert means({"x": (1.0, 2.0)}, {"x": (1.0, 2.0)}) == {}


@pytest.mark.parametrize(
    "answer", [whole("hello"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
async def test_a_page_comes_whole_or_in_chunks(answer: bytes) -> None:
    server, address = await serve(answer)
    async with server:
        assert await page(address) == "hello"


async def test_a_page_that_cannot_be_had_is_an_error() -> None:
    server, address = await serve(b"HTTP/1.1 503 No\r\n\r\n")
    async with server:
        with pytest.raises(OSError, match="answers 503"):
            await page(address)
    with pytest.raises(OSError):
        await page(f"127.0.0.1:{free_port()}")


async def test_a_look_takes_nodes_and_processes() -> None:
    server, address = await serve(whole(PAGE))
    async with server:
        watcher = Watcher(Watched(address, {"bench": os.getpid()}), 0.01)
        sample = await watcher.look()
        assert sample.queue == 7.0 and set(sample.nodes) == {"a", "b"}
        assert sample.processes["router"].rss == 6e7 and sample.processes["bench"].rss > 1e6
        assert await watcher.stages() == HISTOGRAMS


async def test_looks_go_on_when_a_page_is_away() -> None:
    watcher = Watcher(Watched(f"127.0.0.1:{free_port()}", {"bench": os.getpid()}), 0.01)
    watcher.start()
    async with asyncio.timeout(5):
        while len(watcher.samples) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await watcher.stop()
    assert watcher.failures >= 3 and all("bench" in s.processes for s in watcher.samples)


def test_a_family_has_its_head() -> None:
    assert family(os.getpid())[0] == os.getpid()
