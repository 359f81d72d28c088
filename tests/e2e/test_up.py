"""The promise of the quick start: one command, and a real quantized model answers through the router."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import openai
import pytest

from inference_node.quantize import demo
from shared.client import LayaClient
from tests.faults.load import Load
from tests.faults.real import asks
from tests.faults.tally import Tally
from tests.support.ports import until
from tests.support.processes import fetch, metric
from tests.support.up import Up, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
QUESTION = "What is the capital of France?"
SILENT = 6.0  # seconds after which a node that says nothing is given up
SOON = {"LAYA_SERVER__KEEPALIVE_TIME": "3", "LAYA_SERVER__KEEPALIVE_TIMEOUT": "3"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two vLLM nodes that share the cores, on the demo model from the user's cache (made once if need be)."""
    model = demo.prepare()
    running = Up(tmp_path_factory.mktemp("cache"), "--model", str(model), "--nodes", "2", **SOON)
    with serving(running):
        yield running


def test_the_ready_line_names_address_model_and_engine(up: Up) -> None:
    assert up.ready["engine"] == "vllm"
    assert up.ready["model"] == demo.NAME
    assert up.ready["nodes"] >= 1


def test_the_second_node_joins(up: Up) -> None:
    assert up.event("node_ready")["node"] == "node-2"
    wait_for(lambda: len(json.loads(up.laya("nodes", "--json").stdout)) == 2, "both nodes are in the table")


async def test_grpc_answers_with_real_text(up: Up) -> None:
    async with LayaClient(up.ready["address"], timeout=60) as client:
        pieces = [t async for t in client.chat(QUESTION, max_tokens=16, temperature=0)]
        assert "Paris" in "".join(map(str, pieces))
        assert len(pieces) > 4
        whole = await client.complete("The capital of France is", max_tokens=8, temperature=0)
        assert whole.engine == "vllm" and "Paris" in whole.text


async def test_the_openai_sdk_answers_with_real_text(up: Up) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{up.ready['address']}/v1", api_key="x", max_retries=0) as client:
        ask = {
            "model": demo.NAME,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 16,
            "temperature": 0,
        }
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert "Paris" in text
        assert text == whole.choices[0].message.content


async def test_a_client_that_leaves_stops_the_engine(up: Up) -> None:
    nodes = json.loads(up.laya("nodes", "--json").stdout)

    def running() -> float:
        return sum(metric(fetch(f"http://{n['address']}/metrics"), "laya_node_running_requests") for n in nodes)

    async with LayaClient(up.ready["address"], timeout=60) as client:
        stream = client.generate("Count from one to a thousand: one, two,", max_tokens=2000, ignore_eos=True)
        async for _ in stream:
            break
        await stream.aclose()
        wait_for(lambda: running() == 0, "nothing runs on any node", 10)


def test_an_over_long_prompt_is_one_clear_error(up: Up) -> None:
    done = up.laya("generate", "word " * 20000, "--max-tokens", "4", "--raw")
    assert done.returncode == 5
    assert "context" in done.stderr or "tokens" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_readme_curl_answers(up: Up) -> None:
    body = {"model": demo.NAME, "max_tokens": 16, "messages": [{"role": "user", "content": QUESTION}]}
    url = f"http://{up.ready['address']}/v1/chat/completions"
    done = subprocess.run(
        ["curl", "-sS", url, "-H", "content-type: application/json", "-d", json.dumps(body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "NO_PROXY": "*"},
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


async def test_nodes_that_are_killed_and_frozen_cost_no_wrong_answer_and_no_hung_one(up: Up) -> None:
    wait_for(lambda: up.laya("nodes").stdout.count("ready") == 2, "both nodes are ready", 60)
    router = up.ready["admin"]

    def ready() -> bool:
        return metric(fetch(f"http://{router}/metrics"), "laya_router_nodes", state="ready") == 2

    load = Load([up.ready["address"]], clients=4, seed=7, pause=0.1, ask=asks(up.ready["model"]))
    tallies = []

    async def some(name: str, requests: int) -> None:
        load.tally = tally = Tally(name)
        tallies.append(tally)
        await until(lambda: tally.sent >= requests, f"{requests} requests, {name}", timeout=60)

    load.start()
    try:
        await some("as a start", 8)
        os.kill(up.child("node-2"), signal.SIGKILL)
        await some("a node killed", 12)
        await until(ready, "the killed node serves again", timeout=90)
        frozen = up.child("node-1")
        os.killpg(frozen, signal.SIGSTOP)  # its engine too
        try:
            await until(lambda: not ready(), "the frozen node is missed", timeout=SILENT + 10)
            await some("a node frozen", 8)
        finally:
            os.killpg(frozen, signal.SIGCONT)
        await until(ready, "the frozen node is back", timeout=60)
        await some("as an end", 8)
    finally:
        await load.stop()
    for tally in tallies:
        assert tally.wrong == tally.hung == 0, (tally.name, tally.examples)
    first, *_, last = tallies
    assert first.failed == last.failed == first.cut == last.cut == 0, (first.reasons, last.reasons)
    assert sum(tally.succeeded for tally in tallies) > 0.8 * sum(tally.sent for tally in tallies)

    def left() -> float:
        text = fetch(f"http://{router}/metrics")
        total = sum(metric(text, f"laya_router_{name}") for name in ("requests_in_flight", "reservations"))
        for node in json.loads(up.laya("nodes", "--json").stdout):
            text = fetch(f"http://{node['address']}/metrics")
            total += sum(metric(text, f"laya_node_{name}") for name in ("running_requests", "holds"))
        return total

    wait_for(lambda: left() == 0, "nothing is held any more", 20)
