"""The processors of a process: those it may run on, or what its control groups grant."""

from __future__ import annotations

import os
from pathlib import Path

from shared.cpus import usable_cpus

MINE = len(os.sched_getaffinity(0))


def group(tmp_path: Path, name: str, **files: str) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)


def test_without_a_quota_they_are_those_it_may_run_on(tmp_path):
    own = tmp_path / "own"
    assert usable_cpus(tmp_path, own) == MINE
    own.write_text("0::/\n")
    for text in ("max 100000\n", "nonsense", "1 0 0", "50000 0", ""):
        group(tmp_path, ".", cpu__max=text)
        assert usable_cpus(tmp_path, own) == MINE


def test_a_quota_below_that_counts_wherever_above_the_process_it_stands(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/system.slice/laya-router.service\n")
    group(tmp_path, "system.slice/laya-router.service", cpu__max="50000 100000\n")
    assert usable_cpus(tmp_path, own) == 0.5
    group(tmp_path, "system.slice/laya-router.service", cpu__max="max 100000\n")
    assert usable_cpus(tmp_path, own) == MINE
    group(tmp_path, "system.slice", cpu__max="75000 100000\n")
    assert usable_cpus(tmp_path, own) == 0.75
    group(tmp_path, "system.slice", cpu__max="6400000 100000\n")
    assert usable_cpus(tmp_path, own) == min(64, MINE)


def test_quotas_of_the_older_hierarchy_count_too(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:memory:/a\n3:cpu,cpuacct:/docker/x\n")
    group(tmp_path, "cpu/docker/x", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert usable_cpus(tmp_path, own) == MINE
    group(tmp_path, "cpu/docker/x", cpu__cfs_quota_us="60000\n")
    assert usable_cpus(tmp_path, own) == 0.6
