"""The planner against vLLM itself: the KV cache it foretells and the one that vLLM makes, to the token.

One start of vLLM per architecture, on tiny models with random weights. Each shows another rule of the layout: grouped
heads, experts, groups of layers with a window, a latent vector, and recurrent states.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inference_node.memory import checkpoint, device
from inference_node.memory.plan import Options, Planner

pytest.importorskip("vllm")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
POOL = 64 << 20
CONTEXT, SEQUENCES, STEP = 4096, 4, 256


@dataclass(frozen=True)
class Case:
    """A model by its transformers configuration, and arguments of vLLM beside the usual ones."""

    config: str
    architecture: str
    values: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


_EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
CASES = {
    "grouped heads": Case(
        "LlamaConfig",
        "LlamaForCausalLM",
        {"num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2},
        {"kv_cache_dtype": "fp8"},
        {"kv_dtype": "fp8"},
    ),
    "experts": Case(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, **_EXPERTS},
    ),
    "windows": Case(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"num_hidden_layers": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
        | {"sliding_window": 512},
    ),
    "latent": Case(
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 512}
        | {"q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1}
        | {"topk_group": 1, "topk_method": "greedy", "first_k_dense_replace": 1, "moe_intermediate_size": 128},
    ),
    "states": Case(
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {"num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, **_EXPERTS}
        | {"shared_expert_intermediate_size": 128, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
        | {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    ),
}


def save(case: Case, path: Path) -> Path:
    """Write the model's configuration as its own class writes it."""
    import transformers

    size = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 8192}
    config = getattr(transformers, case.config)(**size, **case.values, dtype="bfloat16")
    config.architectures = [case.architecture]
    config.save_pretrained(path)
    return path


def ask_vllm(path: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Start vLLM with the model and return what it says of its KV cache."""
    usual = {"max_model_len": CONTEXT, "max_num_seqs": SEQUENCES, "kv_cache_memory_bytes": POOL}
    argv = [sys.executable, "-m", "tests.support.vllm_kv", str(path), json.dumps({**usual, **arguments})]
    done = subprocess.run(argv, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
def test_cache_is_as_large_as_foretold(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = save(case, tmp_path / "model")
    steps = {} if name == "latent" else {"max_num_batched_tokens": STEP}  # its prompts run whole
    found = ask_vllm(path, {**steps, **case.arguments})

    model = checkpoint.find(str(path))
    options = Options(device="cpu", step_tokens=STEP, amx=device.has_amx(), **case.options)
    plan = Planner(model.shape, model.weights, options, 8 << 30).plan(CONTEXT, SEQUENCES, POOL)
    assert plan.layout.block_tokens == found["block_tokens"]
    assert plan.layout.pool_blocks(POOL) == found["blocks"]
    assert plan.capacity == pytest.approx(found["tokens"], abs=1)
    assert plan.step == found["step_tokens"]
