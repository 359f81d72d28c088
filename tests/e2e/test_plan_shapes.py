"""Parameters counted from a configuration against the model's own class, built without memory for its weights."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.memory.known import KNOWN
from inference_node.memory.shapes import from_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# Families as their classes come; those in KNOWN are tested with real sizes.
FAMILIES = (
    *("gpt2", "gpt_neox", "gptj", "bloom", "falcon", "mpt", "phi", "phi3", "phimoe", "olmo2", "olmo3", "olmoe"),
    *("granite", "granitemoe", "granitemoehybrid", "cohere2", "stablelm", "smollm3", "gpt_oss", "glm4", "glm4_moe"),
    *("exaone4", "ernie4_5_moe", "seed_oss", "llama4_text", "lfm2", "jamba", "bamba", "nemotron_h", "falcon_h1"),
    *("falcon_mamba", "mamba", "mamba2", "arcee", "qwen2_moe", "qwen3_next", "qwen3_5_text", "gemma3n_text"),
)


def count(config: Any) -> int:
    """Parameters of a model of this configuration, shared ones once."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum({id(p): p.numel() for p in model.parameters()}.values())


@pytest.mark.parametrize("name", KNOWN)
def test_well_known_model_has_the_parameters_of_its_class(name: str) -> None:
    values = {k: v for k, v in KNOWN[name].items() if k not in ("model_type", "quantization_config")}
    config = transformers.AutoConfig.for_model(KNOWN[name]["model_type"], **values)
    assert from_config(KNOWN[name]).params == pytest.approx(count(config), rel=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_has_the_parameters_of_its_class(family: str) -> None:
    config = transformers.AutoConfig.for_model(family)
    assert from_config(config.to_dict()).params == pytest.approx(count(config), rel=0.02)
