"""``inference.engine_args`` of engine llama_cpp: llama.cpp's own names, checked by name and kind before a file is read.

What they leave open follows from the node's own settings. ``n_ctx`` is the KV cache in cells, all sequences together;
the longest sequence is ``inference.max_seq_len``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inference_node.engines import vllm_env
from inference_node.memory.gguf_header import TYPES
from shared.config.schema import ConfigError, InferenceConfig

CPU_BATCH, GPU_BATCH = 256, 1024  # tokens of a step where nothing else is set: a step on a CPU holds up what decodes
CPU_UBATCH, GPU_UBATCH = 256, 512
KV_TYPES = {name.lower(): number for number, (name, _, _) in TYPES.items() if number in (0, 1, 2, 3, 6, 7, 8, 20, 30)}
_PLAIN_TYPES = ("f32", "f16", "bf16")  # what the V cache can be without flash attention
_COUNTS = ("n_threads", "n_threads_batch", "n_batch", "n_ubatch", "n_ctx")


@dataclass(frozen=True, slots=True)
class Settings:
    """llama.cpp's parameters under its own names; 0 takes the node's, ``None`` llama.cpp's default."""

    n_threads: int = 0
    n_threads_batch: int = 0
    n_batch: int = 0
    n_ubatch: int = 0
    n_ctx: int = 0
    n_gpu_layers: int = -1  # all
    main_gpu: int = 0
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    use_mmap: bool = True
    use_mlock: bool = False
    check_tensors: bool = False
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = False
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    yarn_orig_ctx: int | None = None

    @property
    def k_bytes(self) -> float:
        """Bytes of an element of the K cache."""
        return _element_bytes(self.type_k)

    @property
    def v_bytes(self) -> float:
        """Bytes of an element of the V cache."""
        return _element_bytes(self.type_v)


def settings(config: InferenceConfig, *, offload: bool) -> Settings:
    """The settings of this node. ``offload``: this build of llama.cpp computes on a GPU. Raises ConfigError."""
    _refuse_others(config)
    values = {key.replace("-", "_"): value for key, value in config.engine_args.items()}
    _check(values)
    gpu = offload and values.get("n_gpu_layers", -1) != 0
    values.setdefault("n_threads", 0)
    values["n_threads"] = values["n_threads"] or len(cores(config))
    values["n_threads_batch"] = values.get("n_threads_batch") or values["n_threads"]
    values["n_batch"] = values.get("n_batch") or (GPU_BATCH if gpu else CPU_BATCH)
    values["n_ubatch"] = min(values.get("n_ubatch") or (GPU_UBATCH if gpu else CPU_UBATCH), values["n_batch"])
    out = Settings(**values)
    if out.type_v not in _PLAIN_TYPES and out.flash_attn is False:
        raise ConfigError(
            f"inference.engine_args.type_v: {out.type_v} needs flash attention; leave flash_attn out, or take f16"
        )
    return out


def cores(config: InferenceConfig) -> tuple[int, ...]:
    """The cores that the model computes on. Raises ConfigError for cores that this process may not use."""
    return vllm_env.compute_cores(config.cpu_threads, os.sched_getaffinity(0))


def _refuse_others(config: InferenceConfig) -> None:
    if config.quantization.lower() not in ("", "none", "gguf"):
        raise ConfigError(
            f"inference.quantization: a GGUF file is served as it is quantized, not as {config.quantization}; "
            "leave the key out"
        )
    if config.dtype != "auto":
        raise ConfigError(f"inference.dtype: {config.dtype} has no meaning for a GGUF file; leave the key out")


def _check(values: Mapping[str, Any]) -> None:
    kinds = {f.name: str(f.type) for f in fields(Settings)}
    for name, value in values.items():
        key = f"inference.engine_args.{name}"
        kind = kinds.get(name)
        if kind is None:
            close = difflib.get_close_matches(name, kinds, 1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(kinds)}"
            raise ConfigError(f"{key}: llama_cpp has no such argument; {hint}")
        if kind == "str":
            if value not in KV_TYPES:
                raise ConfigError(f"{key}: must be one of {', '.join(KV_TYPES)}, not {value!r}")
        elif not _is(kind, value):
            raise ConfigError(f"{key}: must be {_WORDS[kind.split(' ')[0]]}, not {value!r}")
        elif name in _COUNTS and value < 1:
            raise ConfigError(f"{key}: must be 1 or more, not {value}")


_WORDS = {"int": "a whole number", "bool": "true or false", "float": "a number"}


def _is(kind: str, value: Any) -> bool:
    if value is None:
        return kind.endswith("None")
    if kind.startswith("bool"):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind.startswith("int") else isinstance(value, int | float)


def _element_bytes(name: str) -> float:
    _, elements, size = TYPES[KV_TYPES[name]]
    return size / elements
