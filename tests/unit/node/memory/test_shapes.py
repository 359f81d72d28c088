"""What a configuration says about memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.memory.shapes import Shape, ShapeError, from_config
from tests.unit.node.memory.models import configs, llama


def shape(**config: Any) -> Shape:
    return from_config(llama(**config))


@pytest.mark.parametrize(
    ("heads", "elements"), [(8, 4 * 2 * 8 * 32), (2, 4 * 2 * 2 * 32), (1, 4 * 2 * 1 * 32)], ids=["mha", "gqa", "mqa"]
)
def test_attention_keeps_a_key_and_a_value_per_kv_head(heads: int, elements: int) -> None:
    assert shape(num_key_value_heads=heads).elements_per_token == elements


def test_head_size_need_not_follow_from_the_width() -> None:
    assert shape(head_dim=128).elements_per_token == 4 * 2 * 2 * 128


def test_values_may_be_narrower_than_keys() -> None:
    assert shape(head_dim=192, v_head_dim=128).elements_per_token == 4 * 2 * (192 + 128)


def test_latent_attention_keeps_one_vector_whatever_the_heads() -> None:
    found = shape(model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64, num_attention_heads=128)
    assert found.elements_per_token == 4 * 576
    assert [layer.kind for layer in found.kv] == ["latent"]


def test_latent_attention_of_an_unknown_family_is_bounded_by_its_heads() -> None:
    found = shape(model_type="novel", kv_lora_rank=512)
    assert found.elements_per_token == 4 * 8 * 2 * (128 + 64)
    assert any("latent" in note for note in found.notes)


def test_sparse_latent_attention_keeps_its_index_too() -> None:
    plain = shape(model_type="deepseek_v32", kv_lora_rank=512)
    sparse = shape(model_type="deepseek_v32", kv_lora_rank=512, index_head_dim=128)
    assert sparse.elements_per_token - plain.elements_per_token == 4 * 66  # 132 bytes in elements of two


def test_window_and_everything_are_kept_apart() -> None:
    found = shape(model_type="gemma3_text", num_hidden_layers=12, sliding_window=1024)
    assert [(layer.kind, layer.count, layer.window) for layer in found.kv] == [("full", 2, 0), ("sliding", 10, 1024)]


def test_layers_that_see_everything_may_have_other_heads() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    found = shape(layer_types=types, sliding_window=512, head_dim=32, global_head_dim=64, num_global_key_value_heads=1)
    assert [(layer.heads, layer.width) for layer in found.kv] == [(1, 128), (2, 64)]


def test_all_experts_count() -> None:
    dense, sparse = shape(), shape(model_type="qwen3_moe", num_experts=8, moe_intermediate_size=512)
    router = 4 * 256 * 8
    assert sparse.params - dense.params == 4 * 7 * 3 * 256 * 512 + router
    assert sparse.experts == 8


def test_tied_embeddings_count_once() -> None:
    assert shape().params - shape(tie_word_embeddings=True).params == 1024 * 256


def test_hybrid_has_a_state_beside_its_cache() -> None:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    found = shape(model_type="qwen3_next", linear_key_head_dim=64, linear_value_head_dim=64, head_dim=64, **sizes)
    assert [(layer.kind, layer.count) for layer in found.kv] == [("full", 1), ("state", 3)]
    assert found.kv[1].recurrent == 4 * 64 * 64


def test_model_without_attention_needs_no_heads() -> None:
    config = {"model_type": "mamba", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 1000, "state_size": 16}
    found = from_config(config)
    assert [layer.kind for layer in found.kv] == ["state"]
    assert found.elements_per_token == 0


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 8192),
        ({"rope_type": "linear", "factor": 4.0}, 32768),
        ({"type": "dynamic", "factor": 2.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"rope_type": "linear", "factor": "many"}, 8192),
    ],
)
def test_context_follows_the_rotary_scaling_that_is_not_yet_in_it(scaling: Any, context: int) -> None:
    assert shape(rope_scaling=scaling).max_context == context


def test_long_rope_begins_with_its_original_context() -> None:
    found = shape(rope_scaling={"rope_type": "longrope"}, original_max_position_embeddings=4096)
    assert found.max_context == 4096


def test_context_that_is_not_given_is_said() -> None:
    found = shape(max_position_embeddings=None)
    assert found.max_context == 2048
    assert any("context length is not given" in note for note in found.notes)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("awq", 4 + 20 / 128)),
        ({"quant_method": "fp8"}, ("fp8", 0.0)),
        ({"quant_method": "gptq", "bits": "four"}, ("gptq", 0.0)),
        ("awq", ("", 0.0)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            ("compressed-tensors", 8.0),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 64}}},
            },
            ("compressed-tensors", 4 + 20 / 64),
        ),
    ],
)
def test_quantization_of_the_checkpoint_is_read(quantization: Any, expected: tuple[str, float]) -> None:
    found = shape(quantization_config=quantization)
    assert (found.quantization, found.bits) == expected


def test_unknown_family_is_counted_and_said() -> None:
    assert shape(model_type="novel").notes == (
        "architecture not known by name: counted by the usual fields of a decoder",
    )
    assert shape().notes == ()


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_field_that_is_missing_is_named(field: str) -> None:
    with pytest.raises(ShapeError, match=f"{field} is missing"):
        shape(**{field: None})


@given(configs())
def test_any_decoder_has_positive_counts(config: dict[str, Any]) -> None:
    found = from_config(config)
    assert found.params > 0 and found.widest > 0 and found.max_context > 0
    assert sum(layer.count for layer in found.kv) >= found.layers
    assert all(layer.elements >= 0 and layer.conv >= 0 and layer.recurrent >= 0 for layer in found.kv)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
FIELDS = [
    *llama(),
    *(
        "head_dim",
        "layer_types",
        "sliding_window",
        "kv_lora_rank",
        "num_experts",
        "quantization_config",
        "rope_scaling",
    ),
    *("text_config", "hybrid_override_pattern", "attn_layer_indices", "full_attention_interval", "mlp_only_layers"),
    *("linear_num_value_heads", "mamba_d_state", "conv_L_cache", "moe_layer_freq", "num_kv_shared_layers"),
    *("block_auto_adjust_ff_dim", "block_multiple_of", "multi_query", "decoder_sparse_step", "mamba_d_head"),
]


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.booleans())
def test_nonsense_is_a_shape_or_a_shape_error(broken: dict[str, Any], whole: bool) -> None:
    try:
        found = from_config({**(llama() if whole else {}), **broken})
    except ShapeError as e:
        assert str(e).startswith("config.json: ")
    else:
        assert found.params > 0
