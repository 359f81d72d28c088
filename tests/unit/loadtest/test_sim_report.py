"""Tables, medians and verdicts; and the command itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest import simulate
from loadtest.sim.record import Figures, quantile
from loadtest.sim.report import median, plot, table
from loadtest.sim.suite import CASES, failures

BASE = Figures(100, 100, 0, 0, 0.1, 0.1, 0.5, 0.01, 0.1, 10.0, 1.0, 0.5, 0.3, 0.6, 0.1, 0, 0, 0, 1000, 0.5, 10.0)


def but(**changes: Any) -> Figures:
    return dataclasses.replace(BASE, **changes)


def test_quantiles_are_by_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([], 0.5) != quantile([], 0.5)


def test_medians_are_taken_figure_by_figure() -> None:
    runs = [but(ttft_mean=0.1, rejects=5), but(ttft_mean=0.3, rejects=1), but(ttft_mean=0.2, rejects=9)]
    got = median(runs)
    assert (got.ttft_mean, got.rejects) == (0.2, 5)


def test_the_table_has_a_line_for_each_policy() -> None:
    lines = table({"laya": BASE, "random": but(ttft_p99=1.25)}).splitlines()
    assert len(lines) == 3 and "1250.0" in lines[2] and len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("case", "ours", "others", "said"),
    [
        ("poisson", BASE, {"least-load": but(ttft_mean=0.09)}, "ttft_mean 100.0 ms is over"),
        ("poisson", BASE, {"least-load": but(ttft_p99=0.4)}, "ttft_p99 500.0 ms is over"),
        ("shared", BASE, {"power-of-two": but(ttft_p99=0.7)}, "is not 1.5 times below"),
        ("stale", but(kv_peak=0.96), {}, "a node's KV was 96.0% promised"),
        ("poisson", but(preemptions=2), {}, "2 preemptions"),
    ],
)
def test_what_is_missed_is_said(case: str, ours: Figures, others: dict[str, Figures], said: str) -> None:
    wrong = failures(CASES[case], {"laya": ours, **others})
    assert len(wrong) == 1 and said in wrong[0]


def test_a_policy_that_refuses_more_or_overruns_nodes_is_no_match() -> None:
    assert failures(CASES["poisson"], {"laya": BASE, "random": but(ttft_mean=0.01, ttft_p99=0.1, rejects=5)}) == []
    assert failures(CASES["stale"], {"laya": BASE, "random": but(ttft_mean=0.01, ttft_p99=0.1, kv_peak=1.0)}) == []
    assert failures(CASES["poisson"], {"laya": BASE, "least-load": but(ttft_mean=0.098, ttft_p99=0.49)}) == []


def test_a_picture_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    path = tmp_path / "figures.png"
    drawn = plot(path, "a title", {"laya": BASE, "random": BASE})
    assert drawn == path.exists()
    if drawn:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "60", "--nodes", "2", "--policies", "laya,random", "--json", "--seeds", "2"]
    assert simulate.main(arguments) == 0
    got = json.loads(capsys.readouterr().out)
    assert list(got["policies"]) == ["laya", "random"]
    assert got["policies"]["laya"]["served"] == 60


def test_the_command_reads_a_trace_and_says_what_is_wrong_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": %d, "input_length": 900, "output_length": 9, "hash_ids": [0]}\n'
    path.write_text("".join(row % (100 * i) for i in range(20)))
    assert simulate.main(["--trace", str(path), "--nodes", "2", "--policies", "laya"]) == 0
    assert "laya" in capsys.readouterr().out
    path.write_text(row % 0 + "{}\n")
    assert simulate.main(["--trace", str(path), "--policies", "laya"]) == 2
    assert "t.jsonl, line 2: timestamp" in capsys.readouterr().err
    assert simulate.main(["--policies", "nonesuch"]) == 2
    assert "there is no policy 'nonesuch'" in capsys.readouterr().err
