"""Pools."""

from __future__ import annotations

import pytest

from router_node.dispatch import cost
from router_node.dispatch.pool import Learned
from router_node.dispatch.prefix import MAX_BLOCKS
from tests.unit.dispatch.support import CAPACITY, MODEL, Bed


def test_node_without_a_rate_takes_the_pool_s_mean_else_the_default() -> None:
    bed = Bed()
    first = bed.node("a", max_seq_len=0)
    assert 1 / first.inv_rate == pytest.approx(8000)
    bed.dispatcher.add_node("b", "b:1", first.spec)
    bed.dispatcher.set_link("b", True)
    bed.report("b", prefill_tokens_per_second=0.0)
    unknown = bed.dispatcher.node("b")
    assert unknown is not None and 1 / unknown.inv_rate == pytest.approx(8000)
    alone = Bed()
    alone.dispatcher.add_node("c", "c:1", first.spec)
    alone.dispatcher.set_link("c", True)
    alone.report("c", prefill_tokens_per_second=0.0)
    node = alone.dispatcher.node("c")
    assert node is not None and 1 / node.inv_rate == pytest.approx(cost.DEFAULT_RATE)


def test_room_is_headroom_less_reservations_where_the_node_is_open() -> None:
    bed = Bed()
    node = bed.node("a", headroom=1000)
    assert node.room == 1000
    reservation = bed.reserve(prompt_tokens=100, max_new_tokens=60)
    assert (node.room, node.used, node.backlog) == (1000 - 160, CAPACITY - 1000 + 160, 100)
    bed.report("a", 1000, closed_reason="memory")
    assert node.room == -1
    bed.report("a", 1000)
    bed.dispatcher.set_link("a", False)
    assert node.room == -1
    bed.dispatcher.set_link("a", True)
    reservation.end()
    assert node.room == 1000


def test_running_sequences_cost_a_step_where_the_node_says_how_fast_it_decodes() -> None:
    bed = Bed()
    node = bed.node("a")
    bed.report("a", running=20)
    assert node.step == 0.0
    idle = cost.score(node, 160, 100, bed.clock.now)
    bed.report("a", running=20, decode_tokens_per_second=1000.0)
    assert node.step == pytest.approx(0.02)
    assert cost.score(node, 160, 100, bed.clock.now) == pytest.approx(idle + 0.02)
    bed.report("a", running=20, decode_tokens_per_second=1e-9)
    assert node.step == cost.LONGEST_STEP


def test_what_a_cache_saved_of_late_is_not_waited_for() -> None:
    bed = Bed()
    node = bed.node("a")
    bed.report("a", queued_prefill_tokens=4000, prefix_hit_rate=0.75)
    assert (node.queued, node.pending, node.backlog) == (4000, 1000, 1000)


def test_what_follows_the_hashed_blocks_is_held_by_the_share_that_was_found() -> None:
    learned = Learned()
    hashed = int(MAX_BLOCKS * learned.block_tokens)
    assert learned.held(MAX_BLOCKS - 1, 100_000) == hashed - int(learned.block_tokens)
    assert learned.held(MAX_BLOCKS, hashed - 1) == hashed - 1
    assert learned.held(MAX_BLOCKS, hashed + 1000) == hashed + 500
    for _ in range(200):
        learned.rest(hashed, hashed + 1000, hashed + 900)
    assert learned.held(MAX_BLOCKS, hashed + 1000) == pytest.approx(hashed + 900, abs=5)
    for _ in range(200):
        learned.rest(hashed // 2, hashed + 1000, 0)  # its blocks were not all known: it teaches nothing of the rest
    assert learned.held(MAX_BLOCKS, hashed + 1000) > hashed + 800


def test_sequences_run_out_before_tokens_do() -> None:
    bed = Bed()
    node = bed.node("a", max_num_seqs=2)
    bed.report("a", running=1)
    first, second = bed.reserve(), bed.reserve()
    assert node.room == -1
    bed.wait()
    first.end()
    assert [granted.node for granted in bed.granted] == [node]
    second.end()


def test_a_node_with_too_long_a_prefill_queue_has_no_room_when_that_is_bounded() -> None:
    bed = Bed(max_backlog=1.0)
    node = bed.node("a")
    bed.report("a", queued_prefill_tokens=8001)
    assert node.room == -1
    bed.report("a", queued_prefill_tokens=7999)
    assert node.room == CAPACITY


def test_bytes_per_token_are_learned_and_bounded() -> None:
    learned = Learned()
    for _ in range(200):
        learned.ratio(600, 100)
    assert learned.bytes_per_token == pytest.approx(6.0, rel=0.01)
    assert learned.block_tokens == pytest.approx(512 / 6, rel=0.01)
    for _ in range(400):
        learned.ratio(10**9, 1)
    assert learned.bytes_per_token <= 64.0


def test_salt_separates_models_and_revisions_and_is_the_same_everywhere() -> None:
    beds = [Bed(), Bed()]
    for bed in beds:
        bed.node("a", revision="1")
        bed.node("b", model="other")
    salts = [[bed.dispatcher.resolve(name)[0].salt for name in (MODEL, "other")] for bed in beds]
    assert salts[0] == salts[1] and salts[0][0] != salts[0][1]
