"""The bounded memory."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch.generations import Generations


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 60), st.integers()), max_size=400))
def test_never_more_than_the_limit_and_never_a_wrong_value(limit: int, puts: list[tuple[int, int]]) -> None:
    memory: Generations[int] = Generations(limit)
    truth: dict[int, int] = {}
    for key, value in puts:
        memory.put(key, value)
        truth[key] = value
        assert len(memory) <= max(2, limit)
        for other, found in memory.items():
            assert truth[other] == found == memory.get(other)
    assert len(dict(memory.items())) == len(memory)


@given(st.integers(4, 60))
def test_the_most_recent_half_of_the_limit_is_remembered(limit: int) -> None:
    memory: Generations[int] = Generations(limit)
    for key in range(10 * limit):
        memory.put(key, key)
        for recent in range(max(0, key - limit // 2 + 1), key + 1):
            assert memory.get(recent) == recent


def test_what_is_used_again_survives_any_number_of_turnovers() -> None:
    memory: Generations[int] = Generations(64)
    for i in range(10_000):
        memory.put(-1, i)
        memory.put(i, i)
        assert memory.get(-1) == i


def test_discard_forgets_in_both_generations() -> None:
    memory: Generations[int] = Generations(8)
    for key in range(5):
        memory.put(key, key)
    memory.put(0, 9)
    memory.discard(0)
    memory.discard(77)
    assert memory.get(0) is None


def test_settle_after_direct_puts_keeps_the_bound() -> None:
    memory: Generations[int] = Generations(16)
    for start in range(0, 600, 6):
        for key in range(start, start + 6):
            memory.young[key] = key
        memory.settle(6)
        assert len(memory) <= 16 + 6
        assert memory.get(start + 5) == start + 5


def test_forgetting_costs_no_storm() -> None:
    """A put at ten times the limit costs no more than twice one that forgets nothing, at the 99th percentile."""

    def p99(memory: Generations[int], first: int) -> float:
        took = []
        for key in range(first, first + 20_000):
            start = time.perf_counter_ns()
            memory.put(key * 7919 + 1, key)
            took.append(time.perf_counter_ns() - start)
        took.sort()
        return float(took[len(took) * 99 // 100])

    limit = 10_000
    full: Generations[int] = Generations(limit)
    for key in range(10 * limit):
        full.put(key * 7919 + 1, key)
    ratios = [p99(full, (10 + 2 * i) * limit) / max(150.0, p99(Generations(1 << 20), 0)) for i in range(5)]
    assert min(ratios) < 2.0
