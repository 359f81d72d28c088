"""How many processors this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.cgroup import CGROUP, OWN_CGROUP, own_groups, upwards


def usable_cpus(root: Path = CGROUP, own: Path = OWN_CGROUP) -> float:
    """Those it may run on, or the time on them that a control group above it grants, where that is less."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return min([cpus, *_quotas(root, own)])


def _quotas(root: Path, own: Path) -> Iterator[float]:
    groups = own_groups(own)
    for folder in upwards(root, groups.get("", "/")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            granted, period = (folder / "cpu.max").read_text().split()
            if granted != "max":
                yield int(granted) / int(period)
    for folder in upwards(root / "cpu", groups.get("cpu", "/")):  # version 1; -1 is no limit
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            if quota > 0:
                yield quota / int((folder / "cpu.cfs_period_us").read_text())
