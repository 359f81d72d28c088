"""Connections are replaced again and again under load, on both hops, and no call notices."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc
from tests.support.calls import ask
from tests.support.processes import Cluster, Spec, cluster, fetch, metric

AGES = {"LAYA_SERVER__MAX_CONNECTION_AGE": "1", "LAYA_SERVER__MAX_CONNECTION_AGE_GRACE": "20"}
SECONDS = 5.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=2, router=AGES, node=AGES)) as c:
        yield c


async def unary(stub: Any, until: float) -> int:
    done = 0
    while time.monotonic() < until:
        answer = await stub.Complete(pb.CompleteRequest(request=ask(2)), timeout=20)
        assert answer.completions[0].text
        done += 1
    return done


async def streams(stub: Any, until: float) -> int:
    """Streams of about a second each: several times as long as a connection lives."""
    done = 0
    while time.monotonic() < until:
        got = 0
        async for piece in stub.Generate(ask(100), timeout=20):
            got += len(piece.token_ids)
        assert got == 100
        done += 1
    return done


async def chats(client: httpx.AsyncClient, until: float) -> int:
    done = 0
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    while time.monotonic() < until:
        answer = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        done += 1
    return done


async def test_no_call_fails_while_connections_age_out(running: Cluster) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    until = time.monotonic() + SECONDS
    async with (
        grpc.aio.insecure_channel(running.address, options=options) as one,
        grpc.aio.insecure_channel(running.address, options=options) as two,
        httpx.AsyncClient(base_url=f"http://{running.address}", timeout=20) as client,
    ):
        stubs: list[Any] = [inference_pb2_grpc.InferenceStub(c) for c in (one, two)]  # type: ignore[no-untyped-call]
        work = [
            *(unary(stub, until) for stub in stubs for _ in range(4)),
            *(streams(stub, until) for stub in stubs for _ in range(2)),
            *(chats(client, until) for _ in range(3)),
        ]
        counts = await asyncio.gather(*work)
    assert min(counts) > 1, counts
    text = running.metrics()
    assert metric(text, "laya_router_net_ends_total", reason="max_age") > 2 * SECONDS
    assert metric(text, "laya_router_net_total", event="goaways_received") > SECONDS
    assert metric(text, "laya_router_net_ends_total", reason="max_age_grace") == 0
    assert metric(text, "laya_router_requests_in_flight") == 0
    for node in running.nodes:
        assert metric(fetch(f"http://{node.address}/metrics"), "laya_node_kv_held_tokens") == 0
