"""The consistent-hash ring."""

from __future__ import annotations

import random
import time

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from router_node.dispatch.ring import POINTS, HashRing

KEYS = [xxhash.xxh3_64_intdigest(b"session-%d" % i) for i in range(4000)]
NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique=True)


def ring_of(names: list[str]) -> HashRing:
    ring = HashRing()
    for slot, name in enumerate(names):
        ring.add(name, slot)
    return ring


def owners(ring: HashRing, names: list[str]) -> list[str]:
    return [names[ring.lookup(key)] for key in KEYS]


@given(NAMES, st.randoms(use_true_random=False))
def test_every_router_gives_the_same_answer_whatever_the_order_of_events(names: list[str], rng: random.Random) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)
    ring = ring_of(names)
    other = HashRing()
    for slot, name in enumerate([*shuffled, "gone"]):
        other.add(name, slot)
    other.remove("gone")
    for key in KEYS[:200]:
        assert names[ring.lookup(key)] == shuffled[other.lookup(key)]


@given(NAMES)
def test_new_node_takes_keys_only_for_itself(names: list[str]) -> None:
    ring = ring_of(names)
    before = [ring.lookup(key) for key in KEYS[:500]]
    ring.add("the newcomer", len(names))
    for key, old in zip(KEYS[:500], before, strict=True):
        assert ring.lookup(key) in (old, len(names))
    ring.remove("the newcomer")
    assert [ring.lookup(key) for key in KEYS[:500]] == before


def test_new_node_gets_its_share_of_the_keys() -> None:
    names = [f"node-{i}" for i in range(10)]
    ring = ring_of(names[:9])
    ring.add(names[9], 9)
    taken = sum(ring.lookup(key) == 9 for key in KEYS) / len(KEYS)
    assert 0.06 < taken < 0.14


def test_keys_spread_evenly() -> None:
    names = [f"node-{i}" for i in range(20)]
    ring = ring_of(names)
    counts = [0] * 20
    for i in range(100_000):
        counts[ring.lookup(xxhash.xxh3_64_intdigest(b"%d" % i))] += 1
    assert max(counts) < 1.45 * 5000 and min(counts) > 0.6 * 5000


def test_weight_scales_the_share() -> None:
    ring = HashRing()
    ring.add("a", 0, weight=3.0)
    ring.add("b", 1)
    share = sum(ring.lookup(key) == 0 for key in KEYS) / len(KEYS)
    assert 0.65 < share < 0.85
    ring.add("a", 0, weight=1.0)
    assert 0.35 < sum(ring.lookup(key) == 0 for key in KEYS) / len(KEYS) < 0.65
    assert len(ring) == 2


def test_changed_slot_is_answered_at_once() -> None:
    ring = ring_of(["a", "b"])
    before = [ring.lookup(key) for key in KEYS[:100]]
    ring.add("a", 7)
    assert [ring.lookup(key) for key in KEYS[:100]] == [7 if slot == 0 else slot for slot in before]


def test_empty_ring_has_no_answer() -> None:
    ring = HashRing()
    assert ring.lookup(5) == -1
    assert list(ring.walk(5)) == []
    ring.remove("nobody")


@given(NAMES, st.integers(0, 2**64 - 1))
def test_walk_begins_at_the_owner_and_visits_everyone_once(names: list[str], key: int) -> None:
    ring = ring_of(names)
    seen = list(ring.walk(key))
    assert seen[0] == ring.lookup(key)
    assert sorted(seen) == list(range(len(names)))


@given(NAMES, st.integers(0, 2**64 - 1))
def test_second_in_the_walk_is_who_owns_the_key_once_the_first_has_gone(names: list[str], key: int) -> None:
    ring = ring_of(names)
    seen = list(ring.walk(key))
    ring.remove(names[seen[0]])
    assert ring.lookup(key) == (seen[1] if len(seen) > 1 else -1)


def test_change_of_a_large_ring_is_cheap() -> None:
    ring = ring_of([f"node-{i}" for i in range(1000)])
    assert len(ring) == 1000
    best = float("inf")
    for i in range(5):
        start = time.thread_time()
        ring.add(f"more-{i}", 1000 + i)
        best = min(best, time.thread_time() - start)
    assert best < 0.02, f"{POINTS} points took {best * 1000:.1f} ms"
