"""Bits by the names of schemes."""

from __future__ import annotations

import pytest

from inference_node.memory import quant


def test_scales_are_counted() -> None:
    assert quant.weight_bits("awq") == quant.weight_bits("GPTQ") == 4 + 20 / 128
    assert 8 < quant.weight_bits("w8a8") < 8.1


def test_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(quant.PlanError, match=r"quantization q3_k is not known here; known are .*awq"):
        quant.weight_bits("q3_k")


@pytest.mark.parametrize(("name", "size"), [("auto", 2), ("", 2), ("fp8", 1), ("FP8_E4M3", 1), ("nvfp4", 0.5625)])
def test_kv_elements(name: str, size: float) -> None:
    assert quant.kv_bytes(name, 2) == size


def test_automatic_kv_type_is_the_models() -> None:
    assert quant.kv_bytes("auto", 4) == 4


def test_unknown_kv_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(quant.PlanError, match="KV type int3 is not known here; known are auto, bfloat16"):
        quant.kv_bytes("int3", 2)


def test_one_scheme_has_several_names() -> None:
    assert quant.same_scheme("compressed-tensors", "w8a8")
    assert quant.same_scheme("awq", "awq_marlin")
    assert quant.same_scheme("fp8", "FP8")
    assert not quant.same_scheme("gptq", "awq")
