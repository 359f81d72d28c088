"""Small versions of the long runs, by the command that makes the long ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import ROOT


def endure(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtest.endurance", *argv], cwd=ROOT, capture_output=True, text=True, timeout=90
    )


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("calls", "--calls", "10000"), "10000 calls in "),
        (("calls", "--calls", "1000", "--engine", "h2"), "1000 calls in "),
        (("connections", "--connections", "5000"), "5000 connections in "),
        (("connections", "--connections", "500", "--engine", "h2"), "500 connections in "),
        (("traffic", "--mib", "32", "--seed", "1"), "no byte and no window lost"),
        (("traffic", "--mib", "8", "--seed", "2", "--engine", "h2"), "no byte and no window lost"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_nothing_grows_or_gets_lost(argv: tuple[str, ...], says: str) -> None:
    done = endure(*argv)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_a_bound_that_breaks_is_told_and_ends_with_one() -> None:
    done = endure("connections", "--connections", "500", "--max-growth-mib", "-1")
    assert done.returncode == 1
    assert done.stderr.strip().startswith("broken: resident memory: ")
