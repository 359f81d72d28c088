"""Retries are a share of a pool's requests, and a burst of them; never more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch.budget import RetryBudget


def test_a_burst_and_then_a_share() -> None:
    budget = RetryBudget(0.2, 10)
    assert [budget.take(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert budget.denied == 2
    assert [budget.take(5), budget.take(5)] == [True, False]  # five more requests allow one more retry
    assert [budget.take(10_000) for _ in range(12)] == [True] * 10 + [False] * 2  # what was saved up is bounded


def test_no_share_and_no_burst_is_no_retry() -> None:
    budget = RetryBudget(0.0, 0)
    assert not any(budget.take(sent) for sent in range(100))


@given(st.floats(0, 1), st.integers(0, 50), st.lists(st.integers(0, 100), max_size=200))
def test_retries_never_exceed_what_is_allowed(share: float, burst: int, steps: list[int]) -> None:
    budget = RetryBudget(share, burst)
    sent = taken = 0
    for step in steps:
        sent += step
        taken += budget.take(sent)
        assert taken <= burst + share * sent + 1e-6
