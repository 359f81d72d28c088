"""What NVML says of the GPUs a running node may use. Without its library, a driver or a GPU there is nothing to say.

A GPU that has answered once and then does not is called lost: one that fell off the bus is how a node finds out that
it has asked too much of a machine.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from inference_node.memory.guard import GpuReading

T = TypeVar("T")
_GONE = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED")


class GpuWatch:
    """Reads GPUs. Blocking: a driver in trouble may take seconds, so call it in a thread."""

    def __init__(self, environment: Mapping[str, str] | None = None, library: Any = None) -> None:
        """``library`` stands in for NVML's; ``environment`` says which GPUs the process may use."""
        self._gpus: list[tuple[int, Any]] = []
        self._slowdown: dict[int, float | None] = {}
        self._nvml: Any = None
        try:
            nvml = library if library is not None else importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
            self._gpus = _visible(nvml, visible)
        except Exception:  # any failure of library or driver: there is nothing to watch
            self._gpus = []
        self._slowdown = {index: self._limit(handle) for index, handle in self._gpus}

    def __len__(self) -> int:
        """GPUs that are watched."""
        return len(self._gpus)

    def read(self) -> tuple[GpuReading, ...]:
        """All of them, now."""
        return tuple(self._read(index, handle) for index, handle in self._gpus)

    def _read(self, index: int, handle: Any) -> GpuReading:
        nvml, lost = self._nvml, False
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            share = memory.used / memory.total if memory.total else None
        except Exception as e:
            lost, share = self._is_lost(e), None
        if lost:
            return GpuReading(index, lost=True)
        return GpuReading(
            index,
            share,
            _try(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            self._slowdown[index],
            _try(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        )

    def _limit(self, handle: Any) -> float | None:
        nvml = self._nvml
        kind = getattr(nvml, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", None)
        limit = None if kind is None else _try(lambda: float(nvml.nvmlDeviceGetTemperatureThreshold(handle, kind)))
        return limit if limit is not None and 30.0 <= limit <= 150.0 else None

    def _is_lost(self, error: Exception) -> bool:
        code = getattr(error, "value", None)
        return code is not None and any(code == getattr(self._nvml, name, object()) for name in _GONE)


def _visible(nvml: Any, visible: str | None) -> list[tuple[int, Any]]:
    """Index and handle of each GPU this process may use, by CUDA's rules."""
    if visible is None:
        return [(i, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]
    found: list[tuple[int, Any]] = []
    for part in map(str.strip, visible.split(",")):
        if part.isdigit():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(part))
        elif part.startswith(("GPU-", "MIG-")):
            handle = nvml.nvmlDeviceGetHandleByUUID(part)
        else:
            break  # CUDA ignores what comes after an entry that is none
        index = _try(lambda handle=handle: int(nvml.nvmlDeviceGetIndex(handle)))  # type: ignore[misc]
        found.append((len(found) if index is None else index, handle))
    return found


def _try(read: Callable[[], T]) -> T | None:
    """The value, None for what this GPU does not tell."""
    try:
        return read()
    except Exception:
        return None
