"""The processors of a process: those it may run on, or what its cgroup grants."""

from __future__ import annotations

import os

from shared.cpus import usable_cpus


def test_without_a_quota_they_are_those_it_may_run_on(tmp_path):
    mine = len(os.sched_getaffinity(0))
    assert usable_cpus(tmp_path / "none") == mine
    for text in ("max 100000\n", "nonsense", "1 0 0", ""):
        (tmp_path / "cpu.max").write_text(text)
        assert usable_cpus(tmp_path / "cpu.max") == mine


def test_a_quota_below_that_counts(tmp_path):
    quota = tmp_path / "cpu.max"
    quota.write_text("50000 100000\n")
    assert usable_cpus(quota) == 0.5
    quota.write_text("6400000 100000\n")
    assert usable_cpus(quota) == min(64, len(os.sched_getaffinity(0)))
