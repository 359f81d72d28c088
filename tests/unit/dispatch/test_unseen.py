"""What other routers have sent."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import Reservation
from router_node.dispatch.unseen import AT_ONCE, FROM_OTHERS, drawn, level_of
from tests.unit.dispatch.support import CAPACITY, Bed

COSTS = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8).map(sorted)


def crowd(bed: Bed, running: int) -> list[Reservation]:
    """The ten requests that a router has sent to a node that has reported ``running`` of them for long."""
    bed.node("a", max_seq_len=0)
    sent = [bed.reserve() for _ in range(10)]
    bed.report("a", CAPACITY - 1000, running=running, counted_dispatches=[r.id for r in sent])
    for _ in range(400):
        bed.report("a", CAPACITY - 1000, running=running)
    return sent


def others_of(bed: Bed, running: int) -> float:
    """What a router thinks of the others in such a ``crowd``."""
    crowd(bed, running)
    return bed.dispatcher.resolve("m")[0].unseen.others


@pytest.mark.parametrize(("running", "others"), [(10, 0.0), (20, 1.0), (80, 7.0)])
def test_requests_that_we_did_not_send_tell_of_other_routers(running: int, others: float) -> None:
    assert others_of(Bed(), running) == pytest.approx(others, abs=0.05)


def test_a_router_alone_sees_nothing_hidden() -> None:
    bed = Bed()
    assert others_of(bed, 10) < FROM_OTHERS
    bed.reserve(prompt_tokens=5000)
    assert bed.dispatcher.resolve("m")[0].unseen.tokens == 0.0


def test_that_the_others_have_gone_shows_though_few_requests_are_left() -> None:
    bed = Bed()
    sent = crowd(bed, 40)
    unseen = bed.dispatcher.resolve("m")[0].unseen
    assert unseen.others > 2
    for reservation in sent[3:]:
        reservation.end()
    for _ in range(400):
        bed.report("a", CAPACITY - 1000, running=3)
    assert unseen.others < FROM_OTHERS
    for _ in range(400):  # one of three that is not known to be over is no news of others
        bed.report("a", CAPACITY - 1000, running=4)
    assert unseen.others < FROM_OTHERS


@pytest.mark.parametrize(("gap", "gone"), [(0.0, False), (0.25, True)])
def test_reports_that_come_now_and_then_count_for_longer(gap: float, gone: bool) -> None:
    bed = Bed()
    assert others_of(bed, 80) > 6
    unseen = bed.dispatcher.resolve("m")[0].unseen
    for _ in range(20):
        bed.clock.now += gap
        bed.report("a", CAPACITY - 1000, running=10)
    assert (unseen.others < FROM_OTHERS) is gone


def test_what_is_hidden_is_what_we_have_sent_times_the_others() -> None:
    bed = Bed()
    others_of(bed, 40)
    reservation = bed.reserve(prompt_tokens=5000)
    unseen = bed.dispatcher.resolve("m")[0].unseen
    assert unseen.tokens == pytest.approx(3 * 5000, rel=0.05)
    reservation.end()
    assert unseen.tokens < 5000  # what is usual, of late


def test_a_node_that_leaves_takes_its_share_along() -> None:
    bed = Bed()
    others_of(bed, 40)
    bed.reserve(prompt_tokens=5000)
    pool = bed.dispatcher.resolve("m")[0]
    bed.dispatcher.remove_node("a")
    assert pool.unseen.tokens < 5000


@given(COSTS, st.floats(0.001, 100.0))
def test_level_holds_all_the_water(costs: list[float], hidden: float) -> None:
    level = level_of(costs, hidden)
    assert level > costs[0]
    assert sum(max(0.0, level - cost) for cost in costs) == pytest.approx(hidden, rel=1e-6, abs=1e-6)


def test_nodes_are_drawn_by_how_far_they_are_below_the_level() -> None:
    costs = [0.0, 0.5, 5.0]
    level = level_of(costs, 1.5)
    rng = random.Random(1)
    counts = Counter(drawn(costs, level, rng.random() * 1.5) for _ in range(6000))
    assert level == pytest.approx(1.0)
    assert counts[0] == pytest.approx(4000, abs=200) and counts[1] == pytest.approx(2000, abs=200)
    assert counts[2] == 0


@pytest.mark.parametrize(("routers", "least", "most"), [(1, 1, 2), (8, 4, 8)])
def test_routers_that_do_not_talk_spread_over_the_idle_nodes(routers: int, least: int, most: int) -> None:
    bed = Bed(seed=5)
    for name in "abcdefgh":
        bed.node(name, max_seq_len=0)
    warm = [bed.reserve() for _ in range(16)]
    for name in "abcdefgh":
        mine = [r.id for r in warm if r.node.id == name]
        for i in range(200):
            bed.report(name, CAPACITY - 1000, running=routers * len(mine), counted_dispatches=mine if not i else [])
    for i, name in enumerate("abcdefgh"):
        count = routers * sum(r.node.id == name for r in warm)
        bed.report(name, CAPACITY - 1000, running=count, queued_prefill_tokens=200 * i)
    homes: Counter[str] = Counter()
    bed.reserve(prompt_tokens=2000)  # each of the others likely sent as much, somewhere
    for _ in range(200):
        reservation = bed.reserve(prompt_tokens=100)
        homes[reservation.node.id] += 1
        reservation.end()
    assert least <= len(homes) <= most


def test_what_others_may_put_beside_ours_is_of_the_usual_size_and_no_larger_than_ours() -> None:
    bed = Bed()
    assert others_of(bed, 80) > 6
    unseen = bed.dispatcher.resolve("m")[0].unseen
    for _ in range(400):
        bed.reserve(prompt_tokens=40, max_new_tokens=60).end()
    assert unseen.usual_total == pytest.approx(100, abs=5)
    assert unseen.beside(50) == int(AT_ONCE * 50)
    assert unseen.beside(8000) == pytest.approx(AT_ONCE * 100, abs=8)


def test_a_router_alone_leaves_no_room_beside() -> None:
    bed = Bed()
    assert others_of(bed, 10) < FROM_OTHERS
    bed.reserve(prompt_tokens=40, max_new_tokens=60)
    assert bed.dispatcher.resolve("m")[0].unseen.beside(8000) <= 0.3 * 160
