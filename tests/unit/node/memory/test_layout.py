"""Blocks of the KV cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.known import known
from inference_node.memory.layout import KvLayout, LayoutRules, kv_layout
from inference_node.memory.sequence import sequence_blocks
from inference_node.memory.shapes import Shape, from_config
from tests.unit.node.memory.models import llama, shapes

GIB = 1 << 30
CPU = LayoutRules(block_tokens=128, state_align=32, in_flight=256)


def well_known(name: str) -> Shape:
    shape = known(name)
    assert shape is not None
    return shape


def layout(rules: LayoutRules = CPU, **config: Any) -> KvLayout:
    return kv_layout(from_config(llama(**config)), rules)


def rules() -> st.SearchStrategy[LayoutRules]:
    return st.builds(
        LayoutRules,
        kv_bytes=st.sampled_from([0.5625, 1.0, 2.0, 4.0]),
        block_tokens=st.sampled_from([16, 64, 128]),
        in_flight=st.sampled_from([256, 2048, 16384]),
        tensor_parallel=st.sampled_from([1, 2, 8]),
        pipeline_parallel=st.sampled_from([1, 3]),
        prefix_caching=st.booleans(),
        windows=st.booleans(),
    )


def test_llama_two_in_sixteen_bits() -> None:
    found = kv_layout(well_known("Llama-2-7B"), LayoutRules())
    assert found.token_bytes == 524_288
    assert found.sequence_bytes(4096) == 2 * GIB
    assert found.sequence_bytes(32_768) == 16 * GIB
    assert found.pool_bytes(32_768, 8) == 128 * GIB + found.block_bytes  # and vLLM's null block


def test_a_gib_of_the_demo_model_is_what_vllm_makes_of_it() -> None:
    found = kv_layout(well_known("SmolLM2-135M"), CPU)
    assert found.token_bytes == 23_040
    assert found.capacity(GIB, 2048) == 46_592  # of which one block of 128 is the null block
    assert found.capacity(256 << 20, 2048) == 11_648


def test_last_block_counts_whole() -> None:
    found = layout()
    assert found.sequence_blocks(128) == 1
    assert found.sequence_blocks(129) == 2


def test_null_block_is_nobodys() -> None:
    found = layout()
    assert found.sequences(10 * found.block_bytes, 128) == 9
    assert found.sequences(found.block_bytes, 128) == 0


def test_windows_take_a_pool_of_groups() -> None:
    # Two layers that see everything and fourteen with a window: eight groups of two layers each.
    found = layout(model_type="gemma3_text", num_hidden_layers=16, sliding_window=512, head_dim=64)
    assert [(g.kind, g.copies) for g in found.groups] == [("full", 1), ("sliding", 7)]
    assert found.block_bytes == 2 * 2 * 2 * 64 * 128 * 2
    # At 4,096 tokens: 32 blocks to see everything; the window, one step and a block more in each other group.
    assert found.sequence_blocks(4096) == 32 + 7 * 7


def test_windows_that_are_not_given_back_cost_as_much_as_everything() -> None:
    same: dict[str, Any] = {"model_type": "gemma3_text", "num_hidden_layers": 16, "sliding_window": 512, "head_dim": 64}
    kept = layout(dataclasses.replace(CPU, windows=False), **same)
    assert [(g.kind, g.copies) for g in kept.groups] == [("full", 1)]
    assert kept.sequence_bytes(4096) == kept.token_bytes * 4096


def test_nearly_even_kinds_are_padded_to_the_larger() -> None:
    types = ["full_attention"] * 12 + ["sliding_attention"] * 13
    found = layout(num_hidden_layers=25, layer_types=types, sliding_window=128)
    page = 2 * 2 * 32 * 128 * 2
    assert found.block_bytes == 13 * page
    assert [g.copies for g in found.groups] == [1, 1]


def test_kinds_of_different_width_share_a_page() -> None:
    types = ["full_attention", "sliding_attention"] * 2
    found = layout(layer_types=types, sliding_window=512, head_dim=32, global_head_dim=64, num_global_key_value_heads=2)
    assert [(g.kind, g.block_tokens) for g in found.groups] == [("full", 128), ("sliding", 256)]


def test_blocks_of_a_hybrid_are_as_long_as_its_state_is_large() -> None:
    sizes: dict[str, Any] = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64}
    hybrid: dict[str, Any] = {"model_type": "qwen3_next", "num_hidden_layers": 8, "head_dim": 64}
    hybrid |= {"linear_value_head_dim": 64, **sizes}
    found = layout(**hybrid)
    # The state takes 137,216 bytes and a token of attention 512, so a block must have at least 268 tokens.
    assert (found.block_tokens, found.state_bytes) == (384, 6 * 137_216)
    assert [(g.kind, g.copies, g.state_blocks) for g in found.groups] == [("full", 1, 0), ("state", 3, 2)]
    assert layout(dataclasses.replace(CPU, prefix_caching=False), **hybrid).groups[1].state_blocks == 1


def test_state_alone_takes_one_block_a_sequence() -> None:
    config = {"model_type": "mamba", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 1000, "state_size": 16}
    found = kv_layout(from_config(config), CPU)
    assert found.sequence_blocks(1) == found.sequence_blocks(100_000) == 1
    assert found.token_bytes == 0


def test_ranks_share_heads_but_never_split_one() -> None:
    whole = layout().token_bytes
    assert layout(dataclasses.replace(CPU, tensor_parallel=2)).token_bytes == whole // 2
    assert layout(dataclasses.replace(CPU, tensor_parallel=8)).token_bytes == whole // 2  # two KV heads
    assert layout(dataclasses.replace(CPU, pipeline_parallel=2)).token_bytes == whole // 2


def test_every_rank_keeps_the_latent_vector_whole() -> None:
    shape = well_known("DeepSeek-V3")
    assert kv_layout(shape, LayoutRules(tensor_parallel=8)).token_bytes == kv_layout(shape, LayoutRules()).token_bytes


@given(shapes(), rules(), st.integers(1, 200_000), st.integers(1, 200_000))
def test_longer_sequence_never_takes_fewer_blocks(shape: Shape, given_: LayoutRules, one: int, other: int) -> None:
    found = kv_layout(shape, given_)
    short, long = sorted((one, other))
    assert 0 < found.sequence_blocks(short) <= found.sequence_blocks(long)


@given(shapes(), rules(), st.integers(-5, 1 << 36), st.integers(1, 64))
def test_what_is_said_to_fit_does_and_no_more(shape: Shape, given_: LayoutRules, size: int, many: int) -> None:
    found = kv_layout(shape, given_)
    longest = found.longest(size, many, 100_000)
    assert longest >= 0
    if longest:
        assert found.pool_bytes(longest, many) <= size
        assert found.sequences(size, longest) >= many
    if longest < 100_000:
        assert found.pool_bytes(longest + 1, many) > size


@given(shapes(), rules(), st.integers(0, 1 << 36), st.integers(1, 100_000))
def test_capacity_is_never_more_than_the_memory_holds(
    shape: Shape, given_: LayoutRules, size: int, tokens: int
) -> None:
    found = kv_layout(shape, given_)
    assert 0 <= found.sequences(size, tokens) * tokens <= found.capacity(size, tokens)
    assert found.pool_blocks(size) * found.block_bytes <= size


@given(shapes(), rules(), st.integers(1, 100_000))
def test_fewer_bits_never_take_more(shape: Shape, given_: LayoutRules, tokens: int) -> None:
    wide = kv_layout(shape, dataclasses.replace(given_, kv_bytes=2.0))
    narrow = kv_layout(shape, dataclasses.replace(given_, kv_bytes=1.0))
    assert narrow.token_bytes <= wide.token_bytes
    if all(layer.kind != "state" for layer in shape.kv):  # a state's page grows in steps of whole blocks
        assert narrow.sequence_bytes(tokens) <= wide.sequence_bytes(tokens)


@pytest.mark.parametrize("size", [0, -1, 5])
def test_pool_of_no_block_holds_nothing(size: int) -> None:
    found = layout()
    assert (found.capacity(size, 100), found.sequences(size, 100), found.longest(size, 1)) == (0, 0, 0)


@given(shapes(), rules(), st.integers(1, 100_000))
def test_the_ledger_holds_no_more_than_a_plan_counts_and_at_most_a_block_for_each_window_less(
    shape: Shape, how: LayoutRules, tokens: int
) -> None:
    found = kv_layout(shape, how)
    held = sequence_blocks(found.rules(), tokens)
    windows = sum(group.copies for group in found.groups if group.window)
    assert found.sequence_blocks(tokens) - windows <= held <= found.sequence_blocks(tokens)
