"""Clients that we did not write: each makes unary and streamed calls through a router to simulated nodes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from shared.net.grpc_wire import Deframer, frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import npm
from tests.support.calls import ask, stub_of
from tests.support.processes import ROOT, Cluster, Spec, cluster, metric

SCRIPTS = ROOT / "tests" / "support" / "interop"
CHAT = "/v1/chat/completions"
GENERATE = "/laya.v1.Inference/Generate"
COMPLETE = "/laya.v1.Inference/Complete"
TEXT_OF_12 = 12  # tokens asked for where a text is compared


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def running(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A router and two nodes, with each HTTP/2 engine in all of them."""
    engine = {"LAYA_ROUTER__HTTP2_ENGINE": str(request.param)}
    with cluster(Spec(nodes=2, router=engine, node=engine)) as c:
        yield c


@pytest.fixture(autouse=True)
async def nothing_is_left(running: Cluster) -> AsyncIterator[None]:
    """After each test the router is at rest, and no connection ended for a reason that is not a client's."""
    yield
    for _ in range(200):
        text = running.metrics()
        if not any(metric(text, f"laya_router_{name}") for name in ("requests_in_flight", "reservations")):
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the router is not at rest")
    for reason in ("protocol_error", "engine_error", "owner_fault", "flood", "reset_flood", "window_lost"):
        assert metric(text, "laya_router_net_ends_total", reason=reason) == 0, reason


def body_file(folder: Path, *, stream: bool = False, tokens: int = 3) -> Path:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream}
    path = folder / f"chat-{stream}-{tokens}.json"
    path.write_text(json.dumps(body))
    return path


def grpc_file(folder: Path, message: Any) -> Path:
    path = folder / f"{type(message).__name__}.grpc"
    path.write_bytes(frame(message.SerializeToString()))
    return path


