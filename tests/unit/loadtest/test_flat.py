"""Flat, growing, or too short: on courses that are known."""

from __future__ import annotations

import random

import pytest

from loadtest.flat import judge


def course(slope: float, n: int = 200, noise: float = 1.0, seed: int = 1) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    at = [i * 60.0 for i in range(n)]
    return at, [100.0 + slope * s / 3600.0 + rng.gauss(0.0, noise) for s in at]


def test_noise_is_flat_whatever_its_seed() -> None:
    assert [judge(*course(0.0, seed=seed), 1.0).verdict for seed in range(20)] == ["flat"] * 20


def test_a_steady_leak_is_seen_with_its_size() -> None:
    found = judge(*course(5.0), 4.0)
    assert found.verdict == "grows"
    assert found.per_hour == pytest.approx(5.0, rel=0.1)
    assert found.growth == pytest.approx(5.0 * 160 * 60 / 3600, rel=0.1)


def test_a_leak_that_is_allowed_is_flat() -> None:
    assert judge(*course(5.0), 20.0).verdict == "flat"


def test_warming_up_is_no_leak() -> None:
    at = [i * 1.0 for i in range(100)]
    assert judge(at, [min(50.0, 3.0 * i) for i in range(100)], 1.0).verdict == "flat"


def test_a_step_and_a_few_odd_looks_are_no_trend() -> None:
    at, values = course(0.0)
    for i in (50, 90, 150):
        values[i] += 500.0
    assert judge(at, values, 2.0).verdict == "flat"


def test_steps_of_whole_numbers_that_go_on_are_seen() -> None:
    at = [i * 10.0 for i in range(300)]
    found = judge(at, [float(20 + i // 25) for i in range(300)], 4.0)
    assert found.verdict == "grows" and found.last > found.first


def test_what_falls_is_flat() -> None:
    assert judge(*course(-50.0), 1.0).verdict == "flat"


def test_a_short_run_says_so() -> None:
    assert judge([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], 0.0).verdict == "too short to say"
    assert judge([], [], 1.0).verdict == "too short to say"
    assert judge([5.0] * 9, [1.0] * 9, 1.0).verdict == "flat"
