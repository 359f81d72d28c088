"""Prompt blocks and who holds them."""

from __future__ import annotations

import random
import time

import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router_node.dispatch.prefix import BLOCK_BYTES, MAX_BLOCKS, Holders, PrefixMap, hash_blocks


def send(prefixes: PrefixMap, chain: list[int], slot: int) -> int:
    """As a dispatch does it."""
    return prefixes.insert(chain, *prefixes.match(chain), slot)


def match(prefixes: PrefixMap, chain: list[int]) -> list[set[int]]:
    """Holders of the leading blocks."""
    return [holders(entry) for entry in prefixes.match(chain)[0]]


def holders(entry: Holders) -> set[int]:
    assert sorted(set(entry.slots)) == entry.slots and all(entry.has(slot) for slot in entry.slots)
    return set(entry.slots)


@given(st.binary(max_size=4 * BLOCK_BYTES), st.integers(0, 2**64 - 1))
def test_blocks_are_chained_and_whole(data: bytes, seed: int) -> None:
    hashes = hash_blocks(data, seed)
    assert len(hashes) == len(data) // BLOCK_BYTES
    for i, value in enumerate(hashes):
        seed = xxhash.xxh3_64_intdigest(data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES], seed)
        assert value == seed


@given(st.binary(min_size=3 * BLOCK_BYTES, max_size=3 * BLOCK_BYTES), st.integers(0, 2 * BLOCK_BYTES - 1))
def test_a_changed_byte_changes_its_block_and_all_after_it(data: bytes, at: int) -> None:
    changed = bytearray(data)
    changed[at] ^= 1
    before, after = hash_blocks(data), hash_blocks(bytes(changed))
    block = at // BLOCK_BYTES
    assert before[:block] == after[:block]
    assert all(a != b for a, b in zip(before[block:], after[block:], strict=True))


def test_kinds_of_buffers_and_the_limit() -> None:
    data = random.Random(1).randbytes(100 * BLOCK_BYTES)
    assert hash_blocks(data) == hash_blocks(bytearray(data)) == hash_blocks(memoryview(data))
    assert len(hash_blocks(data)) == MAX_BLOCKS
    assert hash_blocks(data, 0, 5) == hash_blocks(data)[:5]
    assert hash_blocks(b"short") == ()


def test_hashing_eight_kilobytes_is_quick() -> None:
    data = random.Random(2).randbytes(8192)
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        hash_blocks(data)
        best = min(best, time.perf_counter() - start)
    assert best < 10e-6


def test_longest_match_names_who_was_sent_what() -> None:
    prefixes = PrefixMap(1000)
    assert match(prefixes, [1, 2, 3]) == []
    assert send(prefixes, [1, 2, 3], 4) == 0
    assert match(prefixes, [1, 2, 9]) == [{4}, {4}]
    assert send(prefixes, [1, 2, 9], 7) == 0
    assert match(prefixes, [1, 2, 3]) == [{4, 7}, {4, 7}, {4}]
    assert send(prefixes, [1, 2, 3], 4) == 3
    assert send(prefixes, [1, 2, 3], 7) == 2


def test_a_slot_given_to_another_node_inherits_nothing() -> None:
    prefixes = PrefixMap(1000)
    send(prefixes, [1, 2], 0)
    send(prefixes, [1, 2], 1)
    prefixes.lose(0)
    send(prefixes, [5], 0)
    assert match(prefixes, [1, 2]) == [{1}, {1}]
    assert match(prefixes, [5]) == [{0}]
    prefixes.lose(1)
    assert match(prefixes, [1, 2]) == []


def test_entries_too_old_to_judge_are_forgotten() -> None:
    prefixes = PrefixMap(1000)
    send(prefixes, [1], 3)
    for _ in range(2000):
        prefixes.lose(9)
    assert match(prefixes, [1]) == []


def test_looking_keeps_nothing_alive_and_sending_does() -> None:
    prefixes = PrefixMap(64)
    send(prefixes, [1, 2], 0)
    send(prefixes, [3, 4], 0)
    for i in range(200):
        send(prefixes, [100 + i], 1)
        send(prefixes, [3, 4], 0)
        match(prefixes, [1, 2])
    assert match(prefixes, [1, 2]) == []
    assert match(prefixes, [3, 4]) == [{0}, {0}]


def test_forget_takes_back_only_what_the_request_added() -> None:
    prefixes = PrefixMap(1000)
    send(prefixes, [1, 2], 0)
    known = send(prefixes, [1, 2, 3], 0)
    prefixes.forget([1, 2, 3], 0, known)
    assert match(prefixes, [1, 2, 3]) == [{0}, {0}]


def test_blocks_with_the_same_holders_share_them() -> None:
    prefixes = PrefixMap(1000)
    chain = list(range(16))
    send(prefixes, chain, 0)
    send(prefixes, chain, 1)
    assert len({id(entry) for entry in prefixes.match(chain)[0]}) == 1
    fork = [*range(8), *range(100, 108)]
    send(prefixes, fork, 2)
    assert match(prefixes, chain) == [{0, 1, 2}] * 8 + [{0, 1}] * 8
    assert match(prefixes, fork) == [{0, 1, 2}] * 8 + [{2}] * 8
    for slot in range(3, 40):  # a thousand nodes cost no more than four: one note for all that goes on together
        send(prefixes, chain, slot)
    assert len({id(entry) for entry in prefixes.match(chain)[0]}) == 2
    assert match(prefixes, chain) == [set(range(40))] * 8 + [{0, 1, *range(3, 40)}] * 8
    assert match(prefixes, fork)[8:] == [{2}] * 8


def test_forgetting_the_end_of_a_run_leaves_its_beginning() -> None:
    prefixes = PrefixMap(1000)
    for slot in range(12):
        send(prefixes, [1, 2, 3, 4], slot)
    prefixes.forget([1, 2, 3, 4], 5, 2)
    everyone = set(range(12))
    assert match(prefixes, [1, 2, 3, 4]) == [everyone, everyone, everyone - {5}, everyone - {5}]
    send(prefixes, [1, 2, 3, 4], 5)
    assert match(prefixes, [1, 2, 3, 4]) == [everyone] * 4


SLOTS = st.integers(0, 20)


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), SLOTS, st.integers(0, 3), st.integers(1, 6)),
            st.tuples(st.just("forget"), SLOTS, st.integers(0, 3), st.integers(1, 6)),
            st.tuples(st.just("lose"), SLOTS, st.just(0), st.just(0)),
        ),
        max_size=200,
    )
)
def test_the_map_never_says_more_than_what_was_sent(events: list[tuple[str, int, int, int]]) -> None:
    prefixes = PrefixMap(48)
    truth: dict[int, set[int]] = {}
    for kind, slot, family, depth in events:
        chain = [family * 100 + i for i in range(depth)]
        if kind == "lose":
            prefixes.lose(slot)
            for known in truth.values():
                known.discard(slot)
            continue
        for key, seen in zip(chain, match(prefixes, chain), strict=False):
            assert seen and seen <= truth[key]
        if kind == "forget":
            prefixes.forget(chain, slot, depth // 2)
            for key in chain[depth // 2 :]:
                truth.setdefault(key, set()).discard(slot)
            continue
        send(prefixes, chain, slot)
        for key in chain:
            truth.setdefault(key, set()).add(slot)
        again = match(prefixes, chain)
        assert len(again) == depth and all(slot in seen for seen in again)
        assert len(prefixes) <= 48 + 6
