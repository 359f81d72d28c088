"""GPUs through a stand-in for NVML: what it tells, what it does not, and a GPU that is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.memory.watch_gpu import GpuWatch


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Nvml:
    """The calls that are made of the library."""

    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_ERROR_GPU_IS_LOST = 15

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.broken: set[str] = set()
        self.error = 3
        self.slowdown = 88
        self.started = 0

    def _do(self, name: str) -> None:
        if name in self.broken:
            raise NvmlError(self.error)

    def nvmlInit(self) -> None:
        self._do("init")
        self.started += 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if index >= self.count:
            raise NvmlError(2)
        return f"h{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        return {"GPU-a": "h1"}[uuid]

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        return int(handle[1:])

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        self._do("memory")
        return SimpleNamespace(total=100, used=90 + int(handle[1:]), free=10)

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        self._do("temperature")
        return 60 + int(handle[1:])

    def nvmlDeviceGetTemperatureThreshold(self, handle: str, kind: int) -> int:
        self._do("threshold")
        return self.slowdown

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._do("power")
        return 350_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000


def test_all_gpus_are_read():
    first, second = GpuWatch({}, Nvml()).read()
    assert (first.index, first.memory, first.celsius, first.slowdown_celsius, first.power) == (0, 0.9, 60.0, 88.0, 0.5)
    assert (second.index, second.memory, second.celsius) == (1, 0.91, 61.0)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("1,0", [1, 0]), ("GPU-a", [1]), ("", []), ("-1", []), ("0,-1,1", [0]), ("NoDevFiles", [])],
)
def test_only_the_gpus_that_the_process_may_use_are_watched(visible, indices):
    watch = GpuWatch({"CUDA_VISIBLE_DEVICES": visible}, Nvml())
    assert [gpu.index for gpu in watch.read()] == indices and len(watch) == len(indices)


@pytest.mark.parametrize("missing", ["temperature", "threshold", "power", "memory"])
def test_what_a_gpu_does_not_tell_is_left_out(missing):
    nvml = Nvml(1)
    nvml.broken.add(missing)
    (gpu,) = GpuWatch({}, nvml).read()
    values = {
        "temperature": gpu.celsius,
        "threshold": gpu.slowdown_celsius,
        "power": gpu.power,
        "memory": gpu.memory,
    }
    assert values.pop(missing) is None and None not in values.values() and not gpu.lost


def test_a_gpu_that_fell_off_the_bus_is_lost():
    nvml = Nvml(1)
    watch = GpuWatch({}, nvml)
    nvml.broken |= {"memory", "temperature", "power"}
    nvml.error = Nvml.NVML_ERROR_GPU_IS_LOST
    (gpu,) = watch.read()
    assert gpu.lost and gpu.memory is gpu.celsius is None


@pytest.mark.parametrize("slowdown", [0, 1000, -3])
def test_a_slowdown_limit_that_makes_no_sense_is_left_out(slowdown):
    nvml = Nvml(1)
    nvml.slowdown = slowdown
    assert GpuWatch({}, nvml).read()[0].slowdown_celsius is None


def test_without_driver_or_with_a_gpu_that_is_not_there_nothing_is_watched():
    nvml = Nvml()
    nvml.broken.add("init")
    assert GpuWatch({}, nvml).read() == ()
    assert GpuWatch({"CUDA_VISIBLE_DEVICES": "7"}, Nvml()).read() == ()


def test_this_machine_can_be_asked():
    for gpu in GpuWatch().read():
        assert gpu.memory is None or 0 <= gpu.memory <= 1
