"""What a refusal teaches."""

from __future__ import annotations

from router_node.dispatch import Reservation, Ticket
from router_node.dispatch.refusals import MAX_CAP, MAX_HINT, MAX_PENALTY, learn
from router_node.dispatch.types import UNLIMITED
from tests.unit.dispatch.support import CAPACITY, Bed


def test_a_refused_request_is_not_sent_there_again_while_the_node_rests() -> None:
    bed = Bed()
    only = bed.node("a")
    refused = bed.reserve(prompt_tokens=1000, max_new_tokens=600)
    bed.dispatcher.on_refused(refused, 0.5)
    assert refused.ended and only.reserved_tokens == 0
    waiting = bed.ask(prompt_tokens=1000, max_new_tokens=600)
    assert isinstance(waiting, Ticket)
    assert bed.woken and bed.woken[-1] == bed.clock.now + 0.5
    bed.clock.now += 0.5
    bed.dispatcher.expire(bed.clock.now)
    assert [granted.node for granted in bed.granted] == [only]


def test_smaller_requests_still_fit_after_one_refusal() -> None:
    bed = Bed()
    bed.node("a")
    bed.dispatcher.on_refused(bed.reserve(prompt_tokens=1000, max_new_tokens=600), 0.5)
    assert isinstance(bed.ask(prompt_tokens=100, max_new_tokens=100), Reservation)


def test_equal_requests_prefer_another_node_until_the_penalty_is_over() -> None:
    bed = Bed()
    liar, honest = bed.nodes(2)
    while (first := bed.reserve(prompt_tokens=50, max_new_tokens=50)).node is not liar:
        first.end()
    bed.dispatcher.on_refused(first, 0.2)
    for _ in range(10):
        again = bed.reserve(prompt_tokens=10, max_new_tokens=10)
        assert again.node is honest
        again.end()
    bed.clock.now += 1.0
    bed.report("n0")
    bed.report("n1")
    seen = set()
    for _ in range(40):
        again = bed.reserve(prompt_tokens=10, max_new_tokens=10)
        seen.add(again.node)
        again.end()
    assert seen == {liar, honest}


def test_a_node_that_lies_is_found_out_within_a_second() -> None:
    """It always says that it has room, and refuses all: of 20 requests a second it soon gets next to none."""
    bed = Bed()
    liar, honest = bed.nodes(2, capacity=1 << 20)
    refusals = []
    for step in range(100):
        bed.clock.now += 0.05
        bed.report("n0", 1 << 20, capacity=1 << 20)
        bed.report("n1", 1 << 20, capacity=1 << 20)
        reservation = bed.reserve(prompt_tokens=100, max_new_tokens=100)
        if reservation.node is liar:
            refusals.append(step)
            bed.dispatcher.on_refused(reservation, None)
            again = bed.dispatcher.retry(reservation, {liar.id})
            assert again is not None and again.node is honest
            reservation = again
        bed.dispatcher.observe(reservation, 100, 0)
        reservation.end()
    assert len(refusals) <= 8
    assert sum(step < 20 for step in refusals) <= 4


def test_refusals_in_a_row_rest_longer_and_are_bounded() -> None:
    bed = Bed()
    node = bed.node("a")
    spans, caps = [], []
    for _ in range(30):
        node.cap_until = 0.0
        learn(node, None, None, bed.clock.now)
        spans.append(node.cap_until - bed.clock.now)
        caps.append(node.room_cap)
    assert spans == sorted(spans) and spans[-1] <= MAX_CAP + 1e-6
    assert caps == sorted(caps, reverse=True) and caps[0] < CAPACITY and caps[-1] == 0
    assert node.penalty <= MAX_PENALTY


def test_a_node_s_own_hint_is_believed_up_to_a_second() -> None:
    bed = Bed()
    node = bed.node("a")
    learn(node, None, 3600.0, bed.clock.now)
    assert node.cap_until - bed.clock.now <= MAX_HINT + 1e-6
    for hint in (-1.0, 0.0, float("nan")):
        node.refusals, node.cap_until = 0, 0.0
        learn(node, None, hint, bed.clock.now)
        assert 0 < node.cap_until - bed.clock.now < 0.2


def test_a_counted_or_answered_dispatch_clears_the_name() -> None:
    bed = Bed()
    node = bed.node("a")
    taken = bed.reserve()
    bed.dispatcher.on_refused(bed.reserve(), None)
    bed.dispatcher.on_refused("a", 0.1)
    assert node.refusals == 2
    bed.report("a", counted_dispatches=(taken.id,))
    assert node.refusals == 0
    bed.dispatcher.on_refused("a", 0.1)
    bed.dispatcher.observe(taken, 100, 0)
    assert node.refusals == 0


def test_a_cap_ends_with_a_report_once_its_time_is_over() -> None:
    bed = Bed()
    node = bed.node("a")
    bed.dispatcher.on_refused("a", 0.2)
    assert node.room < CAPACITY
    bed.clock.now += 0.1
    bed.report("a")
    assert node.room < CAPACITY
    bed.clock.now += 0.11
    bed.report("a")
    assert node.room == CAPACITY and node.room_cap == UNLIMITED


def test_refusals_of_nodes_that_are_gone_are_nothing() -> None:
    bed = Bed()
    bed.node("a")
    reservation = bed.reserve()
    bed.dispatcher.remove_node("a")
    bed.dispatcher.on_refused(reservation, 1.0)
    bed.dispatcher.on_refused("nobody", 1.0)
    assert reservation.ended and bed.dispatcher.reserved_tokens == 0


def test_who_was_refused_waits_for_a_node_that_is_sure_to_take_it() -> None:
    bed = Bed()
    for name in "ab":
        bed.node(name)
        bed.report(name, queued_prefill_tokens=8000, waiting=1)  # a second of prefill, and somebody waits there
    refused = bed.reserve()
    bed.dispatcher.on_refused(refused, 0.1)
    assert bed.dispatcher.retry(refused, {refused.node.id}) is None
    assert isinstance(bed.dispatcher.submit(refused.ask, bed.granted.append, bed.refused.append), Ticket)
    assert bed.granted == []
    other = "b" if refused.node.id == "a" else "a"
    bed.report(other, queued_prefill_tokens=100)
    assert [granted.node.id for granted in bed.granted] == [other]
