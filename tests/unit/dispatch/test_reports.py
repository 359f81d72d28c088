"""Reports cannot harm the router's view."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch import Ask, NodeSpec, NodeState, Report, Reservation, Verdict
from router_node.dispatch.reports import MAX_RATE, MAX_TOKENS, apply, watch_reset
from router_node.dispatch.types import UNLIMITED


def node(**spec: Any) -> NodeState:
    return NodeState("n", "n:1", NodeSpec("m", **spec), 0, 1)


def started(**spec: Any) -> NodeState:
    on = node(**spec)
    assert apply(on, report(1, full=True), 10.0) == (Verdict.ACCEPTED, False)
    return on


def report(sequence: int, **numbers: Any) -> Report:
    numbers.setdefault("kv_capacity_tokens", 1600)
    numbers.setdefault("headroom_tokens", 1600)
    numbers.setdefault("boot_id", "b1")
    return Report(sequence, **numbers)


def reserve(on: NodeState, number: int) -> Reservation:
    return Reservation(b"w-%x" % number, Ask("m"), (on, 0, "headroom", False), 160, 100, lambda _: None)


def test_numbers_are_taken_over() -> None:
    on = started(max_num_seqs=8)
    numbers = {
        "headroom_tokens": 800,
        "running": 3,
        "waiting": 2,
        "queued_prefill_tokens": 500,
        "prefix_hit_rate": 0.5,
        "prefill_tokens_per_second": 1000.0,
        "decode_tokens_per_second": 50.0,
        "draining": True,
        "closed_reason": "memory",
    }
    assert apply(on, report(2, **numbers), 11.0)[0] is Verdict.ACCEPTED
    assert (on.capacity, on.headroom, on.running, on.waiting, on.queued) == (1600, 800, 3, 2, 500)
    assert (on.hit_rate, on.prefill_rate, on.decode_rate) == (0.5, 1000.0, 50.0)
    assert on.draining and on.ready and on.closed_reason == "memory"
    assert on.seats == 8 + 1 - 5
    assert on.reported_at == 11.0 and on.bad_reports == 0


def test_a_watch_begins_with_a_full_report() -> None:
    on = node()
    assert apply(on, report(1), 10.0)[0] is Verdict.WAITING_FULL
    assert on.reported_at < 0 and on.capacity == 0
    assert apply(on, report(2, full=True), 10.0)[0] is Verdict.ACCEPTED
    watch_reset(on)
    assert apply(on, report(3), 11.0)[0] is Verdict.WAITING_FULL
    assert on.headroom == 1600
    assert apply(on, report(1, full=True, headroom_tokens=160), 12.0)[0] is Verdict.ACCEPTED
    assert on.headroom == 160


def test_a_late_report_gives_its_ids_but_not_its_numbers() -> None:
    on = started()
    first, second = reserve(on, 1), reserve(on, 2)
    assert apply(on, report(3, headroom_tokens=1280, counted_dispatches=("w-2",)), 11.0)[0] is Verdict.GAP
    assert [first.held, second.held] == [True, False]
    assert apply(on, report(2, headroom_tokens=1440, counted_dispatches=("w-1",)), 12.0)[0] is Verdict.STALE
    assert [first.held, second.held] == [False, False]
    assert on.headroom == 1280 and on.reported_at == 11.0
    assert apply(on, report(3, headroom_tokens=16), 13.0)[0] is Verdict.STALE
    assert on.headroom == 1280


def test_a_full_report_closes_a_gap() -> None:
    on = started()
    lost = reserve(on, 1)
    assert apply(on, report(9), 11.0)[0] is Verdict.GAP
    assert apply(on, report(10), 11.5)[0] is Verdict.ACCEPTED
    assert list(on.uncounted) == [lost.id]
    watch_reset(on)
    assert apply(on, report(1, full=True, counted_dispatches=("w-1",)), 12.0)[0] is Verdict.ACCEPTED
    assert not on.uncounted and on.reserved_tokens == 0


def test_another_boot_is_noticed_and_the_old_one_is_heard_no_more() -> None:
    on = started()
    assert apply(on, report(1, boot_id="b2"), 11.0) == (Verdict.WAITING_FULL, False)
    assert apply(on, report(1, boot_id="b2", full=True, headroom_tokens=320), 11.0) == (Verdict.ACCEPTED, True)
    assert apply(on, report(50, boot_id="b1", full=True), 12.0) == (Verdict.STALE, False)
    assert on.headroom == 320 and on.boot_id == "b2"
    assert apply(on, report(2, boot_id="b2", headroom_tokens=160), 13.0) == (Verdict.ACCEPTED, False)


def test_boots_remembered_are_bounded() -> None:
    on = node()
    for i in range(100):
        apply(on, report(1, boot_id=f"boot-{i}", full=True), 10.0)
    assert len(on.past_boots) <= 8


def test_headroom_over_capacity_is_cut_and_counted() -> None:
    on = started()
    apply(on, report(2, headroom_tokens=99_999), 11.0)
    assert on.headroom == on.capacity == 1600 and on.bad_reports == 1


def test_capacity_is_whole_blocks() -> None:
    on = node(kv_block_tokens=128)
    apply(on, report(1, full=True, kv_capacity_tokens=1600, headroom_tokens=1600), 10.0)
    assert on.capacity == on.headroom == 1536 and on.bad_reports == 0


@pytest.mark.parametrize(
    "nonsense",
    [
        {"headroom_tokens": -5},
        {"kv_capacity_tokens": 0},
        {"kv_capacity_tokens": -1},
        {"kv_capacity_tokens": 1 << 60, "headroom_tokens": 1 << 60},
        {"headroom_tokens": -(1 << 63)},
        {"queued_prefill_tokens": -1},
        {"queued_prefill_tokens": 1 << 63},
        {"running": -1},
        {"prefill_tokens_per_second": math.nan},
        {"prefill_tokens_per_second": math.inf},
        {"prefill_tokens_per_second": -1.0},
        {"decode_tokens_per_second": 1e30},
        {"prefix_hit_rate": math.nan},
        {"prefix_hit_rate": 1.5},
    ],
)
def test_a_number_that_makes_no_sense_leaves_the_one_before(nonsense: dict[str, Any]) -> None:
    on = started()
    good = report(2, headroom_tokens=800, queued_prefill_tokens=7, running=2, prefix_hit_rate=0.5)
    good.prefill_tokens_per_second = 100.0
    apply(on, good, 11.0)
    before = (on.capacity, on.headroom, on.queued, on.running, on.prefill_rate, on.decode_rate, on.hit_rate)
    bad = report(3, headroom_tokens=800, queued_prefill_tokens=7, running=2, prefix_hit_rate=0.5)
    for name, value in nonsense.items():
        setattr(bad, name, value)
    assert apply(on, bad, 12.0)[0] is Verdict.ACCEPTED
    assert before == (on.capacity, on.headroom, on.queued, on.running, on.prefill_rate, on.decode_rate, on.hit_rate)
    assert on.bad_reports == 1


COUNTS = st.integers(-(2**70), 2**70)
RATES = st.one_of(st.floats(), st.just(math.nan))
NUMBERS = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, RATES, RATES, RATES)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 40), st.booleans()), max_size=20))
def test_whatever_a_node_says_the_view_stays_sound(reports: list[tuple[Any, int, bool]]) -> None:
    on = node(max_num_seqs=4)
    for numbers, sequence, full in reports:
        said = report(sequence, full=full)
        (
            said.kv_capacity_tokens,
            said.headroom_tokens,
            said.running,
            said.waiting,
            said.queued_prefill_tokens,
            said.prefix_hit_rate,
            said.prefill_tokens_per_second,
            said.decode_tokens_per_second,
        ) = numbers
        apply(on, said, 10.0)
        assert 0 <= on.headroom <= on.capacity <= MAX_TOKENS
        assert 0 <= on.queued <= MAX_TOKENS
        assert 0 <= on.prefill_rate <= MAX_RATE and 0 <= on.decode_rate <= MAX_RATE
        assert 0 <= on.hit_rate <= 1
        assert on.seats <= UNLIMITED


def test_prefill_rate_is_smoothed_and_silence_keeps_it() -> None:
    on = started()
    apply(on, report(2, prefill_tokens_per_second=1000.0), 11.0)
    assert on.prefill_rate == 1000.0
    apply(on, report(3, prefill_tokens_per_second=2000.0), 12.0)
    assert 1000.0 < on.prefill_rate < 2000.0
    rate = on.prefill_rate
    apply(on, report(4, prefill_tokens_per_second=0.0), 13.0)
    assert on.prefill_rate == rate


def test_sequences_without_a_limit_are_not_counted() -> None:
    on = started(max_num_seqs=0)
    apply(on, report(2, running=10_000), 11.0)
    assert on.seats == UNLIMITED
