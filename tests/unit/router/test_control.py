"""What supervisor and workers say to each other arrives whole, and the end of one is seen by the other."""

from __future__ import annotations

import asyncio
import socket

import pytest

from router_node.admin.counters import RouterMetrics
from router_node.admin.metrics import Snapshot
from router_node.control import (
    Channel,
    ChannelClosed,
    Counted,
    RelayedSource,
    Serving,
    Start,
    TeeSource,
    ToSupervisor,
    ToWorker,
    View,
)
from router_node.discovery.base import Candidate
from router_node.discovery.base import Snapshot as Candidates
from router_node.discovery.static import StaticSource
from shared.config import Config, RouterConfig


async def pair() -> tuple[Channel, Channel]:
    """The supervisor's end and the worker's."""
    one, two = socket.socketpair()
    return await Channel.open(one, ToSupervisor), await Channel.open(two, ToWorker)


async def test_messages_arrive_as_they_were_sent() -> None:
    supervisor, worker = await pair()
    start = Start(Config(router=RouterConfig(nodes=["a:1"])), 3, 8000, "unix:/x", ["static"], [View("static", ())])
    view = View("static", (Candidate("a:1", "n1"), Candidate("b:2")))
    supervisor.send(start)
    supervisor.send(view)
    assert await worker.receive() == start
    assert await worker.receive() == view
    metrics = RouterMetrics()
    metrics.finished("Chat", 0)
    worker.send(Serving("127.0.0.1:8000"))
    worker.send(Counted(metrics.snapshot()))
    assert await supervisor.receive() == Serving("127.0.0.1:8000")
    assert await supervisor.receive() == Counted(metrics.snapshot())
    await supervisor.close()
    await worker.close()


async def test_the_end_of_one_side_is_seen_by_the_other() -> None:
    supervisor, worker = await pair()
    await supervisor.close()
    async with asyncio.timeout(5):
        with pytest.raises(ChannelClosed):
            await worker.receive()
    await worker.close()


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0\0\x03abc", b"\0\0\0\x09tru"])
async def test_what_is_no_message_closes_the_channel(raw: bytes) -> None:
    one, two = socket.socketpair()
    channel = await Channel.open(two, ToWorker)
    one.sendall(raw)
    one.close()
    async with asyncio.timeout(5):
        with pytest.raises(ChannelClosed):
            await channel.receive()
    await channel.close()


async def test_a_side_that_does_not_read_is_given_up() -> None:
    supervisor, worker = await pair()
    big = View("static", tuple(Candidate(f"{i:0200}:1") for i in range(20_000)))
    with pytest.raises(ChannelClosed, match="does not read"):
        for _ in range(100):
            supervisor.send(big)
    await worker.close()
    await supervisor.close()


async def test_a_view_goes_through_to_a_workers_membership() -> None:
    told: list[Candidates] = []
    seen: list[Candidates] = []
    tee = TeeSource(StaticSource(["a:1"]))
    tee.tell = told.append
    await tee.start(seen.append)
    assert told == seen == [tee.last] == [(Candidate("a:1"),)]
    relayed = RelayedSource("static")
    arrived: list[Candidates] = []
    await relayed.start(arrived.append)
    assert not relayed.health().up
    relayed.take(View("static", told[0]))
    assert arrived == told and relayed.health().up
    await relayed.close()
    relayed.take(View("static", ()))
    assert arrived == told


def test_an_empty_snapshot_is_small() -> None:
    import msgspec

    assert len(msgspec.json.encode(Snapshot())) < 600
