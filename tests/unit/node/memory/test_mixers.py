"""States of recurrent layers, against the shapes that vLLM's layers of the same configuration keep."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.memory.mixers import mixer
from inference_node.memory.reader import Reader, ShapeError
from tests.unit.node.memory.models import llama


def of(**config: Any) -> tuple[int, int]:
    found = mixer(Reader.of(llama(**config)), 256)
    assert found.params > 0 and found.widest > 0
    return found.conv, found.recurrent


def test_gated_delta_net() -> None:
    sizes = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128}
    conv, state = of(model_type="qwen3_next", linear_value_head_dim=128, linear_conv_kernel_dim=4, **sizes)
    assert conv == (2 * 16 * 128 + 32 * 128) * 3
    assert state == 32 * 128 * 128


def test_mamba_two() -> None:
    names = {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4}
    assert of(model_type="granitemoehybrid", **names) == ((128 * 64 + 2 * 128) * 3, 128 * 64 * 128)
    other = {"mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}
    assert of(model_type="nemotron_h", **other) == ((128 * 64 + 16 * 128) * 3, 128 * 64 * 128)


def test_head_size_may_be_left_to_the_width() -> None:
    conv, state = of(model_type="bamba", mamba_n_heads=8, mamba_d_head="auto", mamba_d_state=16, mamba_expand=2)
    assert (conv, state) == ((512 + 32) * 3, 512 * 16)


def test_mamba_one() -> None:
    assert of(model_type="jamba", mamba_expand=2, mamba_d_state=16, mamba_d_conv=4) == (512 * 3, 512 * 16)
    assert of(model_type="mamba", intermediate_size=1024, state_size=16, conv_kernel=4) == (1024 * 3, 1024 * 16)


def test_short_convolution_has_no_other_state() -> None:
    assert of(model_type="lfm2", conv_L_cache=3) == (256 * 2, 0)


def test_unknown_recurrent_layer_is_refused_with_the_fields_that_would_do() -> None:
    with pytest.raises(ShapeError, match="mamba_d_state, state_size and conv_L_cache are all missing"):
        of(model_type="novel")


def test_missing_size_of_a_known_one_is_named() -> None:
    with pytest.raises(ShapeError, match="linear_num_key_heads is missing"):
        of(model_type="qwen3_next", linear_num_value_heads=4)
