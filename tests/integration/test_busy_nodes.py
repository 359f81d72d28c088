"""What a router makes of nodes that live but answer slowly, and of those whose health service says no."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router_node.discovery import link as link_module
from shared.net.api import ClientSink, Headers
from shared.net.fields import CheckedHeaders
from tests.support.discovery import NodeWorld, ask, is_ready, links, state
from tests.support.ports import until

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[NodeWorld]:
    world = NodeWorld()
    yield world
    await world.close()


class Ear(ClientSink):
    """Hears a stream."""

    def __init__(self) -> None:
        self.heard = 0

    def on_request_sent(self, n: int) -> None:
        pass

    def on_response(self, headers: Headers, end: bool) -> None:
        pass

    def on_response_data(self, data: bytes, end: bool) -> None:
        self.heard += len(data)

    def on_response_trailers(self, headers: Headers) -> None:
        pass

    def on_response_closed(self, code: int, unprocessed: bool) -> None:
        pass


async def test_a_busy_node_is_not_declared_dead_and_an_idle_mute_one_is(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SILENCE", 0.4)
    monkeypatch.setattr(link_module, "CALL_TIMEOUT", 0.4)
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    (link,) = links(side)
    ear = Ear()
    opening = CheckedHeaders(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", b"node"),
            (b":path", b"/laya.v1.Inference/Generate"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    stream = link.pool.open(opening, ear, False)
    assert stream is not None
    stream.send(b"\0\0\0\0\0", True)
    node.silent = True  # neither reports nor answers, but its tokens come
    for _ in range(16):
        node.chunks.put_nowait("token")
        await asyncio.sleep(0.1)
        assert state(side) in ("ready", "starting"), link.detail
    assert ear.heard > 0 and ask(side).node.id == "n1"
    node.chunks.put_nowait("")  # and now they stop
    await until(lambda: state(side) == "dark", "a mute node gets nothing new")
    assert "does not answer" in link.detail


async def test_a_health_service_that_says_no_keeps_requests_away(world: NodeWorld) -> None:
    node = await world.node()
    side = await world.router("--node", node.address)
    await until(is_ready(side, "n1"), "the node is ready")
    for _ in range(2):
        await node.say_health(False)
        await until(lambda: not is_ready(side, "n1")(), "it is closed")
        found = side.dispatcher.node("n1")
        assert found is not None and found.state == "closed" and found.live
        await node.say_health(True)
        await until(is_ready(side, "n1"), "it is open again")
    assert ask(side).node.id == "n1"
