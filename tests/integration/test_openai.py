"""The official OpenAI client against a router and simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.ports import until
from tests.support.processes import Cluster, Spec, cluster


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=2)) as c:
        yield c


@pytest.fixture
async def client(running: Cluster):
    async with openai.AsyncOpenAI(base_url=f"http://{running.address}/v1", api_key="unused", max_retries=0) as c:
        yield c


@pytest.fixture
async def model(client: openai.AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


async def test_models_come_from_the_table(client: openai.AsyncOpenAI, model: str) -> None:
    one = await client.models.retrieve(model)
    assert one.id == model
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope")


async def test_chat_streams_what_it_answers_whole(client: openai.AsyncOpenAI, model: str) -> None:
    ask = {"model": model, "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 12, "seed": 3}
    whole = await client.chat.completions.create(**ask)
    stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(c.delta.content or "" for c in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage is not None and usage == whole.usage
    assert whole.choices[0].finish_reason == "length"


async def test_completions_and_embeddings(client: openai.AsyncOpenAI, model: str) -> None:
    done = await client.completions.create(model=model, prompt="once upon", max_tokens=5)
    assert done.usage is not None and done.usage.completion_tokens == 5
    vectors = await client.embeddings.create(model=model, input=["a", "b"], encoding_format="float")
    assert len(vectors.data) == 2


async def test_errors_are_openai_errors_with_the_field(client: openai.AsyncOpenAI, model: str) -> None:
    ask = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(openai.NotFoundError, match="nope"):
        await client.chat.completions.create(model="nope", **ask)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=model, max_tokens=0, **ask)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "word " * 200_000}], max_tokens=5
        )


async def test_a_client_that_leaves_frees_everything(client: openai.AsyncOpenAI, model: str, running: Cluster) -> None:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "x"}], max_tokens=4000, stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: running.metric("laya_router_requests_in_flight") == 0, "nothing in flight")
    await until(lambda: running.metric("laya_router_node_reserved_tokens") == 0, "no reservation is left")
