"""Which processors this process may use, and how much of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.cgroup import CGROUP, OWN_CGROUP, own_groups, upwards


def cores() -> list[int]:
    """Numbers of the cores this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def usable_cpus(root: Path = CGROUP, own: Path = OWN_CGROUP) -> float:
    """Those it may run on, or the time on them that a control group above it grants, where that is less."""
    return min([float(len(cores())), *_quotas(root, own)])


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
