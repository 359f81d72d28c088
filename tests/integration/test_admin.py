"""What an operator sees and does: Admin, health, reflection, metrics and probes of a running router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from shared.pb.laya.v1 import admin_pb2, admin_pb2_grpc, inference_pb2
from tests.support.grpc_errors import END, reason
from tests.support.ports import eventually, until
from tests.support.router import RouterWorld

pytestmark = pytest.mark.integration

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
READINESS = "laya.v1.Inference"


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with RouterWorld() as world:
        yield world


async def test_list_nodes_shows_what_the_router_thinks_of_each(world: RouterWorld) -> None:
    node, gone = await world.node("n1"), await world.node("n2")
    router = await (await world.router("--node", node.address, "--node", gone.address)).ready(2)
    await gone.stop()
    await node.say(headroom_tokens=1000, running=2)

    async def listed() -> dict[str, admin_pb2.NodeStatus]:
        answer = await router.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=5)
        return {status.node_id: status for status in answer.nodes}

    async def up_to_date() -> bool:
        nodes = await listed()
        return nodes["n2"].state == "dark" and nodes["n1"].report.running == 2

    await eventually(up_to_date, "loss and report are seen")
    nodes = await listed()
    one, two = nodes["n1"], nodes["n2"]
    assert (one.state, one.detail, one.address, one.source) == ("ready", "", node.address, "static")
    assert one.model.name == "m" and one.report.headroom_tokens == 1000 and one.connections >= 1
    assert 0 <= one.report_age_seconds < 5 and one.streams >= 1
    assert two.detail and two.report_age_seconds < 0 and two.connections == 0


async def test_list_routes_and_explain_name_models_and_nodes(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    routes = (await router.admin.ListRoutes(admin_pb2.ListRoutesRequest(), timeout=5)).routes
    assert [(r.name, list(r.models), list(r.node_ids)) for r in routes] == [("m", ["m", "m-alias"], ["n1"])]
    request = admin_pb2.ExplainRequest(model="m-alias", prompt_tokens=100, max_tokens=10, prompt="x" * 2000)
    answer = await router.admin.Explain(request, timeout=5)
    assert answer.node_id == "n1" and answer.summary
    assert [candidate.node_id for candidate in answer.candidates] == ["n1"]
    one = answer.candidates[0]
    assert one.cost_seconds > 0 and one.prefill_rate > 0
    terms = [f.name for f in one.DESCRIPTOR.fields if f.name.endswith("_seconds") and f.name != "cost_seconds"]
    assert sum(getattr(one, name) for name in terms) == pytest.approx(one.cost_seconds)


async def test_explaining_an_unknown_model_is_not_found_with_a_reason(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.admin.Explain(admin_pb2.ExplainRequest(model="none"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert reason(caught.value) == "MODEL_NOT_FOUND"


async def test_a_drain_is_passed_on_to_the_node_and_undone(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    answer = await router.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="n1", grace_seconds=3), timeout=5)
    assert answer.drain.draining and node.drains[0].grace_seconds == 3
    await router.metric_is("laya_router_nodes", 1, state="draining")
    answer = await router.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="n1", undo=True), timeout=5)
    assert not answer.drain.draining
    await router.ready()


async def test_a_drain_that_moves_streams_says_so_to_the_node(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    await router.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="n1", migrate=True), timeout=5)
    assert node.drains[0].migrate
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="n1", migrate=True, undo=True), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_draining_an_unknown_node_names_those_there_are(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.admin.DrainNode(admin_pb2.DrainNodeRequest(node_id="n9"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "n9" in (caught.value.details() or "") and "n1" in (caught.value.details() or "")


@pytest.mark.parametrize("port", ["private", "public"])
async def test_health_follows_readiness(world: RouterWorld, port: str) -> None:
    node = await world.node()
    router = await world.router("--node", node.address)
    stub = health_pb2_grpc.HealthStub(router.channel(getattr(router, port)))
    assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=READINESS), timeout=30)
    seen = [(await watch.read()).status]
    if seen == [NOT_SERVING]:
        seen.append((await watch.read()).status)
    assert seen[-1] == SERVING
    await node.stop()
    assert (await watch.read()).status == NOT_SERVING
    await node.start()
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_a_draining_router_says_not_serving_first(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    inference = router.inference
    call = inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=20)
    node.chunks.put_nowait("one")
    assert (await call.read()).text == "one"
    stub = health_pb2_grpc.HealthStub(router.channel(router.private))
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=READINESS), timeout=30)
    assert (await watch.read()).status == SERVING
    router.proc.popen.terminate()
    assert (await watch.read()).status == NOT_SERVING
    assert (await router.get("/readyz"))[0] == 503
    assert (await router.get("/healthz"))[0] == 200
    node.chunks.put_nowait("two")
    assert (await call.read()).text == "two"
    node.chunks.put_nowait("")
    assert await call.read() is END
    assert await call.code() is grpc.StatusCode.OK
    assert await asyncio.to_thread(router.proc.popen.wait, 10) == 0


async def test_a_second_signal_ends_at_once(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    inference = router.inference
    call = inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=20)
    node.chunks.put_nowait("one")
    assert (await call.read()).text == "one"
    router.proc.popen.terminate()

    async def draining() -> bool:
        return (await router.get("/readyz"))[0] == 503

    await eventually(draining, "the first signal is seen")
    router.proc.popen.terminate()
    assert await asyncio.to_thread(router.proc.popen.wait, 3) == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_reflection_lists_the_services(world: RouterWorld) -> None:
    router = await world.router()

    def services() -> list[str]:
        with grpc.insecure_channel(router.private) as channel:
            return sorted(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert await asyncio.to_thread(services) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "laya.v1.Admin",
        "laya.v1.Inference",
        "laya.v1.OpenAI",
    ]


async def test_admin_is_not_on_the_public_port(world: RouterWorld) -> None:
    router = await world.router()
    stub = admin_pb2_grpc.AdminStub(router.channel(router.public))  # type: ignore[no-untyped-call]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListNodes(admin_pb2.ListNodesRequest(), timeout=5)
    assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
    assert (await router.get("/metrics", router.public))[0] == 404


async def test_probes_tell_alive_from_ready(world: RouterWorld) -> None:
    router = await world.router()
    assert (await router.get("/healthz"))[0] == 200
    status, headers, body = await router.get("/readyz")
    assert status == 503 and headers["content-type"] == "application/json"
    assert json.loads(body) == {"error": "no node is known yet"}


async def test_readiness_names_the_node_that_is_missing(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    assert (await router.get("/readyz"))[0] == 200
    await node.stop()

    async def not_ready() -> bool:
        return (await router.get("/readyz"))[0] == 503

    await eventually(not_ready, "the loss is seen")
    assert "n1 is dark" in json.loads((await router.get("/readyz"))[2])["error"]


async def test_other_paths_and_methods_get_one_sentence(world: RouterWorld) -> None:
    router = await world.router()
    status, _, body = await router.get("/nowhere")
    assert status == 404 and "/metrics" in json.loads(body)["error"]
    assert (await router.get("/metrics", method="POST"))[0] == 405
    status, headers, body = await router.get("/metrics", method="HEAD")
    assert status == 200 and body == b"" and int(headers["content-length"]) > 1000


async def test_metrics_count_requests_by_method_and_code(world: RouterWorld) -> None:
    node = await world.node()
    router = await (await world.router("--node", node.address)).ready()
    inference = router.inference
    for _ in range(2):
        node.chunks.put_nowait("text")
        node.chunks.put_nowait("")
        call = inference.Generate(inference_pb2.GenerateRequest(model="m", text="hi"), timeout=10)
        assert [answer.text async for answer in call] == ["text"]
    with pytest.raises(grpc.aio.AioRpcError):
        await inference.Complete(
            inference_pb2.CompleteRequest(request=inference_pb2.GenerateRequest(model="none", text="hi")), timeout=10
        )
    assert await router.metric("laya_router_requests_total", method="Generate", code="OK") == 2
    assert await router.metric("laya_router_requests_total", method="Complete", code="NOT_FOUND") == 1
    assert await router.metric("laya_router_requests_in_flight") == 0
    assert await router.metric("laya_router_routing_seconds_count") >= 2
    assert await router.metric("laya_router_node_headroom_tokens", node="n1") == 65_536
    assert await router.metric("laya_router_net_total", event="streams_accepted") >= 3
    await until(lambda: node.watching == 1, "one watch")


async def test_admin_beyond_loopback_wants_the_cluster_token(world: RouterWorld) -> None:
    router = await world.router("--admin-host", "0.0.0.0", env={"LAYA_SERVER__CLUSTER_TOKEN": "a-long-secret"})
    address = router.private.replace("0.0.0.0", "127.0.0.1")
    stub = admin_pb2_grpc.AdminStub(router.channel(address))  # type: ignore[no-untyped-call]
    for metadata in ([], [("laya-cluster-token", "wrong")]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListNodes(admin_pb2.ListNodesRequest(), metadata=metadata, timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert reason(caught.value) == "CLUSTER_TOKEN_INVALID"
    given = [("laya-cluster-token", "a-long-secret")]
    assert not (await stub.ListNodes(admin_pb2.ListNodesRequest(), metadata=given, timeout=5)).nodes
    health = health_pb2_grpc.HealthStub(router.channel(address))
    assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == SERVING
