"""What each layer is, by the many ways in which configurations say it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from inference_node.memory.kinds import feed_forward_layers, is_sparse, layer_kinds
from inference_node.memory.reader import Reader
from tests.unit.node.memory.models import llama


def kinds(**config: Any) -> list[str]:
    return layer_kinds(Reader.of(llama(**config)))


def test_plain_decoder_attends_to_everything() -> None:
    assert kinds() == ["full"] * 4


def test_window_without_a_pattern_is_every_layers() -> None:
    assert kinds(model_type="mistral", sliding_window=4096) == ["sliding"] * 4


def test_window_that_is_switched_off_is_none() -> None:
    assert kinds(model_type="qwen2", sliding_window=4096, use_sliding_window=False) == ["full"] * 4
    # These have it off unless they say otherwise.
    assert kinds(model_type="qwen2", sliding_window=4096) == ["full"] * 4


def test_window_may_begin_at_a_layer() -> None:
    found = kinds(model_type="qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=3)
    assert found == ["full", "full", "full", "sliding"]


@pytest.mark.parametrize(("family", "layers", "full"), [("gemma3_text", 34, 5), ("gemma2", 42, 21), ("cohere2", 8, 2)])
def test_every_so_manyth_layer_attends_to_everything(family: str, layers: int, full: int) -> None:
    found = Counter(kinds(model_type=family, num_hidden_layers=layers, sliding_window=1024))
    assert found == {"full": full, "sliding": layers - full}


def test_listed_kinds_go_before_patterns() -> None:
    types = ["sliding_attention", "full_attention", "linear_attention", "chunked_attention"]
    assert kinds(layer_types=types, sliding_window=128) == ["sliding", "full", "state", "full"]


def test_short_list_of_kinds_is_filled_with_the_dearest() -> None:
    assert kinds(layer_types=["mamba"], sliding_window=128) == ["state", "full", "full", "full"]


def test_sliding_layers_without_a_window_keep_everything() -> None:
    assert kinds(layer_types=["sliding_attention"] * 4) == ["full"] * 4


def test_hybrids_say_which_layers_attend_in_several_ways() -> None:
    assert kinds(model_type="bamba", attn_layer_indices=[1]) == ["state", "full", "state", "state"]
    assert kinds(model_type="jamba", attn_layer_period=4, attn_layer_offset=2) == ["state", "state", "full", "state"]
    assert kinds(model_type="qwen3_next", full_attention_interval=2) == ["state", "full", "state", "full"]
    assert kinds(model_type="falcon_h1") == ["both"] * 4
    assert kinds(model_type="mamba2") == ["state"] * 4


def test_pattern_of_letters_is_the_number_of_layers_too() -> None:
    assert kinds(hybrid_override_pattern="M-*E") == ["state", "bare", "full", "experts"]


def test_layers_that_share_a_cache_keep_none() -> None:
    assert kinds(num_kv_shared_layers=3) == ["full", "shared", "shared", "shared"]


def test_feed_forward_parts_are_where_they_are() -> None:
    assert feed_forward_layers(Reader.of(llama()), ["full"] * 3) == [0, 1, 2]
    assert feed_forward_layers(Reader.of(llama()), ["state", "bare", "experts"]) == [1, 2]
    assert feed_forward_layers(Reader.of(llama(model_type="mamba")), ["state"] * 3) == []


@pytest.mark.parametrize(
    ("config", "sparse"),
    [
        ({}, [0, 1, 2, 3]),
        ({"first_k_dense_replace": 1}, [1, 2, 3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"mlp_only_layers": [0, 3]}, [1, 2]),
        ({"moe_layer_freq": 2}, [0, 2]),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3]),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, [1, 2]),
    ],
)
def test_sparse_layers_are_found(config: dict[str, Any], sparse: list[int]) -> None:
    r = Reader.of(llama(**config))
    assert [i for i in range(4) if is_sparse(r, i, "full")] == sparse


def test_layer_that_is_experts_alone_is_sparse() -> None:
    r = Reader.of(llama(first_k_dense_replace=4))
    assert (is_sparse(r, 0, "experts"), is_sparse(r, 0, "bare")) == (True, False)
