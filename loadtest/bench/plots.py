"""The pictures of a report, as PNG. They need matplotlib, which is part of the development set."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loadtest.bench.report import Report, Row, per_node, reasons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTALL = "matplotlib is not installed: `make dev` brings it, or `pip install matplotlib`; --no-plots does without"
FILES = ("latency.png", "over-time.png", "rejects.png", "nodes.png", "headroom.png", "processes.png")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
_MOST_LINES = 12  # in one picture
_MIB = 1 << 20


def available() -> bool:
    """Whether matplotlib is installed."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def all_of(report: Report) -> dict[str, bytes]:
    """File name -> PNG."""
    made: dict[str, bytes] = {
        "latency.png": picture(2, lambda axes: _latency(axes, [("", report)])),
        "over-time.png": picture(2, lambda axes: _over_time(axes, report)),
        "rejects.png": picture(1, lambda axes: _bars(axes[0], dict(reasons(report.rounds)), "requests not answered")),
        "nodes.png": picture(1, lambda axes: _bars(axes[0], per_node(report.rounds), "requests answered by each node")),
    }
    if any(sample.nodes for sample in report.samples):
        made["headroom.png"] = picture(2, lambda axes: _headroom(axes, report))
    if any(sample.processes for sample in report.samples):
        made["processes.png"] = picture(2, lambda axes: _processes(axes, report))
    return made


def beside(a: Report, b: Report) -> bytes:
    """The latency curves of two reports in one picture."""
    return picture(2, lambda axes: _latency(axes, [("A", a), ("B", b)]))


def picture(count: int, draw: Callable[[Sequence[Axes]], None], columns: int = 2) -> bytes:
    """A PNG of ``count`` drawings, so many side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across, down = min(count, columns), -(-count // columns)
    figure = Figure(figsize=(6.0 * across, 3.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Any] = [figure.add_subplot(down, across, i + 1) for i in range(count)]
    draw(axes)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100, metadata={"Software": "laya bench"})
    return out.getvalue()


def _first(row: Row) -> float:
    return row.first * 1e3


def _total(row: Row) -> float:
    return row.total * 1e3


def _itl(row: Row) -> float:
    return row.itl * 1e3


def _latency(axes: Sequence[Axes], named: Sequence[tuple[str, Report]]) -> None:
    from matplotlib.ticker import ScalarFormatter

    for axis, title, take in (
        (axes[0], "time to first token", _first),
        (axes[1], "whole answer", _total),
    ):
        for i, (name, report) in enumerate(named):
            _curves(axis, report, take, _COLOURS[i], name or "all rounds")
        axis.set_title(title)
        axis.set_xlabel("ms")
        axis.set_ylabel("share of answers")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_formatter(ScalarFormatter())
            axis.tick_params(axis="x", which="both", labelsize=8, rotation=30)
            axis.legend(loc="lower right", fontsize=8)


def _curves(axis: Axes, report: Report, take: Callable[[Row], float], colour: str, label: str) -> None:
    every: list[float] = []
    for one in report.rounds:
        values = sorted(take(row) for row in one.rows if row.served)
        every += values
        if values and len(report.rounds) > 1:
            _curve(axis, values, color=colour, alpha=0.25, linewidth=0.8)
    if every:
        _curve(axis, sorted(every), color=colour, linewidth=2, label=label)


def _curve(axis: Axes, values: list[float], **style: Any) -> None:
    axis.plot([max(v, 1e-3) for v in values], [(i + 1) / len(values) for i in range(len(values))], **style)


def _over_time(axes: Sequence[Axes], report: Report) -> None:
    for axis, title, take in (
        (axes[0], "time to first token", _first),
        (axes[1], "mean time between pieces", _itl),
    ):
        for i, one in enumerate(report.rounds):
            rows = [row for row in one.rows if row.served]
            x = [one.start + row.at for row in rows]
            axis.plot(x, [take(row) for row in rows], ".", markersize=3, color=_COLOURS[i % 2])
        for one in report.rounds:
            axis.axvline(one.start, color="#bbb", linewidth=0.6)
        axis.set_title(f"{title}; lines are the starts of rounds")
        axis.set_xlabel("s since the first round")
        axis.set_ylabel("ms")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)


def _headroom(axes: Sequence[Axes], report: Report) -> None:
    names = sorted({name for sample in report.samples for name in sample.nodes})
    for i, name in enumerate(names[:_MOST_LINES]):
        seen = [(sample.at, sample.nodes[name]) for sample in report.samples if name in sample.nodes]
        share = [100.0 * n.headroom / n.capacity if n.capacity else 0.0 for _, n in seen]
        colour = _COLOURS[i % len(_COLOURS)]
        axes[0].plot([at for at, _ in seen], share, label=name, color=colour, linewidth=1)
        axes[1].plot([at for at, _ in seen], [n.running for _, n in seen], label=name, color=colour, linewidth=1)
        axes[1].plot([at for at, _ in seen], [n.waiting for _, n in seen], ":", color=colour, linewidth=1)
    axes[0].set_title("KV room of each node")
    axes[0].set_ylabel("% of its capacity")
    axes[0].set_ylim(0, 105)
    axes[1].set_title("requests running (dotted: waiting)")
    for axis in axes:
        axis.set_xlabel("s since the first round")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)


def _processes(axes: Sequence[Axes], report: Report) -> None:
    names = sorted({name for sample in report.samples for name in sample.processes})
    for i, name in enumerate(names[:_MOST_LINES]):
        seen = [(sample.at, sample.processes[name]) for sample in report.samples if name in sample.processes]
        colour = _COLOURS[i % len(_COLOURS)]
        axes[0].plot([at for at, _ in seen], [p.cpu for _, p in seen], label=name, color=colour, linewidth=1)
        axes[1].plot([at for at, _ in seen], [p.rss / _MIB for _, p in seen], label=name, color=colour, linewidth=1)
    axes[0].set_title("CPU of each process")
    axes[0].set_ylabel("% of a core")
    axes[1].set_title("resident memory of each process")
    axes[1].set_ylabel("MiB")
    for axis in axes:
        axis.set_xlabel("s since the first round")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)


def _bars(axis: Axes, counts: dict[str, int], title: str) -> None:
    axis.set_title(title)
    if not counts:
        axis.text(0.5, 0.5, "none", ha="center", va="center", transform=axis.transAxes, color="#777")
        axis.set_xticks([])
        axis.set_yticks([])
        return
    top = sorted(counts.items(), key=lambda item: -item[1])[:_MOST_LINES]
    axis.barh([name[:48] for name, _ in top][::-1], [count for _, count in top][::-1], color=_COLOURS[0])
    axis.grid(alpha=0.3, axis="x")
