"""API keys on a running router, for gRPC and HTTP callers, from making one to revoking it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router_node.middleware.keys import KeyStore
from shared.pb.laya.v1 import inference_pb2
from tests.support.grpc_errors import reason
from tests.support.ports import eventually
from tests.support.router import Router, RouterWorld

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


async def list_models(router: Router, key: str | None) -> list[str]:
    metadata = [("authorization", f"Bearer {key}")] if key is not None else []
    answer = await router.inference.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata, timeout=5)
    return [model.name for model in answer.models]


async def refusal(router: Router, key: str | None) -> str:
    """The reason with which a caller is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await list_models(router, key)
    error = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert key is None or key not in str(error)
    return reason(error)


async def test_only_those_with_a_key_are_answered(world: RouterWorld, store: KeyStore) -> None:
    _, key = store.add("acme")
    node = await world.node()
    router = await (await world.router("--keys-file", str(store.path), "--node", node.address)).ready()
    assert await list_models(router, key) == ["m"]
    assert await refusal(router, None) == "KEY_MISSING"
    assert await refusal(router, key[:-1] + ("A" if key[-1] != "A" else "B")) == "KEY_INVALID"
    assert await router.metric("laya_router_keys_refused_total") == 2


async def test_an_http_caller_is_refused_in_openais_words(world: RouterWorld, store: KeyStore) -> None:
    _, key = store.add("acme")
    router = await world.router("--keys-file", str(store.path))
    status, headers, body = await router.get("/v1/models", router.public)
    error = json.loads(body)["error"]
    assert status == 401 and headers["content-type"].startswith("application/json")
    assert error["type"] == "authentication_error" and error["code"] == "key_missing" and "Bearer" in error["message"]
    status, _, body = await router.get("/v1/models", router.public, Authorization="Bearer laya-wrong")
    assert status == 401 and json.loads(body)["error"]["code"] == "key_invalid"
    status, _, body = await router.get("/v1/models", router.public, Authorization=f"Bearer {key}")
    assert status == 200 and json.loads(body) == {"object": "list", "data": []}


async def test_probes_need_no_key(world: RouterWorld, store: KeyStore) -> None:
    store.add("acme")
    router = await world.router("--keys-file", str(store.path))
    assert (await router.get("/healthz", router.public))[0] == 200
    assert (await router.get("/readyz", router.public))[0] == 503
    stub = health_pb2_grpc.HealthStub(router.channel(router.public))
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_keys_are_made_and_revoked_while_the_router_runs(world: RouterWorld, store: KeyStore) -> None:
    first, old = store.add("acme")
    router = await world.router("--keys-file", str(store.path))
    _, new = store.add("beta")
    store.revoke(first.id)

    async def new_is_known() -> bool:
        try:
            await list_models(router, new)
        except grpc.aio.AioRpcError:
            return False
        return True

    await eventually(new_is_known, "the new key is valid")
    assert await refusal(router, old) == "KEY_INVALID"


async def test_a_broken_key_file_changes_nothing(world: RouterWorld, store: KeyStore) -> None:
    _, key = store.add("acme")
    router = await world.router("--keys-file", str(store.path))
    store.path.write_text("{broken")
    await router.metric_is("laya_router_key_file_errors_total", 1)
    assert await list_models(router, key) == []
    assert await refusal(router, None) == "KEY_MISSING"
    assert key not in router.proc.output() and router.proc.output().count("keys_not_reloaded") == 1


async def test_a_key_stops_at_the_router(world: RouterWorld, store: KeyStore) -> None:
    _, key = store.add("acme")
    node = await world.node()
    router = await (await world.router("--keys-file", str(store.path), "--node", node.address)).ready()
    node.chunks.put_nowait("")
    call = router.inference.Generate(
        inference_pb2.GenerateRequest(model="m", text="hi"),
        metadata=[("authorization", f"Bearer {key}"), ("laya-tenant", "forged"), ("x-secret", "mine")],
        timeout=10,
    )
    assert [answer async for answer in call] == []
    (metadata,) = node.called_with
    assert "authorization" not in metadata and "x-secret" not in metadata
    assert key not in str(metadata) and metadata["laya-tenant"] == "acme"
