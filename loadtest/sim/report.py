"""Medians over seeds, as a table, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.sim.record import Figures

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ttft_mean", "TTFT mean", "ms"),
    ("ttft_p50", "p50", "ms"),
    ("ttft_p99", "p99", "ms"),
    ("itl_mean", "ITL", "ms"),
    ("itl_p99", "ITL p99", "ms"),
    ("good_share", "in SLO", "%"),
    ("goodput", "good/s", ".1f"),
    ("hit_rate", "hits", "%"),
    ("kv_mean", "KV mean", "%"),
    ("kv_peak", "KV peak", "%"),
    ("kv_imbalance", "KV imb.", "%"),
    ("preemptions", "preempt.", "d"),
    ("rejects", "rejects", "d"),
    ("lost", "lost", "d"),
)


def median(runs: Sequence[Figures]) -> Figures:
    """The median of each figure over the runs of several seeds."""
    values = {}
    for field in dataclasses.fields(Figures):
        middle = statistics.median(getattr(run, field.name) for run in runs)
        values[field.name] = round(middle) if isinstance(getattr(runs[0], field.name), int) else middle
    return Figures(**values)


def table(medians: Mapping[str, Figures]) -> str:
    """A line for each policy, times in milliseconds, shares in percent."""
    width = max([len("policy"), *map(len, medians)]) + 2
    lines = ["policy".ljust(width) + "".join(title.rjust(10) for _, title, _ in _COLUMNS)]
    for name, figures in medians.items():
        cells = (_cell(getattr(figures, key), kind).rjust(10) for key, _, kind in _COLUMNS)
        lines.append(name.ljust(width) + "".join(cells))
    return "\n".join(lines)


def _cell(value: float, kind: str) -> str:
    if kind == "ms":
        return f"{value * 1e3:.1f}"
    if kind == "%":
        return f"{value * 100:.1f}"
    return format(value, kind)


def plot(path: Path, title: str, medians: Mapping[str, Figures]) -> bool:
    """Draw the figures as bars into a PNG; False where matplotlib is not installed. Raises OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shown = [
        ("ttft_mean", "mean time to first token, s"),
        ("ttft_p99", "p99 time to first token, s"),
        ("itl_mean", "time between tokens, s"),
        ("goodput", "requests a second within the SLO"),
        ("hit_rate", "prompt tokens from the cache, share"),
        ("kv_imbalance", "KV of the fullest node above the mean, share"),
        ("kv_peak", "most KV promised on a node, share"),
        ("preemptions", "preemptions"),
        ("rejects", "rejects"),
    ]
    figure = Figure(figsize=(15, 12), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    names = list(medians)
    for axes, (key, label) in zip(figure.subplots(3, 3).flat, shown, strict=True):
        axes.barh(names, [getattr(medians[name], key) for name in names])
        axes.invert_yaxis()
        axes.set_title(label, fontsize=10)
    figure.savefig(path, dpi=100)
    return True
