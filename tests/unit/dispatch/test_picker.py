"""Who is chosen."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_node.dispatch import Reservation, cost, hash_blocks
from tests.unit.dispatch.support import CAPACITY, Bed

TEXT = random.Random(7).randbytes(8192)
LARGE = 1 << 20


def large(count: int, seed: int = 1, **settings: Any) -> Bed:
    bed = Bed(seed, **settings)
    bed.nodes(count, capacity=LARGE)
    return bed


def quiet(bed: Bed) -> None:
    """Every node reports that it is idle."""
    for node in bed.dispatcher.nodes():
        bed.report(node.id, LARGE, capacity=LARGE)


@pytest.mark.parametrize("routers", [1, 4])
def test_a_burst_of_equal_requests_lands_evenly(routers: int) -> None:
    near = 0
    for seed in range(60):
        rng = random.Random(seed)
        beds = [large(16, seed=rng.getrandbits(32)) for _ in range(routers)]
        landed: Counter[str] = Counter()
        for _ in range(500):
            landed[rng.choice(beds).reserve(prompt_tokens=200, max_new_tokens=128).node.id] += 1
        near += max(abs(landed[f"n{i}"] - 500 / 16) for i in range(16)) <= 3
    assert near >= 57


def test_a_burst_with_one_shared_prompt_does_not_pile_up() -> None:
    """All want the node that holds the prefix; none but the first has computed it yet."""
    bed = large(16)
    prefix = hash_blocks(TEXT)
    landed: Counter[str] = Counter()
    for _ in range(320):
        landed[bed.reserve(prompt_tokens=2100, max_new_tokens=128, prefix=prefix).node.id] += 1
    assert len(landed) == 16
    assert max(landed.values()) <= 40


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15_000), st.integers(0, 900_000)), min_size=2, max_size=6), st.integers(0, 99))
def test_without_affinity_a_small_pool_gives_the_least_cost_of_all(loads: list[tuple[int, int]], seed: int) -> None:
    bed = large(len(loads), seed, draws=6)
    for i, (queued, held) in enumerate(loads):
        bed.report(f"n{i}", LARGE - held, capacity=LARGE, queued_prefill_tokens=queued)
    need = 160
    costs = {node.id: cost.score(node, need, 100, bed.clock.now) for node in bed.dispatcher.nodes()}
    chosen = bed.reserve(prompt_tokens=100, max_new_tokens=60).node
    assert costs[chosen.id] == min(costs.values())


def test_a_large_pool_gives_one_of_the_least_loaded() -> None:
    bed = large(300)
    rng = random.Random(3)
    for i in range(300):
        bed.report(f"n{i}", LARGE, capacity=LARGE, queued_prefill_tokens=rng.randrange(1000, 40_000))
    idle = {f"n{i}" for i in rng.sample(range(300), 8)}
    for node_id in idle:
        bed.report(node_id, LARGE, capacity=LARGE)
    assert {bed.reserve().node.id for _ in range(8)} == idle


def test_fast_nodes_are_drawn_before_slow_ones() -> None:
    bed = large(50)
    fast = {"n3", "n33"}
    for _ in range(20):
        for i in range(50):
            rate = 8000.0 if f"n{i}" in fast else 800.0
            bed.report(f"n{i}", LARGE, capacity=LARGE, prefill_tokens_per_second=rate)
    chosen = Counter(bed.reserve(prompt_tokens=400).node.id in fast for _ in range(8))
    assert chosen[True] == 8


def test_a_session_stays_with_its_node_and_every_router_knows_it_without_talking() -> None:
    beds = [large(8, seed=seed) for seed in range(3)]
    for i in range(40):
        session = b"chat-%d" % i
        nodes = set()
        for turn in range(4):
            for bed in beds:
                reservation = bed.reserve(session=session, prompt_tokens=500 + 300 * turn)
                nodes.add(reservation.node.id)
                reservation.end()
        assert len(nodes) == 1


def test_affinity_is_a_saving_and_never_a_veto() -> None:
    bed = large(4)
    first = bed.reserve(session=b"s", prompt_tokens=4000)
    home = first.node
    first.end()
    bed.report(home.id, LARGE, capacity=LARGE, queued_prefill_tokens=6000)  # 0.75 s ahead, and 2 × 0.5 s saved
    stay = bed.reserve(session=b"s", prompt_tokens=4100)
    assert stay.node is home and stay.reason == "session" and stay.expected_cached == 4000
    stay.end()
    bed.report(home.id, LARGE, capacity=LARGE, queued_prefill_tokens=9000)  # 1.1 s ahead
    moved = bed.reserve(session=b"s", prompt_tokens=4100)
    assert moved.node is not home
    moved.end()
    quiet(bed)
    assert bed.reserve(session=b"s", prompt_tokens=4200).node is moved.node


def test_only_uncached_tokens_are_reserved_as_prefill() -> None:
    bed = large(2)
    bed.reserve(session=b"s", prompt_tokens=1000).end()
    again = bed.reserve(session=b"s", prompt_tokens=1200)
    assert (again.prompt_tokens, again.expected_cached) == (200, 1000)
    assert again.tokens == again.node.need(1200 + 60)


def test_sessions_of_tenants_and_models_do_not_mix() -> None:
    bed = Bed()
    bed.nodes(2)
    bed.reserve(session=b"s", tenant="a", prompt_tokens=1000).end()
    other = bed.reserve(session=b"s", tenant="b", prompt_tokens=1000)
    assert other.guessed
    bed.node("x", model="other")
    assert bed.reserve(session=b"s", tenant="a", model="other", prompt_tokens=1000).guessed


def test_known_sessions_stay_when_the_pool_grows_and_new_ones_use_the_new_node() -> None:
    bed = large(8)
    homes = {}
    for i in range(400):
        reservation = bed.reserve(session=b"old-%d" % i, prompt_tokens=500)
        homes[i] = reservation.node
        reservation.end()
    newcomer = bed.node("newcomer", capacity=LARGE)
    for i, home in homes.items():
        reservation = bed.reserve(session=b"old-%d" % i, prompt_tokens=600)
        assert reservation.node is home
        reservation.end()
    fresh: Counter[bool] = Counter()
    for i in range(400):
        reservation = bed.reserve(session=b"new-%d" % i, prompt_tokens=500)
        fresh[reservation.node is newcomer] += 1
        reservation.end()
    assert fresh[True] > 15


def test_sessions_of_a_node_that_left_agree_on_the_next_in_the_ring() -> None:
    beds = [large(6, seed=seed) for seed in range(2)]
    for i in range(60):
        nodes = set()
        for bed in beds:
            first = bed.reserve(session=b"s-%d" % i)
            first.end()
            bed.dispatcher.set_link(first.node.id, False)
            second = bed.reserve(session=b"s-%d" % i)
            second.end()
            assert second.node is not first.node
            bed.dispatcher.set_link(first.node.id, True)
            nodes.add(second.node.id)
        assert len(nodes) == 1


def test_a_restarted_node_is_not_believed_to_hold_anything() -> None:
    bed = large(3)
    prefix = hash_blocks(TEXT)
    first = bed.reserve(session=b"s", prefix=prefix, prompt_tokens=2000)
    first.end()
    bed.dispatcher.on_watch_reset(first.node.id)
    bed._sequences[first.node.id] = 0
    bed.report(first.node.id, LARGE, capacity=LARGE, boot_id="second")
    again = bed.reserve(session=b"s", prefix=prefix, prompt_tokens=2000)
    assert again.guessed and again.node is first.node  # the ring still says so, but nothing is known
    assert bed.reserve(prefix=prefix, prompt_tokens=2000).expected_cached == 0 or again.node.trust == 1.0


def test_the_longest_known_prefix_draws_its_request() -> None:
    bed = large(12)
    first = bed.reserve(prefix=hash_blocks(TEXT), prompt_tokens=2000)
    first.end()
    for blocks in (16, 12, 4):
        prompt = TEXT[: 512 * blocks] + b"x" * 2048
        got = bed.reserve(prefix=hash_blocks(prompt), prompt_tokens=128 * blocks + 512)
        assert got.node is first.node and got.reason == "prefix"
        assert got.expected_cached == 128 * blocks
        got.end()


def test_when_the_holder_of_most_is_busy_one_that_holds_less_is_considered() -> None:
    bed = large(12)
    shared = hash_blocks(TEXT[:4096])
    short = bed.reserve(prefix=shared, prompt_tokens=1000)
    bed.report(short.node.id, LARGE, capacity=LARGE, queued_prefill_tokens=40_000)
    longer = bed.reserve(prefix=hash_blocks(TEXT), prompt_tokens=2000)
    assert longer.node is not short.node
    for node in bed.dispatcher.nodes():
        if node is not short.node and node is not longer.node:
            bed.report(node.id, LARGE, capacity=LARGE, queued_prefill_tokens=2000)
    bed.report(short.node.id, LARGE, capacity=LARGE)
    bed.report(longer.node.id, LARGE, capacity=LARGE, queued_prefill_tokens=40_000)
    again = bed.reserve(prefix=hash_blocks(TEXT), prompt_tokens=2000)
    assert again.node is short.node and again.expected_cached == 8 * 128


def test_an_unknown_prefix_goes_by_the_ring_where_loads_are_equal() -> None:
    nodes = set()
    for seed in range(6):
        got = large(10, seed=seed).reserve(prefix=hash_blocks(TEXT), prompt_tokens=2000)
        assert got.reason == "ring"
        nodes.add(got.node.id)
    assert len(nodes) == 1


def test_true_counts_correct_what_is_expected_of_a_node() -> None:
    bed = large(2)
    prefix = hash_blocks(TEXT)
    first = bed.reserve(prefix=prefix, prompt_tokens=2048)
    first.end()
    evicting = first.node
    for _ in range(30):
        got = bed.reserve(prefix=prefix, prompt_tokens=2048)
        got.end()
        if got.node is evicting and got.reason == "prefix":
            bed.dispatcher.observe(got, 2048, 0)
    assert evicting.trust < 1.0
    bed.report(evicting.id, LARGE, capacity=LARGE, queued_prefill_tokens=1500)
    assert bed.reserve(prefix=prefix, prompt_tokens=2048).node is not evicting


def test_bytes_become_tokens_by_what_the_pool_has_learned() -> None:
    bed = large(1)
    for _ in range(200):
        got = bed.reserve(prompt_tokens=0, prompt_bytes=9000)
        bed.dispatcher.observe(got, 1000, 0)
        got.end()
    got = bed.reserve(prompt_tokens=0, prompt_bytes=18_000)
    assert got.prompt_tokens == pytest.approx(2000, rel=0.02)


def test_large_request_finds_the_one_node_with_room_among_many() -> None:
    bed = Bed()
    bed.nodes(200, headroom=1600)
    bed.report("n77", 9000, queued_prefill_tokens=15_000)  # the longest queue by far, but the only room
    got = bed.reserve(prompt_tokens=4000, max_new_tokens=4000)
    assert got.node.id == "n77"
    assert bed.reserve(prompt_tokens=100, max_new_tokens=100).node.id != "n77"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 16_000), st.integers(0, 99))
def test_a_request_waits_only_if_it_fits_nowhere(rooms: list[int], tokens: int, seed: int) -> None:
    bed = Bed(seed)
    for i, room in enumerate(rooms):
        bed.node(f"n{i}", headroom=16 * room)
    got = bed.ask(prompt_tokens=1, max_new_tokens=tokens)
    need = -(-(tokens + 1) // 16) * 16
    assert isinstance(got, Reservation) == any(16 * room >= need for room in rooms)
    if isinstance(got, Reservation):
        assert got.node.headroom >= need == got.tokens


def test_rooms_found_out_of_date_are_put_right() -> None:
    bed = Bed()
    bed.nodes(50, headroom=4000)
    held = [bed.reserve(prompt_tokens=2000, max_new_tokens=1000) for _ in range(50)]
    assert len({each.node for each in held}) == 50
    bed.wait(prompt_tokens=2000, max_new_tokens=1000)
    pool = bed.dispatcher.resolve("m")[0]
    assert pool.roomy(3000) == []
    assert bed.reserve(prompt_tokens=500, max_new_tokens=300, tenant="t").node.room >= 0


def test_strict_affinity_waits_for_the_session_s_node_while_that_lives() -> None:
    bed = Bed(require_session_affinity=True)
    bed.nodes(3)
    first = bed.reserve(session=b"s")
    home = first.node
    bed.report(home.id, 0, counted_dispatches=(first.id,))
    waiting = bed.wait(session=b"s")
    bed.report(next(node.id for node in bed.dispatcher.nodes() if node is not home))
    assert waiting.waiting
    bed.report(home.id, CAPACITY)
    assert [granted.node for granted in bed.granted] == [home]
    bed.dispatcher.set_link(home.id, False)
    assert bed.reserve(session=b"s").node is not home


def test_blocks_of_another_size_are_rounded_by_the_node_they_belong_to() -> None:
    bed = Bed()
    bed.node("a", kv_block_tokens=128)
    bed.node("b", kv_block_tokens=16)
    seen = {}
    for _ in range(8):
        got = bed.reserve(prompt_tokens=100, max_new_tokens=50)
        seen[got.node.id] = got.tokens
    assert seen == {"a": 256, "b": 160}
