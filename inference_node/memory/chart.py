"""Memory against context and concurrency: a grid for the terminal, lines for a PNG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from inference_node.memory.plan import COMFORT, Plan, Planner, Verdict
from inference_node.memory.screen import steps
from inference_node.memory.units import GIB, tokens

_COLUMNS = 7
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_MARKS = {Verdict.EASY: "░", Verdict.TIGHT: "▒", Verdict.NO: "█"}
_COLOURS = {Verdict.EASY: "\x1b[32m", Verdict.TIGHT: "\x1b[33m", Verdict.NO: "\x1b[31m"}
_PLAIN = "\x1b[0m"


class ChartError(Exception):
    """The chart cannot be drawn: one sentence with what to install or change."""


def grid(planner: Planner, plan: Plan, *, colour: bool = False) -> list[str]:
    """GiB for contexts across and sequences down, each with a mark that tells whether it fits."""
    contexts = steps(max(planner.shape.max_context, plan.context), _COLUMNS)
    key = "  ".join(f"{_paint(mark, v, colour)} {v}" for v, mark in _MARKS.items())
    head = f"{'sequences':>10}" + "".join(f"{tokens(n):>9} " for n in contexts)
    lines = [f"GiB by context and sequences:  {key}", head.rstrip()]
    for many in _ROWS:
        cells = (_cell(planner.plan(context, many), colour) for context in contexts)
        lines.append((f"{many:>10}" + "".join(cells)).rstrip())
    return lines


def _cell(plan: Plan, colour: bool) -> str:
    size = plan.total / GIB
    text = f"{size:,.1f}" if size < 1000 else f"{size:,.0f}"
    return f"{text:>8}" + _paint(_MARKS[plan.verdict], plan.verdict, colour) + " "


def _paint(text: str, verdict: Verdict, colour: bool) -> str:
    return f"{_COLOURS[verdict]}{text}{_PLAIN}" if colour else text


def png(planner: Planner, plan: Plan, path: Path) -> None:
    """Draw the chart to a PNG file. Raises ChartError without matplotlib, or where the file cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ChartError("a PNG needs matplotlib; install it with `pip install matplotlib`, or leave --chart out")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure.add_subplot(), planner, plan)
    try:
        figure.savefig(path, format="png")
    except OSError as e:
        raise ChartError(f"{path} cannot be written: {e.strerror or e}") from None


def _draw(axes: Any, planner: Planner, plan: Plan) -> None:
    contexts = sorted({*steps(max(planner.shape.max_context, plan.context), 12), plan.context})
    for many in sorted({*_ROWS, *(() if plan.shares else (plan.sequences,))}):
        sizes = [planner.plan(context, many).total / GIB for context in contexts]
        axes.plot(contexts, sizes, marker=".", label=f"{many:,}")
    memory = plan.memory / GIB
    axes.axhline(memory, color="black", linewidth=1.2)
    axes.axhline(memory * COMFORT, color="black", linewidth=0.8, linestyle="--")
    axes.annotate(f"memory {memory:,.1f} GiB", (contexts[-1], memory), va="bottom", ha="right", fontsize=8)
    axes.annotate("80 %", (contexts[-1], memory * COMFORT), va="bottom", ha="right", fontsize=8)
    axes.plot([plan.context], [plan.total / GIB], marker="o", markersize=9, color="black", fillstyle="none")
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [tokens(n) for n in contexts], rotation=45, fontsize=8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("memory, GiB")
    axes.set_title(f"{planner.shape.name}: memory by context and sequences at once")
    axes.legend(title="sequences", fontsize=8)
    axes.grid(alpha=0.3)
