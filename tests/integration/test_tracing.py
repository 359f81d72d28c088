"""One request through a real router and a simulated node is one trace at a collector, with everything in its place."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from shared.client import LayaClient
from tests.support.otlp import CLIENT, INTERNAL, SERVER, Collector, Seen, grpc_collector, http_collector
from tests.support.processes import Proc, Spec, cluster

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}


def spec(collector: Collector, ratio: float = 1.0, **more: str) -> Spec:
    env = {
        "LAYA_TRACING__ENDPOINT": collector.endpoint,
        "LAYA_TRACING__SAMPLE_RATIO": str(ratio),
        "LAYA_TRACING__INTERVAL": "0.05",
        **more,
    }
    return Spec(router=env, node=env)


def whole(spans: list[Seen]) -> bool:
    """Both processes have told of what they did."""
    names = {(s.service, s.name) for s in spans}
    return ("laya-router", "relay") in names and ("laya-node", "queue") in names


def by_name(spans: list[Seen], service: str) -> dict[str, Seen]:
    return {s.name: s for s in spans if s.service == service}


def written(proc: Proc) -> str:
    """All that a process has written."""
    return Path(proc.log.name).read_text("utf-8", "replace")


def check_tree(spans: list[Seen], root: str) -> tuple[dict[str, Seen], dict[str, Seen]]:
    """Router's and node's spans by name, once parents, kinds and times are seen to be right."""
    router, node = by_name(spans, "laya-router"), by_name(spans, "laya-node")
    assert len({s.trace_id for s in spans}) == 1
    top, relay, served = router[root], router["relay"], node[root]
    assert (top.kind, relay.kind, served.kind) == (SERVER, CLIENT, SERVER)
    assert relay.parent_id == router["route"].parent_id == top.span_id
    assert served.parent_id == relay.span_id
    parts = [node[name] for name in ("queue", "prefill", "decode", "serialise")]
    assert all(part.parent_id == served.span_id and part.kind == INTERNAL for part in parts)
    assert served.start <= parts[0].start <= parts[0].end <= parts[1].start <= parts[1].end <= parts[2].start
    assert parts[2].start <= parts[3].start <= parts[2].end <= served.end
    assert top.start <= router["route"].start <= router["route"].end <= relay.start <= relay.end <= top.end
    slack = 50_000_000  # two processes read the clock of one machine
    assert relay.start - slack <= served.start and served.end <= relay.end + slack
    assert not any(s.error for s in spans)
    return router, node


@pytest.mark.parametrize("collector_of", [http_collector, grpc_collector])
async def test_a_streamed_call_is_one_trace(collector_of) -> None:
    with collector_of() as collector:
        protocol = "grpc" if collector_of is grpc_collector else "http"
        with cluster(spec(collector, LAYA_TRACING__PROTOCOL=protocol)) as running:
            async with LayaClient(running.address, metadata=SAMPLED) as client:
                tokens = [t async for t in client.generate("one two three", max_tokens=12, temperature=0.5)]
            spans = collector.wait(whole)
            assert running.metric("laya_router_spans_total", result="exported") == 3
            assert running.metric("laya_router_spans_total", result="failed") == 0
    root = next(s.name for s in spans if s.parent_id == CALLER)
    router, node = check_tree(spans, root)
    top, served = router[root], node[root]
    assert top.trace_id == TRACE and top.state == "vendor=1"
    model = root.removeprefix("text_completion ")
    assert model and top.attributes["gen_ai.operation.name"] == "text_completion"
    assert top.attributes["rpc.method"] == "Generate" and top.attributes["rpc.grpc.status_code"] == 0
    assert top.attributes["laya.node"] == "node-0" and router["relay"].events == ["first_byte"]
    usage = tokens[-1].usage
    assert usage is not None
    about = served.attributes
    assert about["gen_ai.request.model"] == about["gen_ai.response.model"] == model
    assert about["gen_ai.provider.name"] == "laya"
    assert about["gen_ai.usage.input_tokens"] == usage.prompt_tokens
    assert about["gen_ai.usage.output_tokens"] == 12
    assert about["gen_ai.request.max_tokens"] == 12 and about["gen_ai.request.temperature"] == 0.5
    assert about["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < about["gen_ai.response.time_to_first_chunk"] < 60
    assert about["laya.request_id"] == top.attributes["laya.request_id"]
    assert "one two three" not in repr(spans)


def test_an_http_chat_begins_a_trace_of_its_own() -> None:
    with http_collector() as collector, cluster(spec(collector)) as running:
        model = json.loads(_fetch(f"http://{running.address}/v1/models"))["data"][0]["id"]
        body = {"model": model, "max_tokens": 6, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        _fetch(f"http://{running.address}/v1/chat/completions", json.dumps(body).encode())
        spans = collector.wait(whole)
    root = f"chat {model}"
    router, node = check_tree(spans, root)
    assert router[root].parent_id == ""
    assert router[root].attributes["http.response.status_code"] == 200
    assert router[root].attributes["http.route"] == "/v1/chat/completions"
    assert node[root].attributes["gen_ai.operation.name"] == "chat"
    assert node[root].attributes["gen_ai.request.max_tokens"] == 6


async def test_what_the_caller_does_not_sample_is_not_traced() -> None:
    with http_collector() as collector, cluster(spec(collector)) as running:
        quiet = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
        async with LayaClient(running.address, metadata=quiet) as client:
            await client.complete("one", max_tokens=2)
        async with LayaClient(running.address, metadata={"traceparent": f"00-{'1' * 32}-{CALLER}-01"}) as client:
            await client.complete("two", max_tokens=2)
        spans = collector.wait(whole)
    assert {s.trace_id for s in spans} == {"1" * 32}


async def test_a_share_of_none_samples_what_callers_sample_only() -> None:
    with http_collector() as collector, cluster(spec(collector, 0.0)) as running:
        async with LayaClient(running.address) as client:
            await client.complete("one", max_tokens=2)
        async with LayaClient(running.address, metadata=SAMPLED) as client:
            await client.complete("two", max_tokens=2)
        spans = collector.wait(whole)
    assert {s.trace_id for s in spans} == {TRACE}


async def test_a_request_that_fails_says_why_in_its_span() -> None:
    with http_collector() as collector, cluster(spec(collector)) as running:
        async with LayaClient(running.address, metadata=SAMPLED) as client:
            with pytest.raises(Exception, match="no-such-model"):
                await client.complete("one", model="no-such-model", max_tokens=2)
        (span,) = [s for s in collector.wait(lambda spans: bool(spans)) if s.parent_id == CALLER]
    assert span.attributes["error.type"] == "MODEL_NOT_FOUND"
    assert not span.error  # the caller's mistake, not the server's


LOADED = """
import sys
import {module}
{more}
found = sorted(name for name in sys.modules if name.partition(".")[0] == "opentelemetry")
assert not found, found
"""


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ("router_node.client_side, router_node.main, router_node.worker, router_node.admin_side", ""),
        (
            "inference_node.main, inference_node.node",
            "from inference_node.engines import create; from shared.config import load\n"
            "create(load(None, overrides={'inference.engine': 'sim'}).inference, 0)",
        ),
        ("shared.cli.main, shared.client, shared.tracing.exporter", ""),
    ],
)
def test_without_an_endpoint_opentelemetry_is_not_even_imported(module: str, more: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module, more=more)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_only_processes_with_an_endpoint_import_opentelemetry() -> None:
    told = {"PYTHONPROFILEIMPORTTIME": "1"}  # every import is a line of their output
    with http_collector() as collector:
        for there, running_spec in ((False, Spec(router=told, node=told)), (True, spec(collector, 1.0, **told))):
            with cluster(running_spec) as running:
                async with LayaClient(running.address, metadata=SAMPLED) as client:
                    await client.complete("one", max_tokens=2)
                if there:
                    collector.wait(whole)
                for proc in (running.router, running.nodes[0]):
                    imported = written(proc)
                    assert "uvloop" in imported
                    assert ("opentelemetry" in imported) == there


def _fetch(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())
