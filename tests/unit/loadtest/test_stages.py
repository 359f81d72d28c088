"""The split of a request's time, read from a metrics page."""

from __future__ import annotations

import pytest

from loadtest import stages
from router_node.admin.counters import RouterMetrics
from router_node.admin.page import MetricsPage


def page(metrics: RouterMetrics) -> str:
    return MetricsPage(metrics.snapshot).render()[1].decode()


def test_what_a_router_shows_is_read_back() -> None:
    metrics = RouterMetrics()
    for seconds in (3e-6, 3e-6, 40.0, 1e6):
        metrics.stages.add("relay_in", seconds)
    found = stages.parse(page(metrics))
    assert found["relay_in"].counts == metrics.snapshot().stage_buckets["relay_in"]
    assert found["relay_in"].seconds == pytest.approx(1_000_040.000006)
    assert sum(found["node"].counts) == 0


def test_a_split_is_of_what_came_in_between() -> None:
    metrics = RouterMetrics()
    metrics.stages.add("node", 5.0)
    before = stages.parse(page(metrics))
    for _ in range(100):
        metrics.stages.add("node", 150e-6)
        metrics.stages.add("match", 15e-6)
    rows = stages.rows(stages.between(before, stages.parse(page(metrics))))
    assert [row["stage"] for row in rows] == ["match and dispatch", "node"]
    assert rows[1]["timed"] == 100 and rows[1]["mean_us"] == pytest.approx(150.0)
    assert rows[1]["p50_us"] == pytest.approx(150.0) and rows[1]["p99_us"] == pytest.approx(199.0)


def test_stages_that_were_not_seen_have_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = stages.rows(stages.parse(""))
    assert table == []
    stages.show(table)
    assert len(capsys.readouterr().out.splitlines()) == 1
