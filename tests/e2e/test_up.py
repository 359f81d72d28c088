"""The promise of the quick start: one command, and a real quantized model answers through the router."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from inference_node.quantize import demo
from shared.client import LayaClient
from tests.support.processes import fetch, metric
from tests.support.up import Up, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two vLLM nodes that share the cores, on the demo model from the user's cache (made once if need be)."""
    model = demo.prepare()
    running = Up(tmp_path_factory.mktemp("cache"), "--model", str(model), "--nodes", "2")
    try:
        running.ready = running.event("ready")
        yield running
        assert running.stop() == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running.seen), "no process is left")
    finally:
        running.popen.kill()


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
        return sum(metric(fetch(f"http://{n['address']}/metrics"), "laya_node_running") for n in nodes)

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
