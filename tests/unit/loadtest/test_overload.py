"""The overload run's sums and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.overload import Result, result, show, verdicts
from loadtest.overload_load import Outcome


def served(first: float, long: bool = False, tokens: int = 10, ended: float = 120.0) -> Outcome:
    return Outcome(long, 200, first, first + 1, ended, tokens, "stop")


def test_a_run_is_summed_up() -> None:
    refused = Outcome(False, 429, error="QUEUE_FULL", typed=True)
    broken = Outcome(True, 200, 1.0, error="broken")
    silent = Outcome(False, 503, error="?")
    outcomes = [served(1.0), served(2.0), served(30.0), served(4.0, long=True), refused, silent, broken]
    got = result("Laya", outcomes, 100.0, 10.0, 3)
    assert (got.offered, got.served, got.refused, got.untyped, got.errors, got.preemptions) == (7, 4, 2, 1, 1, 3)
    assert got.tokens_per_second == pytest.approx(40 / 20)
    assert got.good_per_second == pytest.approx(0.3)
    assert (got.short_p50, got.short_p99, got.long_p99) == (2.0, 30.0, 4.0)


GOOD = Result("Laya", 100, 40, 60, 0, 0, 50.0, 2.0, 1.0, 3.0, 2.0, 4.0, 0)
OWN = replace(GOOD, side="own", refused=0, short_p99=9.0, preemptions=40)


def test_everything_is_reached() -> None:
    assert all(met for _, met in verdicts(OWN, GOOD))


@pytest.mark.parametrize(
    "bad",
    [
        {"preemptions": 1},
        {"errors": 1},
        {"untyped": 1},
        {"good_per_second": 1.9},
        {"short_p99": 3.1},
        {"short_p99": float("nan")},
    ],
)
def test_one_miss_is_named(bad: dict[str, float]) -> None:
    assert [met for _, met in verdicts(OWN, replace(GOOD, **bad))].count(False) == 1


def test_the_table_has_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    show(OWN, GOOD, 1.5, 3.0)
    text = capsys.readouterr().out
    assert "| preemptions | 0 | 40 |" in text and "offered 3 times" in text and "MISSED" not in text
