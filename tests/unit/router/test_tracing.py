"""The router's spans of one request: what it was refused, where it waited, which nodes were tried."""

from __future__ import annotations

from typing import Any

import pytest

from router_node.relay.settings import MigrationSettings
from router_node.tracing import Tracer
from shared import headers as names
from shared.errors import unavailable
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.tracing.context import Sampler, parse
from shared.tracing.span import CLIENT, SERVER, Span
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_calls import GENERATE, SDK, headers
from tests.support.relay_rig import MODEL, Rig

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = b"00-%032x-%016x-01" % (TRACE, CALLER)


class Kept:
    """An exporter that keeps."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, spans: list[Span]) -> None:
        self.spans += spans


def traced(rig: Rig, ratio: float = 1.0) -> Kept:
    kept = Kept()
    exporter: Any = kept
    rig.core.tracer = Tracer(Sampler(ratio, True), exporter)
    return kept


def call(rig: Rig, *extra: tuple[bytes, bytes]) -> FakeServerStream:
    return FakeServerStream().call(rig.front.accept, headers(GENERATE, *SDK, *extra), b"message")


async def test_a_stream_that_goes_on_elsewhere_has_it_among_its_events() -> None:
    rig = Rig(2, migration=MigrationSettings())
    kept = traced(rig)
    request = pb.GenerateRequest(model=MODEL, text="hi").SerializeToString()
    client = FakeServerStream().call(rig.front.accept, headers(GENERATE, *SDK), request)
    first, token = rig.used, frame(pb.GenerateResponse(token_ids=[1], text="a").SerializeToString())
    first.last.begin((names.JOURNAL, b"1"))
    first.last.sink.on_response_data(token, False)
    first.last.lose()
    second = rig.other(first)
    second.last.begin((names.JOURNAL, b"1"))
    second.last.sink.on_response_data(token, False)
    second.last.finish()
    client.settle()
    (event,) = [event for event in named(kept)[f"text_completion {MODEL}"].events if event.name == "migrated"]
    assert {event.attributes["laya.from"], event.attributes["laya.to"]} == {"n0", "n1"}
    assert event.attributes["laya.stall_ms"] >= 0
    assert sum(span.name == "relay" for span in kept.spans) == 2
    rig.assert_idle()


def named(kept: Kept) -> dict[str, Span]:
    return {span.name: span for span in kept.spans}


async def test_a_call_continues_its_callers_trace_at_the_node() -> None:
    rig = Rig(1)
    kept = traced(rig)
    client = call(rig, (names.TRACEPARENT, PARENT), (names.TRACESTATE, b"v=1"))
    node = rig.used.last
    node.answer(b"one")
    client.settle()
    spans = named(kept)
    root, relay, route = spans[f"text_completion {MODEL}"], spans["relay"], spans["route"]
    assert (root.trace_id, root.parent_id, root.kind, root.state) == (TRACE, CALLER, SERVER, "v=1")
    assert relay.kind == CLIENT and relay.parent_id == route.parent_id == root.span_id
    assert parse(node.headers[names.TRACEPARENT]) == (TRACE, relay.span_id, True)
    assert node.headers[names.TRACESTATE] == b"v=1"
    assert root.start <= route.start <= route.end <= relay.end <= root.end
    assert not root.error and root.attributes["rpc.grpc.status_code"] == 0
    rig.assert_idle()


async def test_a_call_without_a_sampled_parent_goes_on_untouched() -> None:
    rig = Rig(1)
    kept = traced(rig)
    quiet = PARENT[:-2] + b"00"
    client = call(rig, (names.TRACEPARENT, quiet))
    node = rig.used.last
    node.answer(b"one")
    client.settle()
    assert kept.spans == [] and node.headers[names.TRACEPARENT] == quiet


async def test_a_bad_parent_begins_a_new_trace_without_its_state() -> None:
    rig = Rig(1)
    kept = traced(rig)
    client = call(rig, (names.TRACEPARENT, b"nonsense"), (names.TRACESTATE, b"v=1"))
    node = rig.used.last
    node.answer(b"one")
    client.settle()
    assert named(kept)["relay"].trace_id == (parse(node.headers[names.TRACEPARENT]) or (0,))[0] != TRACE
    assert names.TRACESTATE not in node.headers


async def test_where_tracing_is_off_context_passes_as_it_is() -> None:
    rig = Rig(1)
    client = call(rig, (names.TRACEPARENT, PARENT), (names.TRACESTATE, b"v=1"))
    node = rig.used.last
    node.answer(b"one")
    client.settle()
    assert (node.headers[names.TRACEPARENT], node.headers[names.TRACESTATE]) == (PARENT, b"v=1")


async def test_each_node_that_is_tried_has_a_span_of_its_own() -> None:
    rig = Rig(2)
    kept = traced(rig)
    client = call(rig)
    first = rig.used
    first.last.lose(unprocessed=True)
    second = rig.other(first)
    second.last.answer(b"one")
    client.settle()
    relays = [span for span in kept.spans if span.name == "relay"]
    assert [span.error for span in relays] == ["retried", ""]
    assert len({span.attributes["laya.node"] for span in relays}) == 2
    assert relays[0].end <= relays[1].end
    told = [parse(pool.last.headers[names.TRACEPARENT]) for pool in (first, second)]
    assert [one[1] for one in told if one is not None] == [span.span_id for span in relays]


async def test_a_wait_for_a_node_with_room_is_a_span() -> None:
    rig = Rig(1, headroom=0)
    kept = traced(rig)
    client = call(rig)
    assert not rig.node(0).streams
    rig.report("n0", 100_000)
    rig.node(0).last.answer(b"one")
    client.settle()
    spans = named(kept)
    root = spans[f"text_completion {MODEL}"]
    assert spans["queue"].parent_id == root.span_id
    assert spans["route"].end <= spans["queue"].end <= spans["relay"].end
    assert int(dict(client.head)[names.QUEUE_TIME]) > 0


async def test_what_rarely_happens_is_an_event_of_the_requests_span() -> None:
    rig = Rig(1)
    kept = traced(rig)
    client = call(rig)
    account = client.sink._account  # type: ignore[union-attr]
    for i in range(100):
        account.noted("migrated", {"from": "n0", "to": "n1", "stall_ms": i})
    rig.used.last.answer(b"one")
    client.settle()
    root = named(kept)[f"text_completion {MODEL}"]
    assert root.events[0].attributes == {"from": "n0", "to": "n1", "stall_ms": 0}
    assert len(root.events) == 32
    assert root.start <= root.events[0].at <= root.end


async def test_a_fault_of_the_cluster_is_an_error_and_a_callers_is_none() -> None:
    rig = Rig(1)
    kept = traced(rig)
    client = call(rig)
    rig.used.last.refuse(unavailable("gone", "ENGINE_FAILED").grpc_trailers())
    client.settle()
    asked = [(name, b"none" if name == names.MODEL else value) for name, value in headers(GENERATE, *SDK)]
    wrong = FakeServerStream().call(rig.front.accept, asked, b"message")
    wrong.settle()
    roots = [span for span in kept.spans if span.kind == SERVER]
    assert roots[0].error and roots[0].attributes["error.type"] == roots[0].error
    assert not roots[1].error and roots[1].attributes["error.type"]


@pytest.mark.parametrize("path", [b"/laya.v1.Inference/ListModels", b"/grpc.health.v1.Health/Check"])
async def test_probes_and_lists_are_not_traced(path: bytes) -> None:
    rig = Rig(1)
    kept = traced(rig)
    client = FakeServerStream().call(rig.front.accept, headers(path, *SDK), b"")
    if rig.bridge.streams:
        rig.bridge.last.answer(b"")
    client.settle()
    assert kept.spans == []
