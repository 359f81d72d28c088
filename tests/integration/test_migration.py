"""Streams through a real router whose nodes die, drain and refuse under them: the client sees whole, exact answers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import httpx
import pytest

from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.grpc_errors import metadata_of, reason
from tests.support.journal_node import DONE, FINE, Fate, JournalNode, body, text
from tests.support.ports import until
from tests.support.router import Router

pytestmark = pytest.mark.integration

TOKENS = 12
ENDS = ("kill", "reset", "goaway", "drain", "half")


class World:
    """Three nodes of one model and one script, and a router before them."""

    def __init__(self) -> None:
        self.script: deque[Fate] = deque()
        self.nodes: list[JournalNode] = []
        self.router: Router | None = None

    async def node(self, revision: str = "") -> JournalNode:
        made = JournalNode(f"j{len(self.nodes)}", self.script, 1000 + len(self.nodes), revision)
        await made.start()
        self.nodes.append(made)
        return made

    async def start(self, *flags: str, env: dict[str, str] | None = None) -> Router:
        addresses = [flag for node in self.nodes for flag in ("--node", node.address)]
        self.router = Router(*addresses, *flags, env=env)
        await self.router.start()
        return await self.router.ready(len(self.nodes))

    async def close(self) -> None:
        if self.router is not None:
            await self.router.stop()
            assert "Traceback" not in self.router.proc.output()
        for node in self.nodes:
            await node.stop()

    async def rested(self) -> None:
        """All nodes are back, and asked for nothing yet."""
        assert self.router is not None
        await self.router.ready(len(self.nodes))
        for node in self.nodes:
            node.resumes.clear()

    @property
    def resumes(self) -> list[pb.Resume]:
        return [resume for node in self.nodes for resume in node.resumes]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def three(world: World) -> World:
    for _ in range(3):
        await world.node()
    await world.start()
    return world


class Told:
    """What a client was told: the messages, and the metadata before and after them."""

    def __init__(self) -> None:
        self.messages: list[pb.GenerateResponse | pb.ChatResponse] = []
        self.first: dict[str, str] = {}
        self.last: dict[str, str] = {}
        self.error: grpc.aio.AioRpcError | None = None

    @property
    def text(self) -> str:
        return "".join(m.content if isinstance(m, pb.ChatResponse) else m.text for m in self.messages)

    @property
    def ids(self) -> list[int]:
        return [i for m in self.messages for i in m.token_ids]


async def generate(world: World, chat: bool = False, metadata: tuple[tuple[str, str], ...] = ()) -> Told:
    assert world.router is not None
    sampling = pb.SamplingParams(max_tokens=TOKENS)
    told = Told()
    if chat:
        turn = pb.ChatMessage(role="user", content="hi")
        call = world.router.inference.Chat(
            pb.ChatRequest(model="m", messages=[turn], sampling=sampling), timeout=20, metadata=metadata
        )
    else:
        call = world.router.inference.Generate(
            pb.GenerateRequest(model="m", text="hi", sampling=sampling), timeout=20, metadata=metadata
        )
    try:
        async for message in call:
            told.messages.append(message)
    except grpc.aio.AioRpcError as error:
        told.error = error
    told.first = {key: str(value) for key, value in await call.initial_metadata()}
    told.last = {key: str(value) for key, value in await call.trailing_metadata()}
    return told


ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS, "stream": True}


async def events(world: World, **headers: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a streamed answer over HTTP/1.1."""
    assert world.router is not None
    address = world.router.public

    def fetch() -> tuple[dict[str, str], bytes]:
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(ASK), {"content-type": "application/json", **headers}
        )
        answer = connection.getresponse()
        assert answer.status == 200
        data = answer.read()
        connection.close()
        return {name.lower(): value for name, value in answer.getheaders()}, data

    return await asyncio.to_thread(fetch)


