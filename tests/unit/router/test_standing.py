"""A source's standing: what operators see, and one log line for each change."""

from __future__ import annotations

import logging

import pytest

from router_node.discovery.base import SourceHealth
from router_node.discovery.standing import Standing

log = logging.getLogger("test.standing")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_each_change_is_told_once_and_health_is_always_the_newest(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "test.standing")
    standing = Standing(log, "store", "store s has not been read yet", store="s")
    assert standing.health == SourceHealth(False, "store s has not been read yet")
    standing.failed("first", detail="first")
    standing.failed("second", detail="second")
    assert standing.health == SourceHealth(False, "second")
    (line,) = said(caplog)
    assert "store_down" in line
    standing.succeeded()
    standing.succeeded()
    assert standing.health == SourceHealth(True)
    (line,) = said(caplog)
    assert "store_up" in line
    standing.failed("third", detail="third")
    (line,) = said(caplog)
    assert "store_down" in line


def test_a_source_that_works_from_the_start_says_so_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "test.standing")
    standing = Standing(log, "dns", "unread", name="n")
    standing.succeeded()
    (line,) = said(caplog)
    assert "dns_up" in line
