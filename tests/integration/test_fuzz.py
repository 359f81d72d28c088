"""A few seconds of every fuzz target, from one seed. Longer runs: ``python -m tests.fuzz --seconds 600``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.support.processes import ROOT

pytestmark = pytest.mark.integration

SECONDS = 6


@pytest.mark.parametrize("target", TARGETS)
def test_what_real_peers_send_passes_each_target(target: str) -> None:
    inputs = seeds()[target]
    assert inputs
    for raw in inputs:
        TARGETS[target](raw)
        for at in range(0, len(raw), 7):
            TARGETS[target](raw[:at])


def test_a_short_run_from_a_seed_breaks_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS), "--seed", "7"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    done = next(line for line in run.stderr.splitlines() if "number_of_executed_units" in line)
    assert int(done.split()[-1]) > 500, done
