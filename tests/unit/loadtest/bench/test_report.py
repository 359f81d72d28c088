"""Rows, the figures they make, and the file they are kept in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadtest.bench.report import (
    BadReport,
    Report,
    Round,
    Row,
    figures,
    hundredths,
    load,
    per_node,
    reasons,
    save,
)
from tests.unit.loadtest.bench.made import PLAN, made, row


def test_each_row_is_one_thing_only() -> None:
    rows = [
        row(),
        row(status=429, error="queue_full"),
        row(status=500, error="HTTP 500"),
        row(status=200, error="node_lost"),
        row(status=0, error="timeout"),
        row(status=0, error="not sent"),
        row(cancelled=True),
    ]
    kinds = [(r.served, r.refused, r.failed, r.cancelled) for r in rows]
    assert kinds == [
        (True, False, False, False),
        (False, True, False, False),
        (False, False, True, False),
        (False, False, True, False),
        (False, False, True, False),
        (False, False, False, False),
        (False, False, False, True),
    ]


def test_a_round_is_summed_up() -> None:
    rows = [row(first=0.1 * i, total=1.0, prompt=100, cached=50, tokens=10) for i in range(1, 11)]
    rows += [row(first=3.0), row(itl=0.5), row(status=503, error="no_nodes"), row(cancelled=True)]
    f = figures(rows, [0.01, 0.02, 0.03], 10.0, PLAN)
    assert f["offered"] == 14 and f["served"] == 12 and f["refused"] == 1 and f["cancelled"] == 1
    assert f["goodput"] == pytest.approx(1.0)  # ten in ten seconds; one was late, one slow
    assert f["good_share"] == pytest.approx(100 * 10 / 14)
    assert f["itl_p50"] == pytest.approx(20.0)
    assert f["prefix_hits"] == pytest.approx(100 * 500 / 1020)
    assert f["ttft_p50"] == pytest.approx(550.0)


def test_a_round_without_an_answer_has_no_times() -> None:
    f = figures([row(status=0, error="timeout")], [], 1.0, PLAN)
    assert all(math.isnan(f[name]) for name in ("ttft_p50", "ttft_mean", "latency_p99", "itl_p50", "prefix_hits"))
    assert f["goodput"] == 0 and f["failed"] == 1
    assert math.isnan(figures([], [], 0.0, PLAN)["goodput"])


def test_counts_by_reason_and_by_node() -> None:
    one = Round(
        0, 1, 0.0, 1.0, [row(node="a"), row(node="b"), row(node="a"), row(status=429, error="queue_full", node="")]
    )
    assert per_node([one]) == {"a": 2, "b": 1}
    assert reasons([one]) == {"queue_full": 1}


def test_hundredths_keep_both_ends() -> None:
    found = hundredths([float(i) for i in range(1000)])
    assert len(found) == 101 and found[0] == 0.0 and found[50] == 500.0 and found[-1] == 999.0
    assert hundredths([]) == []


def test_a_report_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    report = made()
    report.rounds[0].figures["itl_p99"] = math.nan
    path = save(report, tmp_path / "new" / "folder")
    back = load(tmp_path / "new" / "folder")
    assert back.rounds[0].rows == report.rounds[0].rows and back.plan == report.plan
    assert "itl_p99" not in back.rounds[0].figures and "itl_p99" in back.rounds[1].figures
    assert load(path).seed == report.seed and not list(path.parent.glob("*.part"))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"plan": 3}'])
def test_what_is_no_report_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(BadReport, match="no report"):
        load(file)


def test_a_report_of_another_form_is_refused(tmp_path: Path) -> None:
    report: Report = made()
    report.schema = 99
    save(report, tmp_path)
    with pytest.raises(BadReport, match="form 99"):
        load(tmp_path)
    assert isinstance(row(), Row)
