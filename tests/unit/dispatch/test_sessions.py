"""The memory of sessions."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch.sessions import OWNER_MASK, TOKENS_SHIFT, SessionTable

HASHES = st.integers(0, 2**64 - 1)


@given(HASHES, st.integers(1, 2**32 - 1), st.integers(0, 2**27))
def test_a_record_gives_back_what_was_recorded(key: int, owner: int, tokens: int) -> None:
    table = SessionTable(16)
    assert table.find(key) == 0
    table.record(key, owner, tokens)
    assert table.find(key) & OWNER_MASK == owner
    assert table.find(key) >> TOKENS_SHIFT == tokens


def test_absurd_token_counts_do_not_spill_into_other_fields() -> None:
    table = SessionTable(16)
    table.record(1, 5, 1 << 60)
    assert table.find(1) & OWNER_MASK == 5 and table.find(1) >> TOKENS_SHIFT >= 1 << 27


@given(st.lists(st.tuples(HASHES, st.integers(1, 9)), max_size=200), st.integers(16, 40))
def test_what_is_found_is_never_wrong_and_the_last_is_always_found(records: list[tuple[int, int]], limit: int) -> None:
    table = SessionTable(limit)
    truth: dict[int, int] = {}
    for key, owner in records:
        table.record(key, owner, 100)
        truth[key] = owner
        assert table.find(key) & OWNER_MASK == owner
    for key, owner in truth.items():
        assert table.find(key) in (0, 100 << TOKENS_SHIFT | owner)


@given(HASHES, HASHES, HASHES)
def test_of_three_that_share_a_pair_the_one_used_longest_ago_goes(a: int, b: int, c: int) -> None:
    table = SessionTable(16)
    elsewhere = (1 << 60) - 1 & ~table._mask
    a, b, c = (key & elsewhere | (i + 1) << 60 for i, key in enumerate((a, b, c)))
    for key in (a, b, a, c):
        table.record(key, 7, 1)
    assert [bool(table.find(key)) for key in (a, b, c)] == [True, False, True]
    assert len(table) == 2


def test_nearly_all_of_the_limit_are_remembered_and_the_bound_holds() -> None:
    rng = random.Random(1)
    table = SessionTable(1000)
    keys = [rng.getrandbits(64) for _ in range(1000)]
    for key in keys:
        table.record(key, 1, 1)
    assert sum(table.find(key) != 0 for key in keys) > 900
    for _ in range(20_000):
        table.record(rng.getrandbits(64), 1, 1)
    assert len(table) <= 2048


def test_forgetting_costs_no_more_than_remembering() -> None:
    """Ten times the table's size gone through: the 99th percentile of a record stays within twice."""

    def p99(table: SessionTable, rng: random.Random) -> float:
        took = []
        for _ in range(20_000):
            key = rng.getrandbits(64)
            start = time.perf_counter_ns()
            table.record(key, 1, 1)
            took.append(time.perf_counter_ns() - start)
        took.sort()
        return float(took[len(took) * 99 // 100])

    rng = random.Random(2)
    full = SessionTable(10_000)
    for _ in range(100_000):
        full.record(rng.getrandbits(64), 1, 1)
    ratios = [p99(full, rng) / max(150.0, p99(SessionTable(10_000), rng)) for _ in range(5)]
    assert min(ratios) < 2.0
