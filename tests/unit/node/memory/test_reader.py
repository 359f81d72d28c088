"""Numbers out of a configuration: found by any name, bounded, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.memory.reader import Reader, ShapeError


def test_field_is_found_by_any_of_its_names() -> None:
    assert Reader.of({"n_embd": 768}).need("hidden_size", "n_embd") == 768


def test_missing_field_is_named() -> None:
    with pytest.raises(ShapeError, match="hidden_size is missing or zero"):
        Reader.of({}).need("hidden_size", "n_embd")


@pytest.mark.parametrize("value", ["12", [1, "a"], {}, True, float("nan")])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ShapeError, match="hidden_size must be a number"):
        Reader.of({"hidden_size": value}).need("hidden_size")


@pytest.mark.parametrize("value", [-1, 1 << 41, float("inf"), -0.5])
def test_absurd_number_is_refused(value: Any) -> None:
    with pytest.raises(ShapeError, match="which no model has"):
        Reader.of({"hidden_size": value}).need("hidden_size")


def test_absurd_number_of_layers_is_refused_before_it_costs_time() -> None:
    with pytest.raises(ShapeError, match="num_hidden_layers is 1000000000"):
        Reader.of({"num_hidden_layers": 10**9}).layers()


def test_list_of_numbers_counts_as_its_largest() -> None:
    assert Reader.of({"intermediate_size": [16, 64, 32]}).get("intermediate_size", default=0) == 64


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ShapeError) as caught:
        Reader.of({"hidden_size": "x" * 10_000}).need("hidden_size")
    assert len(str(caught.value)) < 200


def test_language_model_inside_a_multimodal_one_is_read() -> None:
    r = Reader.of({"model_type": "gemma3", "vision_config": {"x": 1}, "text_config": {"model_type": "gemma3_text"}})
    assert (r.family, r.multimodal, r.known) == ("gemma3_text", True, True)
    assert r.need("num_attention_heads") == 8  # left to the class by the configurations on the hub


def test_value_that_is_null_does_not_hide_a_default() -> None:
    assert Reader.of({"model_type": "gemma3_text", "head_dim": None}).need("head_dim") == 256


def test_words_are_bounded() -> None:
    r = Reader.of({"layer_types": ["x" * 1000] * 20_000, "other": "no list"})
    words = r.words("other", "layer_types")
    assert (len(words), len(words[0])) == (10_000, 64)
    assert r.words("other") == []
