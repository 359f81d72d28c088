"""What memory there is. Every source is optional: what a machine does not have or does not tell is left out."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.cgroup import CGROUP, OWN_CGROUP, own_groups, upwards

MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True, slots=True)
class Device:
    """Memory that a node can plan with."""

    kind: str  # "gpu" or "cpu"
    name: str  # for people
    total: int  # bytes
    free: int  # bytes that nobody else has taken
    count: int = 1  # devices alike


def find(*, cpu: bool, ranks: int = 1) -> Device | None:
    """The first ``ranks`` GPUs this process may use, or with ``cpu`` the machine's memory; None where nothing tells."""
    return host() if cpu else gpus(ranks)


def available() -> int:
    """Bytes of the machine's memory that this process may still take; 0 where the system does not say."""
    found = host()
    return found.free if found is not None else 0


def host(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN_CGROUP) -> Device | None:
    """The machine's memory, or that of the control group this process is in where that is less."""
    total, free = _meminfo(meminfo)
    name = "memory of this machine"
    for limit, room in limits(cgroup, own):
        if not total or limit < total:
            total, name = limit, "memory limit of its control group"
        free = min(free, room) if free else room
    return Device("cpu", name, total or free, free) if free else None


def _meminfo(path: Path) -> tuple[int, int]:
    """MemTotal and MemAvailable in bytes; 0 for what is not said."""
    found = {"MemTotal": 0, "MemAvailable": 0}
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) << 10
    return found["MemTotal"], found["MemAvailable"]


def limits(root: Path = CGROUP, own: Path = OWN_CGROUP) -> list[tuple[int, int]]:
    """(limit, bytes left under it) for every limit above this process, page cache that can go counted as left."""
    groups = own_groups(own)
    out = []
    for base, names, group in (
        (root, ("memory.max", "memory.current", "inactive_file"), groups.get("")),
        (
            root / "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            groups.get("memory"),
        ),
    ):
        for folder in upwards(base, group or "/"):
            bound, taken = _number(folder / names[0]), _number(folder / names[1])
            if bound is not None and taken is not None and bound < _UNLIMITED:
                out.append((bound, max(bound - taken + _stat(folder / "memory.stat", names[2]), 1)))
    return out


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(name + " "):
                return int(line.split()[1])
    return 0


def has_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU multiplies in tiles."""
    with suppress(OSError), cpuinfo.open() as lines:
        for line in lines:
            if line.startswith("flags"):
                return " amx_tile" in line
    return False


def gpus(ranks: int = 1, environment: Mapping[str, str] = os.environ, library: Any = None) -> Device | None:
    """The first ``ranks`` NVIDIA GPUs this process may use, as one: the least memory of them and how many there are.

    None without a driver, without its Python library (nvidia-ml-py), or without a GPU. ``library`` stands in for it.
    """
    try:
        nvml = library if library is not None else importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no library, no driver, or one that does not answer: there is nothing to plan with
        return None
    try:
        handles = _handles(nvml, environment.get("CUDA_VISIBLE_DEVICES"))
        found = [_gpu(nvml, handle) for handle in handles[: max(ranks, 1)]]
    except Exception:
        return None
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    if not found:
        return None
    name = found[0][0]
    return Device("gpu", name, min(total for _, total, _ in found), min(free for _, _, free in found), len(handles))


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for part in visible.split(","):
        part = part.strip()
        if part.isdigit():
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(part)))
        elif part.startswith(("GPU-", "MIG-")):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(part))
        else:
            break  # CUDA ignores what comes after an entry that is none
    return handles


def _gpu(nvml: Any, handle: Any) -> tuple[str, int, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return name.decode() if isinstance(name, bytes) else str(name), int(memory.total), int(memory.free)
