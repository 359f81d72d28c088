"""A report's folder holds one report and nothing of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import folder, plots
from loadtest.bench.plan import BadPlan
from tests.unit.loadtest.bench.made import made


def test_a_folder_with_something_in_it_is_refused_unless_by_force(tmp_path: Path) -> None:
    folder.check(tmp_path / "new", force=False)
    folder.check(tmp_path, force=False)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(BadPlan, match="not empty.*--force"):
        folder.check(tmp_path, force=False)
    folder.check(tmp_path, force=True)


def test_only_the_files_of_a_report_are_removed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    ours = ["report.json", "index.html", "latency.png", "headroom.png", "a/report.json", "b/nodes.png"]
    for name in (*ours, "thesis.txt", "b/own.png"):
        (tmp_path / name).touch()
    folder.clear(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["b", "b/own.png", "thesis.txt"]
    folder.clear(tmp_path / "missing")


def test_every_picture_is_known_by_its_name() -> None:
    assert set(plots.all_of(made())) <= set(plots.FILES)
