"""The pool of blocks as the node sees it, from what vLLM's core says of its groups."""

from __future__ import annotations

from inference_node.engines.vllm_kv import kv_pool
from inference_node.memory.sequence import BlockGroup, sequence_blocks


def group(kind: str, size: int, window: int | None = None) -> dict[str, object]:
    return {"group_idx": 0, "kind": kind, "block_size": size, "sliding_window": window}


def test_one_group_that_keeps_all_is_whole_blocks() -> None:
    for kind in ("full_attention", "mla_attention"):
        pool = kv_pool([group(kind, 128)], 91, 128, 91 * 128, 2048, 512)
        assert (pool.blocks, pool.block_tokens, pool.groups) == (90, 128, ())


def test_no_group_leaves_the_engine_its_own_block() -> None:
    pool = kv_pool([], 10, 16, 0, 512, 256)
    assert (pool.blocks, pool.block_tokens, pool.groups) == (9, 16, ())
    assert kv_pool([group("encoder_only_attention", 16)], 10, 16, 0, 512, 256).groups == ()


def test_groups_with_windows_keep_their_own_count() -> None:
    found = [group("sliding_window", 128, 128)] * 5 + [group("full_attention", 128)]
    each = 5 * 6 + 16
    pool = kv_pool(found, 96, 128, 96 * 2048 // each, 2048, 512)
    assert pool.blocks == 95
    assert pool.groups == (BlockGroup(5, 128, most=6), BlockGroup(1, 128))
    assert sequence_blocks(pool.groups, 2048) == each
    assert pool.block_tokens == 2048 // each
    # What is promised in tokens is never more than vLLM's own count.
    assert pool.blocks * pool.block_tokens <= 96 * 2048 // each


def test_states_take_what_is_left_of_the_engines_own_count() -> None:
    # Three groups of states of two blocks each, beside 11 blocks of 384 tokens for 4,096.
    found = [group("mamba", 384)] * 3 + [group("full_attention", 384)]
    pool = kv_pool(found, 170, 384, 170 * 4096 // 17, 4096, 256)
    assert pool.groups == (BlockGroup(1, 384), BlockGroup(1, extra=6 + 1))
    # Where that count is missing, one each.
    assert kv_pool(found, 170, 384, 0, 4096, 256).groups[-1] == BlockGroup(1, extra=3 + 1)


def test_a_kind_that_is_not_known_keeps_everything() -> None:
    found = [group("chunked_local_attention", 16), group("full_attention", 16)]
    assert sequence_blocks(kv_pool(found, 100, 16, 0, 1024, 256).groups, 1024) == 128
