"""Targets take turns at being first, within a budget."""

from __future__ import annotations

import pytest

from loadtest.rounds import Budget, turns


def test_another_target_begins_each_round() -> None:
    order = list(turns("abc", 4, Budget(60.0), "calls", 1.0))
    assert "".join(order) == "abcbcacababc"


def test_no_target_has_a_round_more_than_another(capsys: pytest.CaptureFixture[str]) -> None:
    budget = Budget(3.5)
    assert list(turns("abcd", 5, budget, "calls", 1.0)) == []
    assert list(turns("abc", 1, budget, "streams", 1.0)) == ["a", "b", "c"]
    assert budget.left_out == ["calls"]
    assert capsys.readouterr().err == "calls: the budget allows no (further) round\n"


def test_a_round_that_took_longer_than_thought_says_how_long_the_next_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("loadtest.rounds.time.monotonic", lambda: now)
    seen = []
    for target in turns("ab", 5, Budget(10.0), "calls", 1.0):
        seen.append(target)
        now += 2.0
    assert seen == ["a", "b", "b", "a"]  # a third round would take four seconds too, and two are left


def test_what_is_left_out_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    budget = Budget(0.0)
    for _ in range(3):
        assert not budget.allows("size", 1.0)
    assert capsys.readouterr().err.count("size") == 1
