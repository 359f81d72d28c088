"""The node's spans of one request."""

from __future__ import annotations

import asyncio
from typing import Any

from inference_node.call import Call
from inference_node.tracing import Trace, Tracing
from inference_node.tunnel import WebRequest, _scope
from shared import headers as names
from shared.config import load
from shared.errors import Code, LayaError
from shared.tracing.span import SERVER, Span

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = b"00-%032x-%016x-01" % (TRACE, CALLER)


class Kept:
    """An exporter that keeps."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, spans: list[Span]) -> None:
        self.spans += spans


def tracing(ratio: float = 1.0) -> tuple[Tracing, Kept]:
    config = load(None, environ={}, overrides={"tracing.endpoint": "http://127.0.0.1:1", "tracing.sample_ratio": ratio})
    made, kept = Tracing(config, "n0"), Kept()
    exporter: Any = kept
    made.exporter = exporter
    return made, kept


def begin(made: Tracing, **metadata: bytes) -> Trace | None:
    fields = {b"traceparent": PARENT} if not metadata else {name.encode(): value for name, value in metadata.items()}
    return made.begin(Call(fields, "req-1"), 10.0, 10.5)


def test_a_request_has_its_stages_below_the_routers_span() -> None:
    made, kept = tracing()
    trace = begin(made)
    assert trace is not None
    trace.about("Chat", "m", 64, 2)
    trace.used(100, 40)
    trace.generated(7)
    trace.finished("stop")
    trace.ended(11.0, 12.0, 0.25, 15.0, None)
    root, *parts = kept.spans
    assert (root.name, root.trace_id, root.parent_id, root.kind) == ("chat m", TRACE, CALLER, SERVER)
    lengths = {span.name: round((span.end - span.start) / 1e9, 6) for span in parts}
    assert lengths == {"queue": 1.0, "prefill": 1.0, "decode": 3.0, "serialise": 0.25}
    assert all(span.parent_id == root.span_id for span in parts)
    about = root.attributes
    assert about["gen_ai.request.max_tokens"] == 64 and about["gen_ai.request.choice.count"] == 2
    assert about["gen_ai.usage.input_tokens"] == 100 and about["gen_ai.usage.cache_read.input_tokens"] == 40
    assert about["gen_ai.usage.output_tokens"] == 7 and about["gen_ai.response.finish_reasons"] == ("stop",)
    assert about["gen_ai.response.time_to_first_chunk"] == 2.0


def test_a_refused_request_has_a_queue_only_and_says_why() -> None:
    made, kept = tracing()
    trace = begin(made)
    assert trace is not None
    trace.ended(0.0, 0.0, 0.0, 12.0, LayaError(Code.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT", "no room"))
    root, queue = kept.spans
    assert (root.error, root.attributes["error.type"], queue.name) == ("QUEUE_TIMEOUT", "QUEUE_TIMEOUT", "queue")


def test_a_client_that_went_away_is_no_error_of_the_node() -> None:
    made, kept = tracing()
    trace = begin(made)
    assert trace is not None
    trace.ended(11.0, 0.0, 0.0, 12.0, asyncio.CancelledError())
    assert not kept.spans[0].error and kept.spans[0].attributes["error.type"] == "cancelled"
    assert [span.name for span in kept.spans[1:]] == ["queue", "prefill"]


def test_what_a_router_did_not_sample_is_not_sampled_here() -> None:
    made, _ = tracing()
    dispatch = {names.DISPATCH: b"w0-1"}
    assert made.begin(Call(dispatch, "req-1"), 10.0, 10.5) is None
    assert made.begin(Call({**dispatch, names.TRACEPARENT: PARENT}, "req-1"), 10.0, 10.5) is not None


def test_a_request_from_nobody_begins_a_trace_by_the_nodes_own_share() -> None:
    assert tracing(1.0)[0].begin(Call({}, "req-1"), 10.0, 10.5) is not None
    assert tracing(0.0)[0].begin(Call({}, "req-1"), 10.0, 10.5) is None


def test_an_engines_application_continues_below_the_nodes_span() -> None:
    made, _ = tracing()
    trace = begin(made)
    assert trace is not None
    request = WebRequest("POST", "/v1/chat/completions", [(names.TRACEPARENT, PARENT)], b"")
    call = Call({names.TRACEPARENT: PARENT}, "req-1")
    told = [value for name, value in _scope(request, "/", "", 0, call, trace.header)["headers"] if b"trace" in name]
    assert told == [trace.header] != [PARENT] and trace.header.startswith(PARENT[:36])
    untraced = [value for name, value in _scope(request, "/", "", 0, call)["headers"] if b"trace" in name]
    assert untraced == [PARENT]
