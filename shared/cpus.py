"""How many processors this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota: Path = _QUOTA) -> float:
    """Those it may run on, or the time on them that its cgroup (version 2) grants it, where that is less."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):
        granted, period = quota.read_text().split()
        if granted != "max":
            cpus = min(cpus, int(granted) / int(period))
    return cpus
