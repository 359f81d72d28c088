"""The queue of spans is bounded, sending never holds anybody up, and what fails is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.config.checks import ConfigError
from shared.config.tracing import TracingConfig
from shared.tracing.exporter import BATCH, Exporter, read_headers
from shared.tracing.span import CLIENT, Event, Span
from tests.support.otlp import Collector, grpc_collector, http_collector
from tests.support.ports import free_port, until


def span(number: int = 1, **more: object) -> Span:
    values: dict[str, object] = {"start": 10**18, "end": 10**18 + 5_000_000, **more}
    return Span(f"span {number}", 7, number, 0, **values)  # type: ignore[arg-type]


def config(endpoint: str, **more: object) -> TracingConfig:
    return TracingConfig(endpoint=endpoint, interval=0.05, **more)  # type: ignore[arg-type]


async def sent_by(exporter: Exporter, collector: Collector, count: int) -> None:
    await until(lambda: len(collector.spans) >= count and exporter.exported >= count, "an export")


async def test_spans_reach_a_collector_over_http(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("# the collector's key\nX-Api-Key: s3cret\n\n")
    with http_collector() as collector:
        exporter = Exporter(config(collector.endpoint, headers_file=str(secret)), "laya-test", "one")
        exporter.start()
        parent = span(2, kind=CLIENT, attributes={"a": 1, "b": ("x", "y")}, events=[Event("migrated", 10**18, {})])
        exporter.add([span(1, error="BROKEN", state="v=1"), parent])
        await sent_by(exporter, collector, 2)
        await exporter.close()
    first, second = collector.spans
    assert (first.service, first.name, first.error, first.state) == ("laya-test", "span 1", True, "v=1")
    assert first.trace_id == f"{7:032x}" and first.span_id == f"{1:016x}" and first.parent_id == ""
    assert first.end - first.start == 5_000_000
    assert (second.attributes, second.events, second.error) == ({"a": 1, "b": ["x", "y"]}, ["migrated"], False)
    assert collector.headers[0]["x-api-key"] == "s3cret"
    assert exporter.counts() == {"exported": 2, "failed": 0, "dropped": 0}


async def test_spans_reach_a_collector_over_grpc(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("x-api-key: s3cret\n")
    with grpc_collector() as collector:
        settings = config(collector.endpoint, protocol="grpc", headers_file=str(secret), service_name="mine")
        exporter = Exporter(settings, "laya-test", "one")
        exporter.start()
        exporter.add([span()])
        await sent_by(exporter, collector, 1)
        await exporter.close()
    assert collector.spans[0].service == "mine" and collector.headers[0]["x-api-key"] == "s3cret"


async def test_a_full_queue_drops_and_counts() -> None:
    exporter = Exporter(config("http://127.0.0.1:1", queue_size=64), "laya-test", "one")  # not started: nobody takes
    for i in range(100):
        exporter.add([span(i + 1)])
    assert exporter.counts() == {"exported": 0, "failed": 0, "dropped": 36}
    await exporter.close()


async def test_what_a_collector_that_is_down_misses_has_failed() -> None:
    exporter = Exporter(config(f"http://127.0.0.1:{free_port()}", timeout=0.2), "laya-test", "one")
    exporter.start()
    for i in range(BATCH):
        exporter.add([span(i + 1)])
    await until(lambda: exporter.failed >= 1, "a failure")
    await exporter.close()
    assert exporter.failed == BATCH and exporter.exported == 0


async def test_what_a_collector_refuses_has_failed() -> None:
    with http_collector() as collector:
        collector.status = 403
        exporter = Exporter(config(collector.endpoint), "laya-test", "one")
        exporter.start()
        exporter.add([span()])
        await until(lambda: exporter.failed == 1, "a failure")
        await exporter.close()
    assert collector.spans == []


async def test_what_waits_is_sent_at_the_end() -> None:
    with http_collector() as collector:
        settings = TracingConfig(endpoint=collector.endpoint, interval=60.0)
        exporter = Exporter(settings, "laya-test", "one")
        exporter.start()
        exporter.add([span()])
        await exporter.close()
    assert len(collector.spans) == 1


@pytest.mark.parametrize("text", ["s3cret", ": s3cret", "s3cret:", "s3cret two: words"])
def test_a_line_that_is_no_header_is_named_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "headers"
    file.write_text(f"good: one\n{text}\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        read_headers(str(file))
    assert "s3cret" not in str(caught.value)


def test_headers_that_cannot_be_read_are_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.headers_file"):
        Exporter(config("http://127.0.0.1:1", headers_file=str(tmp_path / "none")), "laya-test", "one")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"endpoint": "collector:4317"}, "endpoint"),
        ({"endpoint": "ftp://x"}, "endpoint"),
        ({"sample_ratio": 1.5}, "sample_ratio"),
        ({"queue_size": 1}, "queue_size"),
        ({"interval": 0.0}, "interval"),
        ({"timeout": 0.0}, "timeout"),
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"tracing\.{key}"):
        TracingConfig(**settings).validate()  # type: ignore[arg-type]
