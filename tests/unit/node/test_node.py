"""The node as routers and operators see it: describe, watch, drain, the token on every method."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from shared.config.schema import ConfigError
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2, node_pb2, openai_pb2
from tests.support.ports import until
from tests.unit.node.harness import SLOW, config, running


def generate(tokens: Any = 5) -> Any:
    sampling = inference_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True)
    return inference_pb2.GenerateRequest(text="hello", sampling=sampling)


async def test_describe_says_what_the_node_is():
    conf = config(aliases=["b"], max_seq_len=2048, max_num_seqs=3, default_max_tokens=77, node_id="n-1")
    async with running(conf) as (node, client):
        answer = await client.unary("describe", node_pb2.DescribeRequest())
        assert (answer.node_id, answer.boot_id, answer.ready) == ("n-1", node.state.boot_id, True)
        assert (answer.model.name, list(answer.model.aliases), answer.model.engine) == ("demo", ["b"], "sim")
        assert (answer.model.max_seq_len, answer.max_num_seqs, answer.default_max_tokens) == (2048, 3, 77)
        assert (answer.kv_capacity_tokens, answer.kv_block_tokens, answer.protocol) == (524_288, 16, 1)


async def test_a_node_that_loads_describes_itself_as_not_ready():
    async with running(serve=False) as (_, client):
        answer = await client.unary("describe", node_pb2.DescribeRequest())
        assert not answer.ready and answer.model.name == "demo" and answer.kv_capacity_tokens == 0


async def test_a_watch_lists_a_dispatch_once_with_its_hold_and_frees_it_at_the_end():
    async with running(config(SLOW)) as (_, client):
        async with contextlib.aclosing(
            client.stream("watch", node_pb2.WatchRequest(watcher_id="w1"), timeout=30)
        ) as reports:
            first = await anext(reports)
            assert first.full and not first.counted_dispatches and first.headroom_tokens == first.kv_capacity_tokens
            task = asyncio.create_task(
                client.collect("generate", generate(12_000), [(b"laya-dispatch", b"w1-1")], timeout=30)
            )
            report = await anext(reports)
            while not report.counted_dispatches:
                report = await anext(reports)
            assert list(report.counted_dispatches) == ["w1-1"]
            assert report.headroom_tokens <= report.kv_capacity_tokens - 12_000
            assert report.running == 1
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            while report.headroom_tokens != report.kv_capacity_tokens:
                report = await anext(reports)
                assert not report.counted_dispatches
        again = client.stream("watch", node_pb2.WatchRequest(watcher_id="w1"))
        async with contextlib.aclosing(again) as reports:
            report = await anext(reports)
            assert report.full and not report.counted_dispatches


async def test_a_waiting_request_is_counted_in_the_queue():
    conf = config(SLOW.__class__(kv_tokens=160, decode_base_ms=20.0), max_queue_seconds=5.0)
    async with running(conf) as (node, client):
        tasks = [
            asyncio.create_task(client.collect("generate", generate(100), [(b"laya-dispatch", b"w1-%d" % i)]))
            for i in range(2)
        ]
        await until(lambda: node.state.serving.admission.waiting == 1, "one waits")
        async with contextlib.aclosing(client.stream("watch", node_pb2.WatchRequest(watcher_id="w1"))) as reports:
            report = await anext(reports)
        assert sorted(report.counted_dispatches) == ["w1-0", "w1-1"]
        assert (report.running, report.waiting) == (1, 1) and report.queued_prefill_tokens > 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_refused_request_was_never_counted():
    async with running() as (node, client):
        counted: list[str] = []
        node.reporter.count = counted.append  # type: ignore[method-assign, assignment]
        with pytest.raises(LayaError):
            await client.collect("generate", generate(100_000), [(b"laya-dispatch", b"w1-1")])
        assert counted == []


async def test_watches_that_end_are_forgotten():
    async with running() as (node, client):
        async with contextlib.aclosing(client.stream("watch", node_pb2.WatchRequest(watcher_id="w1"))) as reports:
            await anext(reports)
            assert node.reporter.watches == 1
        await until(lambda: node.reporter.watches == 0, "the watch is gone")
        with pytest.raises(LayaError, match="watcher_id"):
            await client.collect("watch", node_pb2.WatchRequest())


async def test_drain_finishes_what_runs_takes_nothing_new_and_can_be_undone():
    async with running(config(SLOW)) as (node, client):
        running_one = asyncio.create_task(client.collect("generate", generate(10)))
        await until(lambda: node.state.serving.admission.running == 1, "it runs")
        answer = await client.unary("drain", node_pb2.DrainRequest())
        assert (answer.draining, answer.running) == (True, 1)
        with pytest.raises(LayaError, match="draining") as e:
            await client.collect("generate", generate())
        assert (e.value.code, e.value.reason) == (Code.UNAVAILABLE, "DRAINING")
        assert sum(len(a.token_ids) for a in await running_one) == 10
        assert not (await client.unary("describe", node_pb2.DescribeRequest())).ready
        assert not (await client.unary("drain", node_pb2.DrainRequest(undo=True))).draining
        await client.collect("generate", generate())


async def test_drain_cuts_off_what_does_not_finish_in_time():
    async with running(config(SLOW)) as (node, client):
        endless = asyncio.create_task(client.collect("generate", generate(10_000), timeout=60))
        await until(lambda: node.state.serving.admission.running == 1, "it runs")
        await client.unary("drain", node_pb2.DrainRequest(grace_seconds=0.05))
        with pytest.raises(LayaError) as e:
            await endless
        assert e.value.code == Code.UNAVAILABLE
        await asyncio.wait_for(node.drainer.finished(), 5)


@pytest.mark.parametrize("grace", [-1.0, float("nan"), 1e9])
async def test_a_senseless_grace_is_refused(grace):
    async with running() as (node, client):
        with pytest.raises(LayaError, match="grace_seconds"):
            await client.unary("drain", node_pb2.DrainRequest(grace_seconds=grace))
        assert not node.state.draining


_CALLS = {
    "generate": generate(),
    "complete": inference_pb2.CompleteRequest(),
    "chat": inference_pb2.ChatRequest(),
    "embed": inference_pb2.EmbedRequest(),
    "list_models": inference_pb2.ListModelsRequest(),
    "openai": openai_pb2.HttpRequest(),
    "describe": node_pb2.DescribeRequest(),
    "watch": node_pb2.WatchRequest(watcher_id="w"),
    "drain": node_pb2.DrainRequest(),
}


async def test_every_method_wants_the_cluster_token():
    async with running(config(server={"cluster_token": "s3cret"})) as (node, client):
        for name, request in _CALLS.items():
            for metadata in ([], [(b"laya-cluster-token", b"wrong")]):
                with pytest.raises(LayaError) as e:
                    await client.collect(name, request, metadata)
                assert (e.value.code, e.value.reason) == (Code.UNAUTHENTICATED, "CLUSTER_TOKEN_INVALID"), name
        assert not node.state.draining
        token = [(b"laya-cluster-token", b"s3cret")]
        assert (await client.unary("describe", node_pb2.DescribeRequest(), token)).ready


async def test_an_unknown_method_is_unimplemented_and_named():
    from shared.net import grpc_client

    async with running() as (_, client):
        with pytest.raises(LayaError, match=r"/laya\.v1\.Nothing/Here") as e:
            await grpc_client.unary(client.pool, b"/laya.v1.Nothing/Here", b"", node_pb2.DrainResponse, None, 5)
        assert e.value.code == Code.UNIMPLEMENTED


async def test_a_bad_node_id_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"inference\.node_id"):
        async with running(config(node_id="no spaces here")):
            pass
