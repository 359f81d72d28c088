"""Health and reflection on the node's own port, asked by a real gRPC client."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.unit.node.harness import config, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
READY = health_pb2.HealthCheckRequest(service="laya.v1.Inference")


@contextlib.asynccontextmanager
async def asked(conf=None):
    async with running(conf) as (node, _), grpc.aio.insecure_channel(node.address) as channel:
        yield node, channel


async def services(channel: Any, metadata: Any = ()) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([request]), timeout=5, metadata=metadata)
    answer = [response async for response in call]
    return {service.name for service in answer[0].list_services_response.service}


async def test_health_says_alive_and_ready_at_once_and_lists_both():
    async with asked() as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(READY, timeout=5)).status == SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == SERVING
        listed = await health.List(health_pb2.HealthListRequest(), timeout=5)
        assert {name: s.status for name, s in listed.statuses.items()} == {"": SERVING, "laya.v1.Inference": SERVING}
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=5)
        assert e.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_health_watch_follows_a_drain_and_its_undoing():
    async with asked() as (node, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(READY, timeout=20)
        seen = [(await watch.read()).status]
        node.state.drain()
        seen.append((await asyncio.wait_for(watch.read(), 5)).status)
        node.state.drain(undo=True)
        seen.append((await asyncio.wait_for(watch.read(), 5)).status)
        assert seen == [SERVING, NOT_SERVING, SERVING]
        watch.cancel()


async def test_reflection_names_what_the_port_serves():
    async with asked() as (_, channel):
        assert {"laya.v1.Inference", "laya.v1.OpenAI", "laya.v1.Node", "grpc.health.v1.Health"} <= await services(
            channel
        )


async def test_with_a_token_health_stays_open_to_probes_and_reflection_does_not():
    async with asked(config(server={"cluster_token": "s3cret"})) as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(READY, timeout=5)).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await services(channel)
        assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "laya.v1.Node" in await services(channel, (("laya-cluster-token", "s3cret"),))
