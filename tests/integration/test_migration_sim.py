"""Streams that outlive real nodes: what the client gets is what an undisturbed run gave, token for token."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator

import grpc.aio
import openai
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc
from tests.support.processes import Cluster, Proc, Spec, cluster

pytestmark = pytest.mark.integration

TOKENS = 60
FAST = {"LAYA_SERVER__KEEPALIVE_TIME": "0.5", "LAYA_SERVER__KEEPALIVE_TIMEOUT": "0.5"}
End = Callable[[Cluster, Proc], None]


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster(Spec(nodes=3, router=FAST)) as made:
        yield made


def _node(running: Cluster, node_id: str) -> Proc:
    return running.nodes[int(node_id.removeprefix("node-"))]


def killed(running: Cluster, node: Proc) -> None:
    node.signal(signal.SIGKILL)


def frozen(running: Cluster, node: Proc) -> None:
    node.signal(signal.SIGSTOP)


class Answer:
    """A whole answer: its text, token ids where there are any, and what else must be as undisturbed."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.usage: tuple[int, int] = (0, 0)
        self.finish: object = None
        self.request_ids: set[str] = set()
        self.created: set[int] = set()
        self.moved = ""


async def typed(running: Cluster, chat: bool, ends: dict[int, End]) -> Answer:
    """A stream whose node ends in some way after so many messages."""
    out, count = Answer(), 0
    sampling = pb.SamplingParams(max_tokens=TOKENS, seed=7, temperature=1.0)
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        if chat:
            turn = pb.ChatMessage(role="user", content="tell me a tale")
            call = stub.Chat(pb.ChatRequest(model="sim", messages=[turn], sampling=sampling), timeout=30)
        else:
            call = stub.Generate(pb.GenerateRequest(model="sim", text="once upon", sampling=sampling), timeout=30)
        where = dict(await call.initial_metadata())
        assert where["laya-migratable"] == "1"
        async for message in call:
            out.text += message.content if chat else message.text
            out.ids += message.token_ids
            out.finish = message.finish_reason
            if message.HasField("usage"):
                out.usage = (message.usage.prompt_tokens, message.usage.completion_tokens)
            count += 1
            if count in ends:
                assert len(ends) == 1
                ends[count](running, _node(running, where["laya-node"]))
        out.moved = dict(await call.trailing_metadata()).get("laya-migrated", "")
    return out


async def tunnelled(running: Cluster, ends: dict[int, End]) -> Answer:
    """The same over HTTP."""
    out, count = Answer(), 0
    async with openai.AsyncOpenAI(base_url=f"http://{running.address}/v1", api_key="unused", max_retries=0) as client:
        answer = await client.chat.completions.with_raw_response.create(
            model="sim",
            messages=[{"role": "user", "content": "tell me a tale"}],
            max_tokens=TOKENS,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert answer.headers["laya-migratable"] == "1"
        async for chunk in answer.parse():
            out.request_ids.add(chunk.id)
            out.created.add(chunk.created)
            if chunk.usage is not None:
                out.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                out.text += choice.delta.content or ""
                out.finish = choice.finish_reason or out.finish
            count += 1
            if count in ends:
                ends[count](running, _node(running, answer.headers["laya-node"]))
    return out


@pytest.mark.parametrize("chat", [False, True])
async def test_a_typed_stream_whose_node_is_killed_is_the_undisturbed_one(running: Cluster, chat: bool) -> None:
    whole = await typed(running, chat, {})
    broken = await typed(running, chat, {9: killed})
    assert broken.moved and not whole.moved
    assert (broken.text, broken.ids) == (whole.text, whole.ids)
    assert (broken.usage, broken.finish) == (whole.usage, whole.finish)
    assert whole.usage[1] == len(whole.ids) > 9


async def test_an_openai_stream_whose_node_is_killed_is_the_undisturbed_one(running: Cluster) -> None:
    whole = await tunnelled(running, {})
    broken = await tunnelled(running, {9: killed})
    assert broken.text == whole.text
    assert (broken.usage, broken.finish) == (whole.usage, whole.finish)
    assert len(broken.request_ids) == len(broken.created) == 1
    assert running.metric("laya_router_migrations_total", outcome="moved") == 1


async def test_streams_whose_node_freezes_go_on(running: Cluster) -> None:
    whole = await typed(running, False, {})
    broken = await typed(running, False, {5: frozen})
    assert (broken.text, broken.ids, broken.usage) == (whole.text, whole.ids, whole.usage)
    assert broken.moved
    whole = await tunnelled(running, {})
    broken = await tunnelled(running, {5: frozen})
    assert (broken.text, broken.usage) == (whole.text, whole.usage)


async def test_a_drain_that_migrates_empties_a_node_at_once(running: Cluster) -> None:
    from shared.cli.admin_call import admin_call
    from shared.pb.laya.v1 import admin_pb2

    whole = await typed(running, False, {})
    drains: list[asyncio.Task[object]] = []

    def drain(_: Cluster, node: Proc) -> None:
        request = admin_pb2.DrainNodeRequest(node_id=node.name, migrate=True)
        drains.append(asyncio.ensure_future(admin_call(running.admin, "DrainNode", request)))

    moved = await typed(running, False, {5: drain})
    await asyncio.gather(*drains)
    assert (moved.text, moved.ids, moved.usage) == (whole.text, whole.ids, whole.usage)
    assert "from=node-" in moved.moved
    assert running.metric("laya_router_events_total", event="node_lost") == 0
