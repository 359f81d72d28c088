"""Arrivals by the clock, the cap of what is in flight, and the sharing of a trace."""

from __future__ import annotations

import random
import statistics

import pytest

from loadtest.users.arrivals import Feed, Gate, arrivals


def test_poisson_gaps_have_the_rate_and_the_spread() -> None:
    source = arrivals("poisson", 20.0, random.Random(1))
    gaps = [source.gap() for _ in range(20_000)]
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.05)


def test_constant_gaps_are_even_and_begin_anywhere() -> None:
    firsts = set()
    for seed in range(5):
        source = arrivals("constant", 4.0, random.Random(seed))
        firsts.add(source.gap())
        assert [source.gap() for _ in range(3)] == [0.25] * 3
    assert len(firsts) == 5 and all(0 <= first < 0.25 for first in firsts)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), 1e6])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="--rate"):
        arrivals("poisson", rate, random.Random(1))


def test_the_gate_counts_whom_it_refuses() -> None:
    gate = Gate(2)
    assert [gate.enter() for _ in range(4)] == [True, True, False, False]
    gate.leave()
    assert gate.enter() and (gate.refused, gate.most, gate.in_flight) == (2, 2, 2)


def test_parts_of_a_feed_share_every_row_once() -> None:
    rows = [(float(i), i) for i in range(10)]
    feeds = [Feed(rows, part, 3) for part in range(3)]
    got = [[row[1] for row in iter(feed.next, None)] for feed in feeds]
    assert got == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_a_row_that_is_put_back_is_given_to_the_next() -> None:
    feed = Feed([(0.0, "a"), (1.0, "b")])
    row = feed.next()
    assert row is not None
    feed.put_back(row)
    assert [feed.next(), feed.next(), feed.next()] == [(0.0, "a"), (1.0, "b"), None]
    assert feed.held == 2
    feed.begun()
    assert feed.held == 1
