"""A lane's order and sums."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_node.lanes import MAX_PRIORITY, Lane, Need, Waiter, first_of, order_of


def waiter(lane: Lane, order: tuple[float, int], tokens: int = 10, n: int = 1) -> Waiter:
    return Waiter(lane, Need([tokens], 5, n), 3, 0, 0.0, order, lambda outcome: None, lane.leave)


def test_sums_follow_who_waits():
    lane = Lane("short")
    one, two = waiter(lane, (1.0, 1), 10), waiter(lane, (2.0, 2), 20, 2)
    lane.push(two)
    lane.push(one)
    assert (lane.waiting, lane.tokens, lane.blocks, lane.sequences) == (2, 30, 6, 3)
    assert lane.head() is one
    one.cancel()
    one.cancel()
    assert lane.head() is two and (lane.waiting, lane.tokens, lane.blocks, lane.sequences) == (1, 20, 3, 2)
    two.cancel()
    assert lane.head() is None and len(lane) == 0 and lane.live() == []


def test_a_newcomer_goes_first_by_its_order_alone():
    lane = Lane("short")
    assert lane.goes_first(waiter(lane, (9.0, 9)))
    lane.push(waiter(lane, (5.0, 1)))
    assert lane.goes_first(waiter(lane, (4.9, 2))) and not lane.goes_first(waiter(lane, (5.0, 2)))


def test_heads_of_two_lanes_take_turns_by_order():
    lane = Lane("x")
    old, new = waiter(lane, (1.0, 1)), waiter(lane, (1.0, 2))
    assert first_of(new, old) == (old, new) == first_of(old, new)
    assert first_of(None, old) == (old, None) == first_of(old, None)
    assert first_of(None, None) == (None, None)


@given(st.lists(st.tuples(st.integers(-200, 200), st.floats(0, 100)), min_size=2, max_size=20))
def test_equal_priorities_are_served_in_order_of_arrival_and_ageing_lifts_the_rest(items):
    items = sorted(items, key=lambda item: item[1])
    orders = [order_of(priority, asked, 2.0, number) for number, (priority, asked) in enumerate(items)]
    for i, (one, at) in enumerate(items):
        for j, (two, later) in enumerate(items[i + 1 :], i + 1):
            if one == two:
                assert orders[i] < orders[j]
            if abs(one) <= MAX_PRIORITY and later - at > 2.0 * abs(one) + 2.0 * MAX_PRIORITY:
                assert orders[i] < orders[j], "whoever waits long enough goes first"


def test_cancelling_in_any_order_leaves_no_pile():
    lane, draw = Lane("short"), random.Random(3)
    keep = waiter(lane, (-1.0, 0))
    lane.push(keep)
    all_of_them: list[Any] = [waiter(lane, (float(i), i)) for i in range(1000)]
    for one in all_of_them:
        lane.push(one)
    draw.shuffle(all_of_them)
    for one in all_of_them:
        one.cancel()
    assert len(lane) <= 65 and lane.waiting == 1 and lane.head() is keep