def tool(*argv: str, env: dict[str, str] | None = None, timeout: float = 40.0) -> str:
    """Output of a program that must succeed."""
    assert shutil.which(argv[0]), f"{argv[0]} is not on this machine; .ci/run lists the packages that these tests use"
    done = subprocess.run(argv, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def completed(running: Cluster) -> float:
    """Requests that the router has seen end well."""
    text = running.metrics()
    return sum(metric(text, "laya_router_requests_total", code=code) for code in ("OK", "200"))


# gRPC.


def test_grpcio_in_threads(running: Cluster) -> None:
    with grpc.insecure_channel(running.address) as channel:
        stub = stub_of(channel)
        whole = stub.Complete(pb.CompleteRequest(request=ask(TEXT_OF_12)), timeout=20)
        pieces = list(stub.Generate(ask(TEXT_OF_12), timeout=20))
        assert whole.completions[0].text == "".join(piece.text for piece in pieces)
        assert len(pieces) > 1
        with pytest.raises(grpc.RpcError) as caught:
            stub.Complete(pb.CompleteRequest(request=pb.GenerateRequest(model="nope", text="x")), timeout=20)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        futures = [stub.Complete.future(pb.CompleteRequest(request=ask(2)), timeout=20) for _ in range(50)]
        assert all(future.result().completions for future in futures)


async def test_grpcio_on_asyncio(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = stub_of(channel)
        whole = await stub.Complete(pb.CompleteRequest(request=ask(TEXT_OF_12)), timeout=20)
        text = "".join([piece.text async for piece in stub.Generate(ask(TEXT_OF_12), timeout=20)])
        assert whole.completions[0].text == text

        async def one() -> int:
            return sum([len(piece.token_ids) async for piece in stub.Generate(ask(5), timeout=20)])

        assert await asyncio.gather(*(one() for _ in range(50))) == [5] * 50
        stream = stub.Generate(ask(4000))
        await stream.read()
        stream.cancel()


def test_grpc_js(running: Cluster) -> None:
    folder = npm.installed({"@grpc/grpc-js": "1.14.7", "@grpc/proto-loader": "0.8.1"})
    heard = npm.run(SCRIPTS / "grpc_js.cjs", folder, running.address, str(ROOT / "protos"))
    assert heard["models"] == ["sim"]
    assert heard["complete"]["code"] == heard["generate"]["code"] == heard["chat"]["code"] == 0
    assert heard["complete"]["text"] == heard["generate"]["text"] != ""
    assert heard["complete"]["node"].startswith("node-")
    assert heard["generate"]["messages"] > 1 and heard["chat"]["messages"] > 0
    assert heard["unknown"]["code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert heard["unknown"]["bin"] and "sim" in heard["unknown"]["details"]
    assert heard["late"]["code"] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0] and heard["late"]["messages"] > 0
    assert heard["cancelled"]["code"] == grpc.StatusCode.CANCELLED.value[0]
    assert heard["many"] == [0] * 40 and heard["large"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_h2load_makes_grpc_calls(running: Cluster, tmp_path: Path, stream: bool) -> None:
    message = ask(3) if stream else pb.CompleteRequest(request=ask(3))
    before = completed(running)
    out = tool(
        *("h2load", "-n", "300", "-c", "4", "-m", "8", "-d", str(grpc_file(tmp_path, message))),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),
        f"http://{running.address}{GENERATE if stream else COMPLETE}",
    )
    assert "300 succeeded, 0 failed, 0 errored" in out, out
    assert completed(running) - before == 300


@pytest.mark.parametrize("stream", [False, True])
def test_nghttp_makes_a_grpc_call(running: Cluster, tmp_path: Path, stream: bool) -> None:
    message = ask(TEXT_OF_12) if stream else pb.CompleteRequest(request=ask(TEXT_OF_12))
    url = f"http://{running.address}{GENERATE if stream else COMPLETE}"
    fields = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    done = subprocess.run(
        ["nghttp", "-d", str(grpc_file(tmp_path, message)), *fields, url],
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    messages = Deframer(1 << 20).feed(done.stdout)
    if stream:
        got = sum(len(pb.GenerateResponse.FromString(one).token_ids) for one in messages)
        assert len(messages) > 1 and got == TEXT_OF_12
    else:
        assert pb.CompleteResponse.FromString(messages[0]).completions[0].text


# HTTP.


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_curl(running: Cluster, tmp_path: Path, version: str) -> None:
    url = f"http://{running.address}"
    shown = "\n%{http_version} %{http_code}"
    protocol = "1.1" if version == "--http1.1" else "2"
    send = ["curl", "-sS", "-N", "--max-time", "20", version, "-w", shown, "-H", "content-type: application/json"]
    body, _, last = tool(*send, f"{url}/v1/models").rpartition("\n")
    assert (last, json.loads(body)["data"][0]["id"]) == (f"{protocol} 200", "sim")
    whole = tool(*send, "-d", f"@{body_file(tmp_path, tokens=8)}", url + CHAT)
    text = json.loads(whole.rpartition("\n")[0])["choices"][0]["message"]["content"]
    streamed = tool(*send, "-d", f"@{body_file(tmp_path, stream=True, tokens=8)}", url + CHAT)
    events = [line[6:] for line in streamed.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events) == text != ""
    assert streamed.endswith(f"{protocol} 200")
    assert tool(*send, "-d", '{"model":"nope","messages":[]}', url + CHAT).endswith(f"{protocol} 404")


@pytest.mark.parametrize("stream", [False, True])
def test_nghttp_and_h2load_make_http_calls(running: Cluster, tmp_path: Path, stream: bool) -> None:
    body = str(body_file(tmp_path, stream=stream))
    where = ["-H", "content-type: application/json", f"http://{running.address}{CHAT}"]
    one = tool("nghttp", "-d", body, *where)
    assert one.rstrip().endswith("data: [DONE]") if stream else json.loads(one)["choices"]
    before = completed(running)
    out = tool("h2load", "-n", "200", "-c", "4", "-m", "5", "-d", body, *where)
    assert "200 succeeded, 0 failed, 0 errored" in out, out
    assert completed(running) - before == 200


@pytest.mark.parametrize("stream", [False, True])
def test_h2load_speaks_http_1_too(running: Cluster, tmp_path: Path, stream: bool) -> None:
    out = tool(
        *("h2load", "--h1", "-n", "100", "-c", "4", "-d", str(body_file(tmp_path, stream=stream))),
        *("-H", "content-type: application/json", f"http://{running.address}{CHAT}"),
    )
    assert "100 succeeded, 0 failed, 0 errored" in out, out


@pytest.mark.parametrize("stream", [False, True])
def test_wrk(running: Cluster, stream: bool) -> None:
    out = tool(
        *("wrk", "-t", "1", "-c", "8", "-d", "1s", "--timeout", "10s", "-s", str(SCRIPTS / "chat.lua")),
        f"http://{running.address}{CHAT}",
        env={"STREAM": str(int(stream))},
    )
    found = re.search(r"RESULT requests=(\d+) whole=(\d+) errors=(\d+)", out)
    assert found is not None, out
    requests, whole, errors = map(int, found.groups())
    assert errors == 0 and requests > 8 and whole == requests, out


@pytest.mark.parametrize("stream", [False, True])
def test_hey(running: Cluster, tmp_path: Path, stream: bool) -> None:
    out = tool(
        *("hey", "-n", "100", "-c", "5", "-m", "POST", "-T", "application/json"),
        *("-D", str(body_file(tmp_path, stream=stream)), f"http://{running.address}{CHAT}"),
    )
    assert re.search(r"\[200\]\s+100 responses", out), out
    assert "Error distribution" not in out, out


def test_openai_for_python_in_threads(running: Cluster) -> None:
    with openai.OpenAI(base_url=f"http://{running.address}/v1", api_key="unused", max_retries=0, timeout=20) as client:
        make = client.chat.completions.create
        asked: list[Any] = [{"role": "user", "content": "tell me"}]
        whole = make(model="sim", messages=asked, max_tokens=12, seed=3)
        chunks = list(make(model="sim", messages=asked, max_tokens=12, seed=3, stream=True))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert len(chunks) > 2


async def test_openai_for_python_on_asyncio(running: Cluster) -> None:
    url = f"http://{running.address}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20) as client:

        async def one(stream: bool) -> int:
            done: Any = await client.completions.create(model="sim", prompt="x", max_tokens=4, stream=stream)
            return len([chunk async for chunk in done]) if stream else done.usage.completion_tokens

        counts = await asyncio.gather(*(one(i % 2 == 1) for i in range(30)))
        assert counts[::2] == [4] * 15 and min(counts) > 1


def test_openai_for_node(running: Cluster) -> None:
    folder = npm.installed({"openai": "6.30.1"})
    heard = npm.run(SCRIPTS / "openai_js.cjs", folder, f"http://{running.address}/v1")
    assert heard["models"] == ["sim"]
    assert heard["chat"]["text"] == heard["streamed"]["text"] != ""
    assert heard["chat"]["finish"] == heard["streamed"]["finish"] == "length"
    assert heard["completion"]["chunks"] > 1
    assert heard["unknown"] == {"status": 404, "kind": "NotFoundError"}
    assert heard["many"] == [True] * 20
