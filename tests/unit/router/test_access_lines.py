"""Lines of the access log: every field, one line a request, and nothing a client sends can forge one."""

from __future__ import annotations

import json
import time

import pytest

from router_node.middleware.access_lines import MAX_WORDS, JsonLines, Lines, TextLines
from tests.unit.router.test_access_log import entry


def test_a_text_line_says_who_asked_what_and_how_it_went():
    assert TextLines().line(entry()) == (
        "2023-11-14T22:13:20.123Z grpc 127.0.0.1:5000 Generate 0 - 12.3ms routed=8us model=smollm2 node=n1"
        " tenant=acme id=req-1 attempts=1 in=300 out=900"
    )
    refused = TextLines().line(entry(code=429, reason="QUEUE_FULL", routed=-1.0, model="", node_id="", tenant=""))
    assert " 429 QUEUE_FULL 12.3ms routed=- model=- node=- tenant=- " in refused
    assert TextLines().line(entry(migrated="n1>n2:12ms")).endswith(" in=300 out=900 migrated=n1>n2:12ms")


def test_a_json_line_has_every_field():
    read = json.loads(JsonLines().line(entry(code=429, reason="QUEUE_FULL", routed=-1.0)))
    assert read == {
        "time": "2023-11-14T22:13:20.123Z",
        "event": "request",
        "protocol": "grpc",
        "peer": "127.0.0.1:5000",
        "method": "Generate",
        "code": 429,
        "reason": "QUEUE_FULL",
        "seconds": 0.0123,
        "routed": None,
        "model": "smollm2",
        "node": "n1",
        "tenant": "acme",
        "request_id": "req-1",
        "attempts": 1,
        "bytes_in": 300,
        "bytes_out": 900,
    }
    moved = json.loads(JsonLines().line(entry(migrated="n1>n2:12ms")))
    assert moved["migrated"] == "n1>n2:12ms"


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_names_from_a_client_cannot_forge_a_line_or_a_field(lines: Lines):
    evil = 'x\n2023 grpc model="y" tenant=root \u202e\x1b[2J'
    line = lines.line(entry(model=evil, reason=evil))
    assert "\n" not in line and "\x1b" not in line
    if isinstance(lines, JsonLines):
        assert json.loads(line)["model"] == evil
    else:
        assert " tenant=root" not in line
        assert line.count(" model=") == 1


def test_the_stamp_follows_the_clock():
    lines = TextLines()
    stamps = [lines.line(entry(at=at))[:24] for at in (0.75, 1.0, 1.25, 0.5)]
    assert stamps == [
        "1970-01-01T00:00:00.750Z",
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:01.250Z",
        "1970-01-01T00:00:00.500Z",
    ]


def test_what_is_kept_ready_is_bounded():
    lines = TextLines()
    for i in range(MAX_WORDS * 2):
        assert f"model=m{i} " in lines.line(entry(model=f"m{i}"))
    assert len(lines.words) <= MAX_WORDS


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_a_line_costs_a_few_microseconds(lines: Lines):
    one = entry()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            lines.line(one)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 40e-6  # about 2 µs on an idle core
