"""The spans of one request hang together, and a clock's seconds become times."""

from __future__ import annotations

import time
from typing import cast

from shared.tracing.context import Context
from shared.tracing.exporter import Exporter
from shared.tracing.span import SERVER
from shared.tracing.trace import RequestTrace

AT = Context(trace_id=7, span_id=11, parent_id=13, state="vendor=1")


def test_spans_are_placed_below_the_request_s_own() -> None:
    before = time.time_ns()
    trace = RequestTrace(AT, cast(Exporter, None), 100.0)
    after = time.time_ns()
    root = trace._root("chat m", 99.0, 102.5, {"laya.node": "n"}, [], "NODE_LOST")
    child = trace._child("queue", 99.5, 100.0)
    assert (root.trace_id, root.span_id, root.parent_id, root.kind) == (7, 11, 13, SERVER)
    assert (root.name, root.attributes, root.error, root.state) == (
        "chat m",
        {"laya.node": "n"},
        "NODE_LOST",
        "vendor=1",
    )
    assert (child.name, child.trace_id, child.parent_id, child.state) == ("queue", 7, 11, "vendor=1")
    assert child.span_id not in (0, 11, 13)
    assert root.end - root.start == 3_500_000_000
    assert child.end - child.start == 500_000_000
    assert before <= child.end <= after
    assert root.start == child.end - 1_000_000_000
