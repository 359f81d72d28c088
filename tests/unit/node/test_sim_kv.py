"""Paged KV of the simulator: exact counts, prefix hits, LRU eviction, salts apart."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference_node.engines.sim_kv import BlockPool, block_hashes


def test_hashes_chain_and_cover_full_blocks_only():
    tokens = list(range(40))
    hashes = block_hashes(tokens, 16, "")
    assert len(hashes) == 2
    assert block_hashes(tokens[:32], 16, "") == hashes
    assert block_hashes([9, *tokens[1:]], 16, "")[1] != hashes[1]
    assert block_hashes(tokens[16:], 16, "", hashes[0]) == hashes[1:]


def test_salts_keep_caches_apart():
    tokens = list(range(32))
    assert not set(block_hashes(tokens, 16, "a")) & set(block_hashes(tokens, 16, "b"))


def test_a_released_block_is_found_again_until_its_room_is_needed():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.publish(blocks[0], 111)
    pool.release(blocks)
    assert pool.find([111, 222]) == blocks
    assert pool.free == 2
    assert pool.allocate(2) is not None
    assert pool.find([111]) == []
    assert pool.evictions == 1


def test_the_block_unused_for_longest_goes_first_and_tails_before_heads():
    pool = BlockPool(3)
    old = pool.allocate(1)
    pair = pool.allocate(2)
    assert old and pair
    for block, key in zip([*old, *pair], (1, 2, 3), strict=True):
        pool.publish(block, key)
    pool.release(old)
    pool.release(pair)
    pool.allocate(2)
    assert pool.find([1]) == []
    assert pool.find([2, 3]) == pair[:1]


def test_shared_blocks_count_once_and_live_until_the_last_release():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    assert blocks
    pool.publish(blocks[0], 1)
    pool.take([blocks[0]])
    assert pool.free == 2
    pool.release(blocks)
    assert pool.free == 3
    assert pool.free_beside(pool.find([1])) == 3
    pool.release([blocks[0]])
    assert pool.free == 4
    assert pool.free_beside(pool.find([1])) == 3


def test_too_much_changes_nothing():
    pool = BlockPool(2)
    assert pool.allocate(3) is None
    assert pool.free == 2


def test_without_the_cache_nothing_is_found():
    pool = BlockPool(2, keep=False)
    blocks = pool.allocate(1)
    assert blocks
    pool.publish(blocks[0], 1)
    assert pool.find([1]) == []


class PoolMachine(RuleBasedStateMachine):
    """Owners of blocks come and go; the pool agrees with a naive count."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.owners: list[list[int]] = []

    @rule(count=st.integers(1, 5), key=st.integers(0, 5))
    def start(self, count: int, key: int) -> None:
        cached = self.pool.find([key])
        fits = count <= self.pool.free_beside(cached)
        if not fits:
            return
        self.pool.take(cached)
        fresh = self.pool.allocate(count)
        assert fresh is not None and len(set(fresh)) == count
        assert not set(fresh) & {b for owner in self.owners for b in owner}
        self.pool.publish(fresh[0], key)
        self.owners.append(cached + fresh)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.owners:
            self.pool.release(self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1))))

    @invariant()
    def referenced_blocks_are_those_somebody_owns(self) -> None:
        owned = {block for owner in self.owners for block in owner}
        assert self.pool.capacity - self.pool.free == len(owned)


TestPoolMachine = PoolMachine.TestCase
