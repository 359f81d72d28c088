"""The folder of a report: never one that holds something else, and nothing of an earlier report is left in it."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench import page, plots, report
from loadtest.bench.plan import BadPlan

_SIDES = ("a", "b")  # of two reports whose rounds took turns
_OWN = (report.FILE, page.FILE, *plots.FILES)


def check(folder: Path, force: bool) -> None:
    """Raises BadPlan for a folder that is not empty, unless by force; OSError when it cannot be looked at."""
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise BadPlan(f"--out: {folder} is not empty; name another folder, or add --force to replace the report in it")


def clear(folder: Path) -> None:
    """Remove the files of a report, or of two beside each other; what else is there stays. Raises OSError."""
    for part in (folder, *(folder / side for side in _SIDES)):
        for name in _OWN:
            (part / name).unlink(missing_ok=True)
    for side in _SIDES:
        below = folder / side
        if below.is_dir() and not any(below.iterdir()):
            below.rmdir()
