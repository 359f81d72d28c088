"""What llama_cpp takes as its arguments, and what is said of those it does not."""

from __future__ import annotations

import os
from typing import Any

import pytest

from inference_node.engines.llama_cpp_args import CPU_BATCH, GPU_BATCH, cores, settings
from shared.config.schema import ConfigError, InferenceConfig


def of(offload: bool = False, **args: Any) -> Any:
    return settings(InferenceConfig(engine_args=args), offload=offload)


def test_what_is_left_open_follows_from_the_machine() -> None:
    got = of()
    assert got.n_threads == got.n_threads_batch == len(cores(InferenceConfig())) >= 1
    assert (got.n_batch, got.n_ubatch) == (CPU_BATCH, CPU_BATCH)
    assert of(offload=True).n_batch == GPU_BATCH
    assert of(offload=True, n_gpu_layers=0).n_batch == CPU_BATCH


def test_names_may_have_dashes_and_a_step_is_no_smaller_than_its_parts() -> None:
    got = settings(InferenceConfig(engine_args={"n-batch": 32, "flash-attn": False}), offload=False)
    assert (got.n_batch, got.n_ubatch, got.flash_attn) == (32, 32, False)


def test_cache_types_have_their_bytes() -> None:
    got = of(type_k="q8_0", type_v="f32")
    assert (got.k_bytes, got.v_bytes) == (34 / 32, 4)


def test_the_cores_are_those_of_the_configuration() -> None:
    core = min(os.sched_getaffinity(0))
    assert cores(InferenceConfig(cpu_threads=str(core))) == (core,)
    assert settings(InferenceConfig(cpu_threads=str(core)), offload=False).n_threads == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"n_thread": 2}, "engine_args.n_thread: llama_cpp has no such argument; did you mean n_threads"),
        ({"zzz": 2}, "it takes n_threads"),
        ({"n_batch": "8"}, "n_batch: must be a whole number, not '8'"),
        ({"n_batch": True}, "n_batch: must be a whole number"),
        ({"n_batch": 0}, "n_batch: must be 1 or more"),
        ({"use_mmap": 1}, "use_mmap: must be true or false"),
        ({"rope_freq_base": "x"}, "rope_freq_base: must be a number"),
        ({"type_k": "q9"}, "type_k: must be one of f32, f16"),
        ({"type_v": "q8_0", "flash_attn": False}, "type_v: q8_0 needs flash attention"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        of(**args)


@pytest.mark.parametrize("values", [{"quantization": "awq"}, {"dtype": "bfloat16"}])
def test_keys_that_mean_nothing_for_gguf_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        settings(InferenceConfig(**values), offload=False)
