"""Configurations of made-up models, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from inference_node.memory.plan import Options, Planner
from inference_node.memory.shapes import Shape, Weights, from_config

GIB = 1 << 30


def llama(**more: Any) -> dict[str, Any]:
    """A small decoder."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
        **more,
    }


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Decoders of all the kinds that are known here."""
    heads = draw(st.sampled_from([1, 2, 4, 8, 16]))
    layers = draw(st.integers(1, 12))
    config = llama(
        num_hidden_layers=layers,
        hidden_size=64 * draw(st.integers(1, 32)),
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([h for h in (1, 2, 4, 8, 16) if h <= heads])),
        intermediate_size=draw(st.integers(64, 4096)),
        vocab_size=draw(st.integers(256, 50_000)),
        max_position_embeddings=draw(st.sampled_from([2048, 8192, 131_072])),
        tie_word_embeddings=draw(st.booleans()),
    )
    kind = draw(st.sampled_from(["full", "sliding", "gemma", "latent", "experts", "hybrid"]))
    if kind == "sliding":
        config["sliding_window"] = draw(st.integers(1, 4096))
    elif kind == "gemma":
        config |= {"model_type": "gemma3_text", "sliding_window": draw(st.integers(1, 4096)), "head_dim": 64}
    elif kind == "latent":
        config |= {"model_type": "deepseek_v3", "kv_lora_rank": 512, "q_lora_rank": draw(st.sampled_from([None, 256]))}
    elif kind == "experts":
        config |= {"model_type": "qwen3_moe", "num_experts": draw(st.integers(2, 64)), "moe_intermediate_size": 128}
    elif kind == "hybrid":
        config |= {
            "model_type": "qwen3_next",
            "full_attention_interval": draw(st.integers(1, layers + 1)),
            "head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        }
    return config


def shapes() -> st.SearchStrategy[Shape]:
    """Shapes of such decoders."""
    return configs().map(from_config)


def options() -> st.SearchStrategy[Options]:
    """Ways to run them."""
    return st.builds(
        Options,
        device=st.sampled_from(["gpu", "cpu"]),
        kv_dtype=st.sampled_from(["auto", "fp8"]),
        quantization=st.sampled_from(["", "awq", "fp8"]),
        tensor_parallel=st.sampled_from([1, 2, 4]),
        pipeline_parallel=st.sampled_from([1, 2]),
        prefix_caching=st.booleans(),
        graphs=st.booleans(),
    )


def planner(shape: Shape, memory: int = 24 * GIB, stored: int = 0, **settings: Any) -> Planner:
    """A planner of a shape."""
    return Planner(shape, Weights(stored), Options(**settings), memory)
