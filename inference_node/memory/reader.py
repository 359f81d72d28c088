"""Whole, sensible numbers out of a model's ``config.json``, whatever name its family gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABSURD = 1 << 40
_LAYERS = 10_000  # no model has more; a larger number would only cost time
_TEXT = ("text_config", "llm_config", "language_config")  # where multimodal models keep the language model
_SENSES = ("vision_config", "audio_config", "visual", "thinker_config", "mm_vision_tower")

# Families whose fields mean what this package takes them to mean.
_FAMILIES = """
llama mistral mistral3 ministral ministral3 mixtral qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_vl
qwen3_vl_moe qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text gemma gemma2 gemma3 gemma3_text
gemma3n_text deepseek deepseek_v2 deepseek_v3 kimi_k2 phi phi3 phimoe olmo olmo2 olmo3 olmoe
granite granitemoe granitemoehybrid cohere cohere2 stablelm starcoder2 smollm3 internlm2 internlm3 baichuan gpt_oss
gpt2 gpt_neox gpt_bigcode gptj opt bloom falcon mpt chatglm glm glm4 glm4_moe exaone exaone4 ernie4_5 ernie4_5_moe
seed_oss llama4_text lfm2 lfm2_moe jamba bamba nemotron nemotron_h falcon_h1 falcon_mamba mamba mamba2 apertus
hunyuan_v1_dense hunyuan_v1_moe dots1 arcee helium minicpm glm4_moe_lite
"""
KNOWN = frozenset(_FAMILIES.split())

# What configurations on the hub leave to their class, which fills it in.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
        "sliding_window": 4096, "max_position_embeddings": 131_072,
    },
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma": {"head_dim": 256},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "qwen3_5_text": {"head_dim": 256, "full_attention_interval": 4},
    "qwen3_5_moe_text": {"head_dim": 256, "full_attention_interval": 4},
    "cohere2": {"sliding_window": 4096},
    "deepseek_v2": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    "deepseek_v3": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
}  # fmt: skip


class ShapeError(ValueError):
    """A configuration that says too little or makes no sense: one sentence that names the field."""


class Reader:
    """Reads one configuration; ``notes`` collects what had to be assumed."""

    __slots__ = ("config", "family", "multimodal", "notes")

    def __init__(self, config: Mapping[str, Any], multimodal: bool = False) -> None:
        self.config = config
        self.family = str(config.get("model_type") or "")[:64]
        self.multimodal = multimodal
        self.notes: list[str] = []

    @staticmethod
    def of(config: Mapping[str, Any]) -> Reader:
        """A reader of the language model's part, with its family's defaults underneath."""
        senses = any(config.get(key) for key in _SENSES)
        for key in _TEXT:
            part = config.get(key)
            if isinstance(part, Mapping):
                outer = {k: v for k, v in config.items() if k != "model_type" or "model_type" not in part}
                config = {**outer, **{k: v for k, v in part.items() if v is not None}}
                break
        defaults = _DEFAULTS.get(str(config.get("model_type") or ""), {})
        return Reader({**defaults, **{k: v for k, v in config.items() if v is not None}}, senses)

    @property
    def known(self) -> bool:
        """Whether the family is one whose fields are understood by name."""
        return self.family in KNOWN

    def get(self, *names: str, default: int) -> int:
        """The first of the fields that is there, cut to a whole number. Raises ShapeError outside 0 to 2**40."""
        for name in names:
            value = self.config.get(name)
            if value is None or value is False:
                continue
            if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
                value = max(value)  # one number for each layer: the largest bounds them
            if value is True or not isinstance(value, int | float) or value != value:
                raise ShapeError(f"config.json: {name} must be a number, not {_clip(value)}")
            if value < 0 or value > _ABSURD:
                raise ShapeError(f"config.json: {name} is {value}, which no model has")
            return int(value)
        return default

    def need(self, *names: str) -> int:
        """As ``get``, for a field that must be there and over 0."""
        value = self.get(*names, default=0)
        if value <= 0:
            raise ShapeError(f"config.json: {names[0]} is missing or zero, and memory cannot be summed without it")
        return value

    def layers(self) -> int:
        """Layers of the decoder, bounded."""
        count = self.need("num_hidden_layers", "n_layer", "num_layers", "n_layers")
        if count > _LAYERS:
            raise ShapeError(f"config.json: num_hidden_layers is {count}, which no model has")
        return count

    def words(self, *names: str) -> list[str]:
        """The first of the fields that is a list, as strings; empty where there is none."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, list | tuple) and value:
                return [str(item)[:64] for item in value[:_LAYERS]]
        return []


def _clip(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
