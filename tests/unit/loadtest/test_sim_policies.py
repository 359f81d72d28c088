"""The dispatch policy against the others, on fixed seeds: a change that makes it worse shows here."""

from __future__ import annotations

import random

import pytest

from loadtest import bench_dispatch
from loadtest.sim.policies import POLICIES, View
from loadtest.sim.record import Figures
from loadtest.sim.report import median
from loadtest.sim.run import run
from loadtest.sim.suite import CASES, FASTER, FULLEST

REQUESTS = 900


def of(case: str, policy: str, seeds: int = 2) -> Figures:
    """Medians of a case of the suite, with fewer requests."""
    setting = CASES[case].setting
    return median([run(CASES[case].trace(REQUESTS, seed), setting, policy, seed) for seed in range(1, seeds + 1)])


def test_it_knows_who_is_idle() -> None:
    ours, load, requests = (of("poisson", policy) for policy in ("laya", "least-load", "least-requests"))
    assert ours.ttft_mean <= 1.03 * load.ttft_mean and ours.ttft_p99 <= 1.05 * load.ttft_p99
    assert ours.ttft_mean < 0.9 * requests.ttft_mean


def test_it_finds_shared_prefixes() -> None:
    ours, two, cache = (of("shared", policy) for policy in ("laya", "power-of-two", "cache-aware"))
    assert ours.ttft_p99 * FASTER <= two.ttft_p99
    assert ours.ttft_mean <= 1.05 * cache.ttft_mean
    assert ours.hit_rate > 0.8


def test_routers_with_old_reports_do_not_herd() -> None:
    ours, two, load = (of("stale", policy) for policy in ("laya", "power-of-two-load", "least-load"))
    assert ours.ttft_mean <= 1.05 * two.ttft_mean
    assert ours.ttft_mean < 0.8 * load.ttft_mean
    assert ours.kv_peak <= FULLEST and ours.preemptions == 0


def test_no_node_near_the_brim_is_overrun() -> None:
    ours = of("brim", "laya", seeds=1)
    assert ours.kv_mean > 0.3 and ours.kv_peak <= FULLEST and ours.preemptions == 0


@pytest.mark.parametrize("routers", [1, 4])
def test_a_burst_lands_evenly(routers: int) -> None:
    distances = sorted(bench_dispatch.burst(routers, seed) for seed in range(20))
    assert distances[18] <= 3


@pytest.mark.parametrize("name", POLICIES)
def test_other_policies_leave_out_who_is_down_or_excluded(name: str) -> None:
    policy = POLICIES[name](random.Random(1))
    views = [View(node_id) for node_id in "abc"]
    policy.begin(views)
    views[0].up = False
    for _ in range(20):
        chosen = policy.choose(None, (1, 2), {"b"})  # type: ignore[arg-type]
        assert chosen is views[2]
    assert policy.choose(None, (), {"b", "c"}) is None  # type: ignore[arg-type]


def test_published_load_is_seconds_of_queue_and_a_barrier() -> None:
    view = View("a")
    view.capacity, view.headroom, view.queued, view.rate, view.since_report = 1000, 500, 3000, 8000.0, 1000
    assert view.seconds == pytest.approx(4000 / 8000 + 0.15 * 1.0)
    view.rate = 0.0
    assert view.seconds == pytest.approx(4000 / 2000 + 0.15)


def test_cache_aware_follows_the_prefix_until_the_gate_opens() -> None:
    policy = POLICIES["cache-aware"](random.Random(1))
    views = [View(node_id) for node_id in "ab"]
    policy.begin(views)
    prefix = tuple(range(10))
    first = policy.choose(None, prefix, ())  # type: ignore[arg-type]
    assert first is not None
    first.requests = 60
    assert policy.choose(None, prefix, ()) is first  # type: ignore[arg-type]
    first.requests = 70
    assert policy.choose(None, prefix, ()) is not first  # type: ignore[arg-type]
