"""The cost of a node."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import NodeSpec, NodeState, cost
from router_node.dispatch.pool import Pool
from router_node.dispatch.settings import DispatchSettings

SHARES = st.floats(0.0, 0.999999)


def node_with(*, capacity: int = 100_000, used: int = 0, backlog: int = 0, rate: float = 1000.0) -> NodeState:
    node = NodeState("n", "n:1", NodeSpec("m"), 0, 1)
    node.capacity = capacity
    node.used = used
    node.backlog = node.pending = node.queued = backlog
    node.inv_rate = 1.0 / rate
    node.reported_at = 100.0
    node.plain_from, node.plain_until = -math.inf, 100.0 + cost.STALE_AFTER
    return node


@given(SHARES, SHARES)
def test_barrier_rises_with_the_share_in_use(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert cost.barrier(low) <= cost.barrier(high)


def test_barrier_is_gentle_on_an_empty_node_and_without_bound_on_a_full_one() -> None:
    assert cost.barrier(0.0) == 0.0
    assert cost.barrier(0.05) < 0.01
    assert 0.02 < cost.barrier(0.5) < 0.05
    assert cost.barrier(0.95) > 5.0
    assert cost.barrier(0.99) > 100.0
    assert cost.barrier(0.999) > 1e5


@given(st.floats(1.0, 50.0))
def test_barrier_stays_finite_when_a_request_only_just_fits(share: float) -> None:
    assert cost.barrier(1.0) <= cost.barrier(share) < math.inf


@given(
    backlog=st.integers(0, 1_000_000),
    used=st.integers(0, 90_000),
    need=st.integers(16, 10_000),
    uncached=st.integers(0, 10_000),
    rate=st.floats(1.0, 1e5),
)
def test_score_is_the_formula_of_the_module(backlog: int, used: int, need: int, uncached: int, rate: float) -> None:
    node = node_with(backlog=backlog, used=used, rate=rate)
    wanted = (backlog + cost.WORK_WEIGHT * uncached) / rate + cost.barrier((used + need) / 100_000)
    assert cost.score(node, need, uncached, 100.0) == pytest.approx(wanted)


def test_cached_tokens_are_worth_their_prefill_time_and_what_it_costs_those_behind() -> None:
    node = node_with(rate=1000.0)
    assert cost.score(node, 1600, 1000, 100.0) - cost.score(node, 1600, 200, 100.0) == pytest.approx(2 * 0.8)


def test_old_report_of_an_idle_node_attracts_less_and_less() -> None:
    pool = Pool("m", "", DispatchSettings())
    pool.mean_wait = 2.0
    node = node_with()
    node.pool = pool
    fresh = cost.score(node, 160, 100, 100.5)
    costs = [cost.score(node, 160, 100, 100.0 + age) for age in (2.0, 5.0, 20.0, 1000.0)]
    assert costs == sorted(costs) and costs[0] > fresh
    assert costs[-1] == pytest.approx(fresh + 2.0 + cost.STALE_SURCHARGE, abs=0.01)


def test_old_report_of_a_busy_node_repels_less_and_less() -> None:
    pool = Pool("m", "", DispatchSettings())
    pool.mean_wait = 0.5
    node = node_with(backlog=10_000)
    node.pool = pool
    assert cost.score(node, 160, 100, 130.0) < cost.score(node, 160, 100, 103.0) < cost.score(node, 160, 100, 100.0)


def test_silent_pool_keeps_finite_costs() -> None:
    pool = Pool("m", "", DispatchSettings())
    node = node_with()
    node.pool = pool
    assert 0 <= cost.score(node, 160, 100, 1e9) < 1.0


def test_penalty_falls_off_linearly_and_ends() -> None:
    node = node_with()
    plain = cost.score(node, 160, 100, 100.0)
    node.penalty, node.penalty_span, node.penalty_until = 4.0, 1.0, 101.0
    node.plain_from = 101.0
    assert cost.score(node, 160, 100, 100.0) == pytest.approx(plain + 4.0)
    assert cost.score(node, 160, 100, 100.5) == pytest.approx(plain + 2.0)
    assert cost.score(node, 160, 100, 101.0) == pytest.approx(plain)


@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(0, 99_999)), min_size=2, max_size=10),
    st.floats(10.0, 1e5),
)
def test_load_levels_order_nodes_as_their_costs_do(loads: list[tuple[int, int]], rate: float) -> None:
    nodes = [node_with(backlog=backlog, used=used, rate=rate) for backlog, used in loads]
    waits = [(node.backlog * node.inv_rate + cost.barrier(node.used / node.capacity), node) for node in nodes]
    waits.sort(key=lambda pair: pair[0])
    levels = [cost.load_level(node, 1.0 / rate) for _, node in waits]
    assert levels == sorted(levels)
    assert all(0 <= level < cost.LEVELS for level in levels)


def test_load_level_tells_one_request_from_none_and_thirty_from_thirty_four() -> None:
    level = [cost.load_level(node_with(backlog=100 * count, used=160 * count), 1e-3) for count in range(40)]
    assert level[0] < level[1] < level[2]
    assert level[30] < level[34]


def test_slow_idle_node_is_in_a_worse_bucket_than_a_fast_one() -> None:
    quickest = 1.0 / 8400
    assert cost.load_level(node_with(rate=8000), quickest) < cost.load_level(node_with(rate=800), quickest)
    assert cost.load_level(node_with(rate=7800), quickest) == cost.load_level(node_with(rate=8400), quickest)
