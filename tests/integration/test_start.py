"""A router that starts is as able as one that has run for long: nobody is told that a model is unknown."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.discovery import register
from tests.support.grpc_errors import reason
from tests.support.ports import free_port
from tests.support.router import RouterWorld
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    world = RouterWorld()
    yield world
    await world.close()


async def test_its_first_request_finds_the_nodes_of_the_store(world: RouterWorld, valkey: Valkey) -> None:
    for i in range(3):
        node = await world.node(f"n{i}")
        node.chunks.put_nowait("served")
        node.chunks.put_nowait("")
        await register(valkey, f"n{i}", node.address)
    router = await world.router("--redis", valkey.url)
    call = router.inference.Generate(pb.GenerateRequest(model="m", text="hi"), timeout=10)
    assert (await call.read()).text == "served"


async def test_nodes_that_cannot_be_reached_hold_up_its_start_for_a_moment_only(world: RouterWorld) -> None:
    began = time.monotonic()
    router = await world.router("--node", f"127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 10
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.inference.Complete(pb.CompleteRequest(request=pb.GenerateRequest(model="m")), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE and reason(caught.value) == "NO_NODE"
