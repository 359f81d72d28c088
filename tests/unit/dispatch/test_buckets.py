"""Buckets of nodes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router_node.dispatch import NodeSpec, NodeState
from router_node.dispatch.buckets import ROOM_LEVELS, Buckets, room_level

LEVELS = 24


def node_at(slot: int) -> NodeState:
    return NodeState(f"n{slot}", "", NodeSpec("m"), slot, slot + 1)


class BucketsMachine(RuleBasedStateMachine):
    """Against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [node_at(slot) for slot in range(12)]
        self.buckets = Buckets(LEVELS)
        for slot in range(12):
            self.buckets.admit(slot)
        self.truth: dict[NodeState, int] = {}

    @rule(slot=st.integers(0, 11), level=st.integers(0, LEVELS - 1))
    def place(self, slot: int, level: int) -> None:
        self.buckets.place(self.nodes[slot], level)
        self.truth[self.nodes[slot]] = level

    @rule(slot=st.integers(0, 11))
    def remove(self, slot: int) -> None:
        self.buckets.remove(self.nodes[slot])
        self.truth.pop(self.nodes[slot], None)

    @rule(want=st.integers(0, 14), seed=st.integers(0, 2**32))
    def draw(self, want: int, seed: int) -> None:
        drawn = self.buckets.draw(want, random.Random(seed).random)
        assert len(drawn) == len(set(drawn)) == min(want, len(self.truth))
        best = sorted(self.truth.values())[: len(drawn)]
        assert sorted(self.truth[node] for node in drawn) == best

    @rule(level=st.integers(0, LEVELS - 1))
    def above(self, level: int) -> None:
        found = [node for bucket in self.buckets.above(level) for node in bucket]
        assert set(found) == {node for node, at in self.truth.items() if at >= level}
        levels = [self.truth[node] for node in found]
        assert levels == sorted(levels, reverse=True)

    @invariant()
    def agrees(self) -> None:
        assert len(self.buckets) == len(self.truth)
        assert {level for level in range(LEVELS) if self.buckets.mask >> level & 1} == set(self.truth.values())
        for node in self.nodes:
            assert self.buckets.levels[node.slot] == self.truth.get(node, -1)
        top = max(self.truth.values(), default=-1)
        assert set(self.buckets.last()) == {node for node, level in self.truth.items() if level == top}


TestBuckets = BucketsMachine.TestCase


def test_draws_from_one_bucket_reach_everyone_about_equally() -> None:
    buckets = Buckets(4)
    nodes = [node_at(slot) for slot in range(10)]
    for node in nodes:
        buckets.admit(node.slot)
        buckets.place(node, 2)
    rng = random.Random(1)
    counts = dict.fromkeys(nodes, 0)
    for _ in range(10_000):
        for node in buckets.draw(3, rng.random):
            counts[node] += 1
    assert min(counts.values()) > 2700 and max(counts.values()) < 3300


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_room_levels_grow_with_room(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert 0 <= room_level(low) <= room_level(high) < ROOM_LEVELS


@given(st.integers(8, 2**38))
def test_room_level_tells_half_from_whole(room: int) -> None:
    assert room_level(room) < room_level(2 * room)


def test_a_capacity_that_is_a_power_of_two_is_not_at_the_edge_of_its_bucket() -> None:
    for bits in range(10, 30):
        assert room_level(1 << bits) == room_level((1 << bits) - (1 << bits) // 32)
