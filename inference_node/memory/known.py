"""Well-known models by name: their published configurations, as far as memory depends on them."""

from __future__ import annotations

import difflib
from typing import Any

from inference_node.memory.shapes import Shape, from_config


def _llama(
    layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        **more,
    }


def _qwen3(layers: int, hidden: int, heads: int, kv: int, inner: int, **more: Any) -> dict[str, Any]:
    return _llama(layers, hidden, heads, kv, inner, 151936, 40960, **{"model_type": "qwen3", "head_dim": 128, **more})


def _deepseek(
    layers: int, hidden: int, inner: int, vocab: int, experts: int, shared: int, expert: int, dense: int, **more: Any
) -> dict[str, Any]:
    return _llama(
        layers, hidden, 128, 128, inner, vocab, 163840,
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536,
        n_routed_experts=experts, n_shared_experts=shared, num_experts_per_tok=6, moe_intermediate_size=expert,
        first_k_dense_replace=dense, **more,
    )  # fmt: skip


_TIED = {"tie_word_embeddings": True}
_MOE = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8}
_GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 1024, **_TIED}
_GEMMA2 = {"model_type": "gemma2", "sliding_window": 4096, **_TIED}
_QWEN2 = {"model_type": "qwen2"}
_FP8 = {"quantization_config": {"quant_method": "fp8"}}

KNOWN: dict[str, dict[str, Any]] = {
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096, dtype="float16"),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, dtype="float16"),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096, dtype="float16"),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama-3.1-8b": _llama(32, 4096, 32, 8, 14336, 128256, 131072),
    "llama-3.1-70b": _llama(80, 8192, 64, 8, 28672, 128256, 131072),
    "llama-3.2-1b": _llama(16, 2048, 32, 8, 8192, 128256, 131072, head_dim=64, **_TIED),
    "llama-3.2-3b": _llama(28, 3072, 24, 8, 8192, 128256, 131072, head_dim=128, **_TIED),
    "mistral-7b": _llama(32, 4096, 32, 8, 14336, 32768, 32768, model_type="mistral"),
    "qwen2.5-0.5b": _llama(24, 896, 14, 2, 4864, 151936, 32768, **_QWEN2, **_TIED),
    "qwen2.5-1.5b": _llama(28, 1536, 12, 2, 8960, 151936, 32768, **_QWEN2, **_TIED),
    "qwen2.5-3b": _llama(36, 2048, 16, 2, 11008, 151936, 32768, **_QWEN2, **_TIED),
    "qwen2.5-7b": _llama(28, 3584, 28, 4, 18944, 152064, 32768, **_QWEN2),
    "qwen2.5-14b": _llama(48, 5120, 40, 8, 13824, 152064, 32768, **_QWEN2),
    "qwen2.5-32b": _llama(64, 5120, 40, 8, 27648, 152064, 32768, **_QWEN2),
    "qwen2.5-72b": _llama(80, 8192, 64, 8, 29568, 152064, 32768, **_QWEN2),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 8, 3072, **_TIED),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 8, 6144, **_TIED),
    "qwen3-4b": _qwen3(36, 2560, 32, 8, 9728, **_TIED),
    "qwen3-8b": _qwen3(36, 4096, 32, 8, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 8, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 8, 25600),
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 4, 6144, moe_intermediate_size=768, **_MOE),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 4, 12288, moe_intermediate_size=1536, **_MOE),
    "mixtral-8x7b": _llama(32, 4096, 32, 8, 14336, 32000, 32768, model_type="mixtral", num_local_experts=8),
    "mixtral-8x22b": _llama(56, 6144, 48, 8, 16384, 32768, 65536, model_type="mixtral", num_local_experts=8),
    "deepseek-v2": _deepseek(60, 5120, 12288, 102400, 160, 2, 1536, 1, model_type="deepseek_v2"),
    "deepseek-v3": _deepseek(61, 7168, 18432, 129280, 256, 1, 2048, 3, model_type="deepseek_v3", **_FP8),
    "gemma-2-2b": _llama(26, 2304, 8, 4, 9216, 256000, 8192, head_dim=256, **_GEMMA2),
    "gemma-2-9b": _llama(42, 3584, 16, 8, 14336, 256000, 8192, head_dim=256, **_GEMMA2),
    "gemma-2-27b": _llama(46, 4608, 32, 16, 36864, 256000, 8192, head_dim=128, **_GEMMA2),
    "gemma-3-1b": _llama(26, 1152, 4, 1, 6912, 262144, 32768, **{**_GEMMA3, "head_dim": 256, "sliding_window": 512}),
    "gemma-3-4b": _llama(34, 2560, 8, 4, 10240, 262208, 131072, head_dim=256, **_GEMMA3),
    "gemma-3-12b": _llama(48, 3840, 16, 8, 15360, 262208, 131072, head_dim=256, **_GEMMA3),
    "gemma-3-27b": _llama(62, 5376, 32, 16, 21504, 262208, 131072, head_dim=128, **_GEMMA3),
    "smollm2-135m": _llama(30, 576, 9, 3, 1536, 49152, 8192, **_TIED),
    "smollm2-360m": _llama(32, 960, 15, 5, 2560, 49152, 8192, **_TIED),
    "smollm2-1.7b": _llama(24, 2048, 32, 32, 8192, 49152, 8192, **_TIED),
}  # fmt: skip
_ALIASES = {"deepseek-r1": "deepseek-v3", "deepseek-v3.1": "deepseek-v3", "llama-3.3-70b": "llama-3.1-70b"}
_ENDINGS = ("-hf", "-instruct", "-chat", "-it", "-base", "-0324", "-v0.1", "-v0.3", "-text", "-pt")


def known(name: str) -> Shape | None:
    """A well-known model by name ("Llama-2-7B", "meta-llama/Llama-2-7b-hf"), or None."""
    key = _key(name)
    config = KNOWN.get(_ALIASES.get(key, key))
    return from_config(config, key) if config is not None else None


def nearest(name: str) -> list[str]:
    """Up to three well-known names like this one."""
    return difflib.get_close_matches(_key(name), [*KNOWN, *_ALIASES], n=3, cutoff=0.6)


def _key(name: str) -> str:
    key = name.partition("@")[0].rstrip("/").rpartition("/")[2].lower().replace("_", "-").replace("meta-", "")
    before = ""
    while before != key:
        before = key
        for ending in _ENDINGS:
            key = key.removesuffix(ending)
    return key
