"""The SDK against a real router and simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.client import LayaClient
from shared.errors import Code, LayaError
from tests.support.ports import until
from tests.support.processes import Cluster, cluster


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as c:
        yield c


@pytest.fixture
async def client(running: Cluster):
    async with LayaClient(running.address, timeout=30) as c:
        yield c


async def test_a_streamed_completion_is_the_completion_in_pieces(client: LayaClient) -> None:
    pieces = [t async for t in client.generate("one two three", max_tokens=20, seed=7)]
    whole = await client.complete("one two three", max_tokens=20, seed=7)
    assert len(pieces) > 1
    assert "".join(map(str, pieces)) == whole.text
    assert whole.engine == "sim"
    last = pieces[-1]
    assert last.finish_reason == "length"
    assert last.usage is not None and last.usage.completion_tokens == 20
    assert last.timings is not None and 0 < last.timings.ttft <= last.timings.total


async def test_chat_answers_a_question_and_counts_its_prompt(client: LayaClient) -> None:
    tokens = [t async for t in client.chat("Who are you?", max_tokens=8)]
    assert "".join(map(str, tokens))
    assert tokens[-1].usage is not None and tokens[-1].usage.prompt_tokens > 0


async def test_n_completions_come_by_index(client: LayaClient) -> None:
    answer = await client.complete("a b c", max_tokens=5, n=3)
    assert len(answer.texts) == 3


async def test_embeddings_and_models(client: LayaClient) -> None:
    vectors = await client.embed(["a", "b"])
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 0
    models = await client.models()
    assert [m.engine for m in models] == ["sim"]


async def test_leaving_the_loop_cancels_on_the_node(client: LayaClient, running: Cluster) -> None:
    stream = client.generate("cancel me", max_tokens=4000, ignore_eos=True)
    async for _ in stream:
        break
    await stream.aclose()
    await until(lambda: running.metric("laya_router_requests_in_flight") == 0, "nothing in flight")
    from tests.support.processes import fetch, metric

    node = f"http://{running.nodes[0].address}/metrics"
    await until(lambda: metric(fetch(node), "laya_node_running_requests") == 0, "nothing runs on the node")
    assert metric(fetch(node), "laya_node_kv_held_tokens") == 0


async def test_an_unknown_model_is_not_found_and_names_those_there_are(client: LayaClient) -> None:
    with pytest.raises(LayaError) as caught:
        await client.complete("x", model="nope")
    assert caught.value.code == Code.NOT_FOUND
    assert caught.value.reason == "MODEL_NOT_FOUND"
    assert "sim" in caught.value.message


async def test_a_deadline_ends_the_call(client: LayaClient) -> None:
    with pytest.raises(LayaError) as caught:
        async for _ in client.generate("slow", max_tokens=4000, ignore_eos=True, timeout=0.3):
            pass
    assert caught.value.code == Code.DEADLINE_EXCEEDED


async def test_an_unknown_parameter_is_refused_before_anything_is_sent(client: LayaClient) -> None:
    with pytest.raises(TypeError, match="temprature"):
        await client.complete("x", temprature=1)


async def test_nobody_at_the_address_is_unavailable() -> None:
    async with LayaClient("127.0.0.1:1", timeout=5) as c:
        with pytest.raises(LayaError) as caught:
            await c.complete("x")
    assert caught.value.code == Code.UNAVAILABLE
