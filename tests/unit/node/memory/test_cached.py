"""Who put what into the prefix cache, and what is left of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.cached import CachedPrompts


def made(limit: int = 100) -> tuple[CachedPrompts, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []
    return CachedPrompts(lambda owner, kept: told.append((owner, kept)), limit), told


def test_an_evicted_block_leaves_what_is_in_front_of_it() -> None:
    cached, told = made()
    cached.stored([b"a", b"b"], None, 16, "w-1")
    cached.stored([b"c"], b"b", 16, "w-1")
    cached.removed([b"c", b"b"])
    assert told == [("w-1", 32), ("w-1", 16)] and len(cached) == 1


def test_whoever_used_a_shared_block_last_is_told() -> None:
    cached, told = made()
    cached.stored([b"a", b"b"], None, 16, "w-1")
    cached.stored([b"a"], None, 16, "w-2")
    cached.removed([b"b", b"a"])
    assert told == [("w-1", 16), ("w-2", 0)]


def test_nobody_is_told_of_blocks_of_nobody_but_they_give_others_their_place() -> None:
    cached, told = made()
    cached.stored([1, 2], None, 8, "")
    cached.stored([3], 2, 8, "w-1")
    cached.removed([3, 2, 1, 77])
    assert told == [("w-1", 16)]


def test_a_block_behind_an_unknown_one_has_no_place() -> None:
    cached, told = made()
    cached.stored([b"c"], b"unknown", 16, "w-1")
    cached.removed([b"c"])
    assert not told and not len(cached)


def test_a_cleared_cache_keeps_nothing_of_anybody() -> None:
    cached, told = made()
    cached.stored([1, 2], None, 8, "w-1")
    cached.stored([3], None, 8, "w-2")
    cached.stored([4], None, 8, "")
    cached.cleared()
    assert sorted(told) == [("w-1", 0), ("w-2", 0)] and not len(cached)


def test_what_is_forgotten_is_not_told() -> None:
    cached, told = made()
    cached.stored([1, 2], None, 8, "w-1")
    cached.forget()
    cached.removed([1, 2])
    assert not told


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=200), st.integers(1, 20))
def test_what_is_remembered_is_bounded(steps: list[tuple[int, bool]], limit: int) -> None:
    cached, _ = made(limit)
    for name, store in steps:
        if store:
            cached.stored([name], None, 16, "w-1")
        else:
            cached.removed([name])
        assert len(cached) <= limit + 1