@contextlib.asynccontextmanager
async def http2(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client of HTTP/2, with one connection."""
    assert world.router is not None
    async with httpx.AsyncClient(
        http1=False, http2=True, base_url=f"http://{world.router.public}", timeout=20
    ) as client:
        yield client


async def events_h2(client: httpx.AsyncClient) -> tuple[dict[str, str], bytes]:
    """Headers and body of a streamed answer over HTTP/2."""
    async with client.stream("POST", "/v1/chat/completions", json=ASK) as answer:
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        return dict(answer.headers), await answer.aread()


@pytest.mark.parametrize("chat", [False, True])
async def test_a_typed_stream_is_whole_and_exact_however_its_node_ends(three: World, chat: bool) -> None:
    for at, how in enumerate(ENDS):
        await three.rested()
        three.script.append(Fate(how, at + 1))
        told = await generate(three, chat)
        assert told.error is None
        assert (told.text, told.ids) == (text(TOKENS), list(range(TOKENS)))
        assert [bool(m.request_id) for m in told.messages] == [True] + [False] * (TOKENS - 1)
        assert told.messages[-1].usage.completion_tokens == TOKENS
        assert told.first["laya-migratable"] == "1"
        moved = dict(pair.split("=") for pair in told.last["laya-migrated"].split(" "))
        assert moved["from"] == told.first["laya-node"] != moved["to"]
        assert int(moved["stall_ms"]) >= 0
        assert list(three.resumes[-1].token_ids) == list(range(at + 1))


async def test_an_openai_stream_is_byte_for_byte_the_undisturbed_one(three: World) -> None:
    for how in ENDS:
        await three.rested()
        three.script.append(Fate(how, 6))
        headers, data = await events(three)
        assert headers["laya-migratable"] == "1"
        first = next(node for node in three.nodes if node.node_id == headers["laya-node"])
        assert data == body(TOKENS, first.created)
        (resume,) = three.resumes
        assert resume.created == first.created
        assert list(resume.token_ids) == [0, 1, 2, 3]


async def test_over_http2_it_is_too_and_other_streams_of_its_connection_go_on(three: World) -> None:
    async with http2(three) as client:
        for how in ENDS:
            await three.rested()
            three.script.append(Fate(how, 6))
            answers = await asyncio.gather(*(events_h2(client) for _ in range(4)))
            firsts = [next(n for n in three.nodes if n.node_id == headers["laya-node"]) for headers, _ in answers]
            assert all(headers["laya-migratable"] == "1" for headers, _ in answers)
            assert [data for _, data in answers] == [body(TOKENS, first.created) for first in firsts]
            assert list(three.resumes[0].token_ids) == [0, 1, 2, 3]


async def test_over_http2_too_a_stream_that_cannot_go_on_ends_with_an_error_event(world: World) -> None:
    await world.node()
    await world.start()
    world.script.append(Fate("kill", 6))
    async with http2(world) as client:
        _, data = await events_h2(client)
    last = json.loads(data.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
    assert last["code"] == "node_lost" and "no other node" in last["message"]
    assert data.startswith(body(TOKENS, world.nodes[0].created)[: data.rfind(b"data: ")]) and DONE not in data


async def test_two_nodes_may_end_in_one_stream(three: World) -> None:
    for first, second in (("kill", "kill"), ("drain", "reset"), ("half", "goaway")):
        await three.rested()
        three.script.extend((Fate(first, 3), Fate(second, 4)))
        told = await generate(three)
        assert told.text == text(TOKENS)
        assert told.last["laya-migrated"].count("from=") == 2
        await three.rested()
        three.script.extend((Fate(first, 3), Fate(second, 4)))
        data = (await events(three))[1]
        assert data in [body(TOKENS, node.created) for node in three.nodes]


async def test_a_node_that_ends_after_the_last_message_is_not_missed(three: World) -> None:
    three.script.append(Fate("kill", TOKENS))
    told = await generate(three)
    assert (told.text, told.error) == (text(TOKENS), None)
    await three.rested()
    three.script.append(Fate("kill", TOKENS + 5))
    data = (await events(three))[1]
    assert data.endswith(DONE)
    assert not three.resumes


async def test_what_one_node_refuses_to_go_on_with_another_one_takes(three: World) -> None:
    three.script.extend((Fate("kill", 3), Fate("refuse"), FINE))
    told = await generate(three)
    assert told.text == text(TOKENS)
    assert [resume.attempt for resume in three.resumes] in ([1, 2], [2, 1])


async def test_metrics_and_log_say_what_happened(three: World) -> None:
    assert three.router is not None
    three.script.append(Fate("kill", 3))
    await generate(three)
    assert await three.router.metric("laya_router_migrations_total", outcome="moved") == 1
    assert await three.router.metric("laya_router_migration_stall_seconds_count") == 1
    await three.router.metric_is("laya_router_journals", 0)
    assert await three.router.metric("laya_router_journal_bytes") == 0
    output = three.router.proc.output
    await until(lambda: " migrated=j" in output() or '"migrated":"j' in output(), "the log says so")


async def test_a_request_that_nodes_die_of_is_refused_after_two(three: World) -> None:
    three.script.extend((Fate("kill", 2), Fate("kill", 0), Fate("kill", 0)))
    told = await generate(three)
    assert told.error is not None
    assert (told.error.code(), reason(told.error)) == (grpc.StatusCode.UNAVAILABLE, "POISONOUS")
    assert told.ids == [0, 1]
    await three.rested()
    again = await generate(three)
    assert again.error is not None and reason(again.error) == "POISONOUS"
    assert three.router is not None
    assert await three.router.metric("laya_router_poisonous_total") == 2
    data = (await events(three))[1]
    assert data.endswith(DONE), "another request is served"


async def test_one_node_alone_ends_its_streams_cleanly_and_says_what_was_delivered(world: World) -> None:
    await world.node()
    await world.start()
    world.script.append(Fate("kill", 4))
    told = await generate(world)
    assert told.error is not None
    assert told.text == text(4)
    assert (told.error.code(), reason(told.error)) == (grpc.StatusCode.UNAVAILABLE, "NODE_LOST")
    said = metadata_of(told.error)
    assert (said["delivered_tokens"], said["delivered_messages"]) == ("4", "4")
    assert "no other node" in said["not_migrated"]
    assert world.router is not None
    await world.router.ready(1)
    world.script.append(Fate("kill", 4))
    data = (await events(world))[1]
    last = json.loads(data.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
    assert last["code"] == "node_lost"
    assert "after 2 tokens" in last["message"] and "no other node" in last["message"]
    assert DONE not in data


async def test_another_revision_is_no_other_node(world: World) -> None:
    await world.node("r1")
    await world.node("r2")
    await world.start()
    world.script.append(Fate("reset", 4))
    told = await generate(world)
    assert told.error is not None and "no other node" in metadata_of(told.error)["not_migrated"]
    assert not world.resumes


async def test_a_client_may_ask_for_none_of_it(three: World) -> None:
    three.script.append(Fate("kill", 4))
    told = await generate(three, metadata=(("laya-no-migrate", "1"),))
    assert told.first["laya-migratable"] == "0; the client said laya-no-migrate"
    assert told.error is not None and reason(told.error) == "NODE_LOST"
    await three.rested()
    three.script.append(Fate("kill", 4))
    headers, data = await events(three, **{"laya-no-migrate": "1"})
    assert headers["laya-migratable"].startswith("0; ")
    assert b"laya-no-migrate" in data
    assert not three.resumes
    # Without its word, a second node would be sent the prompt, and what had been answered.
    await three.rested()
    three.script.append(Fate("kill", 4))
    assert (await generate(three)).text == text(TOKENS)
    assert len(three.resumes) == 1


async def test_a_stream_that_its_node_does_not_grant_ends_with_it(three: World) -> None:
    for grant in (b"0; n is over 1", b""):
        await three.rested()
        three.script.append(Fate("kill", 4, grant))
        told = await generate(three)
        assert told.first.get("laya-migratable", "") == grant.decode()
        assert told.error is not None
        assert metadata_of(told.error).get("not_migrated", "") == grant.decode().removeprefix("0; ")
        assert told.text == text(4)


async def test_a_request_over_the_bound_is_not_migratable_and_says_so(world: World) -> None:
    await world.node()
    await world.node()
    await world.start(env={"LAYA_ROUTER__MIGRATION__MAX_REQUEST_BYTES": "1024"})
    assert world.router is not None
    request = pb.GenerateRequest(model="m", text="x" * 2000, sampling=pb.SamplingParams(max_tokens=3))
    call = world.router.inference.Generate(request, timeout=20)
    assert [m.text async for m in call]
    assert dict(await call.initial_metadata())["laya-migratable"] == "0; the request is over 1024 bytes"


async def test_switched_off_nothing_is_asked_or_moved(world: World) -> None:
    await world.node()
    await world.node()
    await world.start(env={"LAYA_ROUTER__MIGRATION__ENABLED": "false"})
    world.script.append(Fate("kill", 4))
    told = await generate(world)
    assert "laya-migratable" not in told.first
    assert told.error is not None and reason(told.error) == "NODE_LOST"
    assert not world.resumes


async def test_a_stream_without_a_node_for_too_long_is_given_up(world: World) -> None:
    await world.node()
    await world.node()
    await world.start(env={"LAYA_ROUTER__MIGRATION__MAX_STALL": "0.3"})
    world.script.extend((Fate("kill", 4), Fate("hang", 0)))
    told = await generate(world)
    assert told.error is not None and "0.3 s passed" in metadata_of(told.error)["not_migrated"]


async def test_a_node_that_is_alive_and_silent_in_mid_stream_is_left_for_another_one(world: World) -> None:
    for _ in range(3):
        await world.node()
    router = await world.start(env={"LAYA_ROUTER__DEADLINES__BETWEEN_TOKENS": "0.4"})
    world.script.append(Fate("hang", 5))
    told = await generate(world)
    assert (told.error, told.text, told.ids) == (None, text(TOKENS), list(range(TOKENS)))
    assert told.last["laya-migrated"].startswith(f"from={told.first['laya-node']} ")
    await world.rested()
    world.script.append(Fate("hang", 6))
    headers, data = await events(world)
    first = next(node for node in world.nodes if node.node_id == headers["laya-node"])
    assert data == body(TOKENS, first.created)
    assert await router.metric("laya_router_migrations_total", outcome="moved") == 2
    assert await router.metric("laya_router_events_total", event="node_lost") == 0, "its connection stays"


async def test_a_drain_that_migrates_empties_a_node_at_once(three: World) -> None:
    assert three.router is not None
    three.script.append(Fate("hang", 5))
    task = asyncio.create_task(generate(three))
    await until(lambda: any(node._running for node in three.nodes), "a stream runs")
    held = next(node for node in three.nodes if node._running)
    command = [sys.executable, "-m", "shared.cli.main", "drain", held.node_id, "--migrate"]
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--admin", three.router.private], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{held.node_id} drains")
    told = await asyncio.wait_for(task, 10)
    assert told.text == text(TOKENS)
    assert f"from={held.node_id} " in told.last["laya-migrated"]


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(three: World) -> None:
    """What is left would be found when the router stops."""
    assert three.router is not None
    request = pb.GenerateRequest(model="m", text="hi", sampling=pb.SamplingParams(max_tokens=TOKENS))
    for at in range(4):
        await three.rested()
        three.script.clear()
        three.script.extend((Fate("kill", at), Fate("hang", 1)))
        call = three.router.inference.Generate(request, timeout=20)
        seen = 0
        async for _ in call:
            seen += 1
            if seen > at:
                break
        call.cancel()
    await three.router.metric_is("laya_router_journals", 0)
    await three.router.metric_is("laya_router_requests_in_flight", 0)
