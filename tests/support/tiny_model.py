"""Tiny models with random weights, which vLLM runs in no time: their shape is what matters, not their words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from inference_node.quantize import demo


def gemma(path: Path, *, layers: int = 6, window: int = 128) -> Path:
    """A Gemma 3, one layer in six of which sees everything, with the demo model's tokenizer; its configuration alone.

    Load it with ``load_format: dummy``.
    """
    from transformers import Gemma3TextConfig

    tokenizer = demo.prepare()
    path.mkdir(parents=True)
    for file in tokenizer.iterdir():
        if "token" in file.name or file.name in ("vocab.json", "merges.txt", "chat_template.jinja"):
            shutil.copy(file, path / file.name)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 49_152}
    config = Gemma3TextConfig(
        **sizes,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        sliding_window=window,
        max_position_embeddings=4096,
        dtype="bfloat16",
    )
    config.architectures = ["Gemma3ForCausalLM"]
    config.save_pretrained(path)
    return path
