"""The chart in the terminal and as a picture."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from inference_node.memory import chart
from inference_node.memory.known import known
from inference_node.memory.plan import Planner
from tests.unit.node.memory.models import GIB, planner

MARKS = {"░": "fits under 80 %", "▒": "fits", "█": "does not fit"}


@pytest.fixture
def sums() -> Planner:
    shape = known("Llama-3.1-8B")
    assert shape is not None
    return planner(shape)


def test_grid_shows_each_plan_and_its_verdict(sums: Planner) -> None:
    lines = chart.grid(sums, sums.plan(4096, 1))
    assert lines[1].split()[1:] == ["2K", "4K", "8K", "16K", "32K", "64K", "128K"]
    for line in lines[2:]:
        many, *cells = re.findall(r"[\d,.]+[░▒█]?", line)
        for context, cell in zip((2048, 4096, 8192, 16384, 32768, 65536, 131_072), cells, strict=True):
            plan = sums.plan(context, int(many))
            assert MARKS[cell[-1]] == str(plan.verdict)
            assert float(cell[:-1].replace(",", "")) == pytest.approx(plan.total / GIB, abs=0.51)
    assert max(map(len, lines)) <= 80 and all(line == line.rstrip() for line in lines)


def test_context_beyond_the_models_own_is_in_the_grid(sums: Planner) -> None:
    assert chart.grid(sums, sums.plan(1 << 20, 1))[1].split()[-1] == "1M"


def test_colour_is_for_terminals(sums: Planner) -> None:
    plan = sums.plan(4096, 1)
    plain, coloured = chart.grid(sums, plan), chart.grid(sums, plan, colour=True)
    assert not any("\x1b" in line for line in plain)
    assert [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in coloured] == plain


def test_picture_is_drawn(sums: Planner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart.png(sums, sums.plan(4096, 8), tmp_path / "plan.png")
    raw = (tmp_path / "plan.png").read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", raw[16:24])
    assert width >= 800 and height >= 500
    assert len(raw) > 10_000  # lines, not an empty sheet


def test_picture_without_the_library_is_refused_with_what_to_install(
    sums: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(chart.ChartError, match="pip install matplotlib"):
        chart.png(sums, sums.plan(4096, 1), tmp_path / "plan.png")
    assert not (tmp_path / "plan.png").exists()


def test_picture_that_cannot_be_written_is_refused(sums: Planner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(chart.ChartError, match="cannot be written: No such file or directory"):
        chart.png(sums, sums.plan(4096, 1), tmp_path / "no" / "plan.png")
