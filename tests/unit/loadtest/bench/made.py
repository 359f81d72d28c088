"""Reports for tests, made of nothing."""

from __future__ import annotations

import random
from typing import Any

from loadtest.bench.plan import Plan, Work
from loadtest.bench.report import NodeSample, ProcessSample, Report, Round, Row, Sample, figures, hundredths

PLAN = Plan("made", (Work("fixed"),), rate=10.0, seconds=10.0, rounds=4)


def row(**changes: Any) -> Row:
    """An answer in full, but for what is changed."""
    values: dict[str, Any] = {
        "at": 0.0, "kind": "fixed", "status": 200, "first": 0.1, "total": 0.5, "itl": 0.02, "tokens": 10, "prompt": 10,
        "cached": 0, "node": "n1", "error": "", "cancelled": False,
    }  # fmt: skip
    return Row(**{**values, **changes})


def made(ttft: float = 0.1, seed: int = 1, rounds: int = 5, pair: str = "", refused: int = 2) -> Report:
    """A report whose times to first token are about ``ttft`` seconds."""
    rng = random.Random(seed)
    report = Report(
        PLAN, seed, "laya bench made", "2026-01-01T00:00:00+00:00", "127.0.0.1:1", "m",
        {"commit": "abc", "cores": "2", "python": "3.11"}, pair=pair,
    )  # fmt: skip
    for number in range(rounds):
        rows = [row(at=i * 0.2, first=ttft * rng.uniform(0.8, 1.2), node=f"n{i % 2}") for i in range(40)]
        rows += [row(at=5.0, status=429, error="queue_full", node="") for _ in range(refused)]
        gaps = [rng.uniform(0.01, 0.03) for _ in range(100)]
        one = Round(number, seed + number, number * 10.0, 10.0, rows, hundredths(gaps), 0.001)
        one.figures = figures(rows, gaps, 10.0, PLAN)
        one.stages = {"laya_node_ttft_seconds": 0.05}
        one.split = {"route": 0.0001, "decode": 0.2, "total": 0.25}
        report.rounds.append(one)
    for i in range(20):
        node = NodeSample(1000.0 - 10 * i, 1000.0, 3.0, 1.0)
        report.samples.append(Sample(i * 0.5, {"n0": node, "n1": node}, {"router": ProcessSample(20.0, 5e7)}, 0.0))
    return report
