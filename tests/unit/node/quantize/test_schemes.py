"""The schemes as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.quantize import SCHEMES, QuantizeError, find


def test_a_scheme_is_found_in_any_case() -> None:
    assert find(" W8A8 ") is SCHEMES["w8a8"]


def test_an_unknown_scheme_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(QuantizeError, match="'w2a2' is not known; choose one of w8a8, w4a16"):
        find("w2a2")


def test_w8a8_is_per_channel_with_dynamic_per_token_activations() -> None:
    scheme = SCHEMES["w8a8"]
    assert scheme.weights() == {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "dynamic": False,
        "strategy": "channel",
    }
    activations = scheme.activations()
    assert activations is not None
    assert (activations["strategy"], activations["dynamic"]) == ("token", True)


def test_w4a16_groups_by_64_and_leaves_activations_alone() -> None:
    scheme = SCHEMES["w4a16"]
    assert (scheme.weights()["strategy"], scheme.weights()["group_size"]) == ("group", 64)
    assert scheme.activations() is None


def test_layer_bytes_count_weights_and_scales() -> None:
    assert SCHEMES["w8a8"].layer_bytes(576, 1536) == 576 * 1536 + 576 * 2
    assert SCHEMES["w4a16"].layer_bytes(576, 1536) == 576 * 1536 // 2 + 576 * 24 * 2


@given(outputs=st.integers(1, 8192), inputs=st.integers(64, 8192))
def test_a_quantized_layer_is_smaller_than_in_16_bits(outputs: int, inputs: int) -> None:
    for scheme in SCHEMES.values():
        assert scheme.layer_bytes(outputs, inputs) < outputs * inputs * 2
