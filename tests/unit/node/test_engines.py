"""Which engine is chosen, and what is said when none can be."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node.engines import choose, create, model_format
from inference_node.engines.base import EngineUnavailable
from inference_node.engines.sim import SimEngine
from shared.config.schema import ConfigError, InferenceConfig


def have(*modules: Any) -> Any:
    return lambda module: module in modules


def test_auto_takes_vllm_for_safetensors_and_hub_ids(tmp_path):
    (tmp_path / "model.safetensors").touch()
    assert choose(InferenceConfig(model=str(tmp_path)), have("vllm")) == "vllm"
    assert choose(InferenceConfig(model="org/name@main"), have("vllm")) == "vllm"


def test_auto_never_falls_back_to_the_simulator():
    with pytest.raises(EngineUnavailable, match="vllm is not installed here; install it with"):
        choose(InferenceConfig(model="org/name"), have())


def test_auto_takes_llama_cpp_for_gguf(tmp_path):
    (tmp_path / "m.gguf").touch()
    for model in ("x/m.GGUF", str(tmp_path)):
        assert choose(InferenceConfig(model=model), have("vllm", "llama_cpp")) == "llama_cpp"


@pytest.mark.parametrize("engine", ["auto", "llama_cpp", "llama-cpp", "Llama_Cpp"])
def test_a_gguf_model_without_llama_cpp_is_refused_with_what_to_install(engine, tmp_path):
    (tmp_path / "m.gguf").touch()
    for model in ("x/m.GGUF", str(tmp_path)):
        with pytest.raises(EngineUnavailable, match=r"laya\[llama-cpp\].*laya quantize SRC OUT"):
            choose(InferenceConfig(engine=engine, model=model), have("vllm"))


def test_vllm_does_not_take_gguf_and_says_who_does(tmp_path):
    (tmp_path / "m.gguf").touch()
    with pytest.raises(EngineUnavailable, match=r"engine vllm does not run.*llama_cpp.*laya quantize SRC OUT"):
        choose(InferenceConfig(engine="vllm", model=str(tmp_path)), have("vllm", "llama_cpp"))


def test_llama_cpp_takes_nothing_but_gguf():
    with pytest.raises(EngineUnavailable, match=r"org/name is no GGUF file"):
        choose(InferenceConfig(engine="llama_cpp", model="org/name"), have("vllm", "llama_cpp"))


@pytest.mark.parametrize("engine", ["nano-vllm", "ollama"])
def test_an_engine_that_is_not_here_is_refused_with_what_to_install(engine):
    with pytest.raises(EngineUnavailable, match=rf"{engine}.*not installed.*pip install vllm"):
        choose(InferenceConfig(engine=engine, model="m"), have("vllm"))


def test_no_model_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"inference\.model"):
        choose(InferenceConfig(), have("vllm"))


def test_sim_is_made_only_when_asked_for():
    assert isinstance(create(InferenceConfig(engine="sim")), SimEngine)


def test_a_folder_with_both_formats_counts_as_safetensors(tmp_path):
    (tmp_path / "m.gguf").touch()
    (tmp_path / "m.safetensors").touch()
    assert model_format(str(tmp_path)) == "safetensors"
