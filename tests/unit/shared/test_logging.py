"""Log lines: one per event, in both styles, never with a secret."""

from __future__ import annotations

import io
import json
import logging

import pytest

from shared import logging as laya_logging


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_json_style_writes_one_object_a_line(stream: io.StringIO) -> None:
    laya_logging.setup("info", "json", stream)
    laya_logging.event(laya_logging.get("t"), logging.INFO, "node_ready", node="n1", seconds=1.5)
    line = json.loads(stream.getvalue())
    assert line["event"] == "node_ready"
    assert line["node"] == "n1"
    assert line["level"] == "info"


def test_text_style_quotes_what_has_spaces(stream: io.StringIO) -> None:
    laya_logging.setup("info", "text", stream)
    laya_logging.event(laya_logging.get("t"), logging.WARNING, "node_dark", why="no route to host")
    assert stream.getvalue().rstrip().endswith('laya.t node_dark why="no route to host"')


@pytest.mark.parametrize("style", ["json", "text"])
def test_secrets_are_masked_and_token_counts_are_not(stream: io.StringIO, style: str) -> None:
    laya_logging.setup("info", "json" if style == "json" else "text", stream)
    laya_logging.event(
        laya_logging.get("t"), logging.INFO, "x", cluster_token="hush", api_key="hush", prompt_tokens=12345
    )
    text = stream.getvalue()
    assert "hush" not in text
    assert "12345" in text


def test_events_below_the_level_are_not_written(stream: io.StringIO) -> None:
    laya_logging.setup("warning", "text", stream)
    laya_logging.event(laya_logging.get("t"), logging.INFO, "quiet")
    assert stream.getvalue() == ""


def test_an_exception_becomes_fields_in_json(stream: io.StringIO) -> None:
    laya_logging.setup("info", "json", stream)
    try:
        raise ValueError("broken")
    except ValueError as e:
        laya_logging.event(laya_logging.get("t"), logging.ERROR, "failed", exc_info=e)
    line = json.loads(stream.getvalue())
    assert line["error"] == "ValueError('broken')"
    assert "ValueError: broken" in line["trace"]
