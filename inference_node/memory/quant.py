"""Bits that a weight and a KV element take, by the names people and vLLM give the schemes.

A scheme's figure includes its scales: a group of 128 four-bit weights carries a 16-bit scale and a four-bit zero point,
so a weight takes 4 + 20/128 bits.
"""

from __future__ import annotations

_FOUR_128 = 4 + 20 / 128
_EIGHT = 8.01  # a scale per channel or block of 128 by 128

WEIGHT_BITS: dict[str, float] = {
    "awq": _FOUR_128, "awq_marlin": _FOUR_128, "auto_awq": _FOUR_128, "gptq": _FOUR_128, "gptq_marlin": _FOUR_128,
    "auto_gptq": _FOUR_128, "moe_wna16": _FOUR_128, "inc": _FOUR_128, "int4": _FOUR_128, "w4a16": 4 + 16 / 64,
    "mxfp4": 4 + 8 / 32, "gpt_oss_mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16, "modelopt_fp4": 4 + 8 / 16,
    "nvfp4_per_token": 4 + 8 / 16, "bitsandbytes": 4 + 32 / 64,
    "fp8": _EIGHT, "fp8_per_tensor": _EIGHT, "fp8_per_block": _EIGHT, "fp8_per_channel": _EIGHT, "fbgemm_fp8": _EIGHT,
    "modelopt": _EIGHT, "modelopt_mxfp8": 8 + 8 / 32, "mxfp8": 8 + 8 / 32, "deepseek_v4_fp8": _EIGHT,
    "w8a8": _EIGHT, "int8": _EIGHT, "experts_int8": _EIGHT, "int8_per_channel_weight_only": _EIGHT,
}  # fmt: skip
NONE = ("", "none")
# Names under which a checkpoint may hold a scheme that people call otherwise.
_SAME = {
    "compressed-tensors": ("w8a8", "w4a16", "int8", "int4", "fp8", "nvfp4"),
    "awq": ("awq_marlin", "auto_awq", "moe_wna16", "int4", "w4a16"),
    "gptq": ("gptq_marlin", "auto_gptq", "moe_wna16", "int4", "w4a16"),
    "modelopt": ("modelopt_fp4", "modelopt_mxfp8", "fp8", "nvfp4"),
    "quark": ("mxfp4", "fp8"),
}

KV_BYTES: dict[str, float] = {
    "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
    "nvfp4": 0.5 + 1 / 16, "nvfp4_4over6": 0.5 + 1 / 16,
}  # fmt: skip


class PlanError(ValueError):
    """What was asked for cannot be summed: one sentence with what to set instead."""


def weight_bits(name: str) -> float:
    """Bits of a quantized weight. Raises PlanError for a scheme that is not known."""
    bits = WEIGHT_BITS.get(name.lower())
    if bits is None:
        raise PlanError(f"quantization {name} is not known here; known are {', '.join(sorted(WEIGHT_BITS))}")
    return bits


def same_scheme(checkpoint: str, asked: str) -> bool:
    """Whether a checkpoint quantized by one name may be meant by another."""
    return asked.lower() == checkpoint.lower() or asked.lower() in _SAME.get(checkpoint.lower(), ())


def kv_bytes(name: str, model: int) -> float:
    """Bytes of a KV element; ``auto`` is the model's own. Raises PlanError for a type that is not known."""
    if name.lower() in ("", "auto"):
        return float(model)
    size = KV_BYTES.get(name.lower())
    if size is None:
        raise PlanError(f"KV type {name} is not known here; known are auto, {', '.join(KV_BYTES)}")
    return size
