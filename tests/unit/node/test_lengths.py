"""What over-commit learns, and when it holds everything after all."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines.base import EngineStats, Finished
from inference_node.lengths import KINDS, LEAST, PAUSE, WINDOW, Overcommit, Window


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def learner(quantile: float = 0.9, capacity: int = 100) -> Any:
    stats, clock = EngineStats(), Clock()
    return Overcommit(quantile, 1000, capacity, lambda: stats, clock), stats, clock


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=1500), st.floats(0.5, 0.999))
def test_a_quantile_covers_its_share_of_the_newest(lengths, share):
    window = Window()
    for length in lengths:
        window.add(length)
    newest = lengths[-WINDOW:]
    got = window.quantile(share)
    assert len(window) == len(newest) and got in newest
    assert sum(length <= got for length in newest) >= share * len(newest)


def test_holds_are_full_until_enough_is_known():
    over, _, _ = learner()
    for i in range(LEAST):
        assert over.new_tokens(10, 1000) == 1000
        over.finished(Finished(10, 1000, 20 + i % 3))
    assert over.new_tokens(10, 1000) == 22
    assert over.new_tokens(10, 5) == 5, "another size is another kind"


def test_a_hold_covers_about_the_quantile_of_what_comes():
    draw = random.Random(5)
    over, _, _ = learner(0.95)
    covered = 0
    for i in range(4000):
        length = min(1000, int(draw.lognormvariate(4.0, 0.8)))
        if i >= 1000:
            covered += length <= over.new_tokens(10, 1000)
        over.finished(Finished(10, 1000, length))
    assert covered / 3000 == pytest.approx(0.95, abs=0.02)


def test_lanes_and_sizes_are_learned_apart():
    over, _, _ = learner()
    for _ in range(LEAST):
        over.finished(Finished(10, 512, 30))
        over.finished(Finished(5000, 512, 300))
        over.finished(Finished(10, 8, 8))
    assert (over.new_tokens(10, 600), over.new_tokens(5000, 600), over.new_tokens(10, 8)) == (30, 300, 8)
    assert over.known == 3 * LEAST


def test_kinds_are_bounded_whatever_is_asked_for():
    over, _, _ = learner()
    for i in range(200):
        over.finished(Finished(10, 1 << i % 64, 1))
    assert len(over._windows) <= KINDS + 1


def test_a_preemption_brings_full_holds_for_a_while():
    over, stats, clock = learner()
    for _ in range(LEAST):
        over.finished(Finished(10, 512, 30))
    assert over.new_tokens(10, 512) == 30
    stats.preemptions += 1
    assert over.new_tokens(10, 512) == 512 and over.paused
    clock.now += PAUSE
    assert over.new_tokens(10, 512) == 30 and not over.paused


def test_the_engines_gauge_has_the_last_word():
    over, stats, _ = learner(capacity=100)
    assert over.has_room(100) and not over.has_room(101)
    stats.kv_usage = 0.95
    assert over.has_room(5) and not over.has_room(6)
