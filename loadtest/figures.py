"""Figures of interleaved rounds: medians, ratios between targets, aims, and how they are shown."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.bench.target import commit
from shared.compiled import compiled

Row = dict[str, object]


@dataclass
class Target:
    """Something that takes load: address, processes whose CPU counts as its cost, and a router's private address."""

    name: str
    address: str
    pids: list[int] = field(default_factory=list)
    admin: str = ""


@dataclass
class Table:
    """Rows by scenario and target. Every figure is a median over rounds; errors are summed."""

    title: str
    columns: tuple[str, ...]
    base: str = "direct"  # the target that ``added_…`` columns are over
    cells: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, scenario: str, target: str, **figures: float) -> None:
        """One round of one target."""
        cell = self.cells.setdefault((scenario, target), {})
        for name, value in figures.items():
            cell.setdefault(name, []).append(value)

    def get(self, scenario: str, target: str, figure: str) -> float:
        """The median of a figure; nan where there is none. ``added_X`` is X minus the base's X, round by round."""
        cell = self.cells.get((scenario, target), {})
        if figure == "errors":
            return sum(cell.get(figure, []))
        values = cell.get(figure, [])
        if figure.startswith("added_"):
            name = figure.removeprefix("added_")
            base = self.cells.get((scenario, self.base), {}).get(name, [])
            values = [mine - theirs for mine, theirs in zip(cell.get(name, []), base, strict=False)]
        values = [v for v in values if not math.isnan(v)]
        return statistics.median(values) if values else math.nan

    def rows(self) -> list[Row]:
        """Every row with its medians, in the order in which they came."""
        rows: list[Row] = []
        for scenario, target in self.cells:
            row: Row = {"scenario": scenario, "target": target}
            row.update({c: _plain(self.get(scenario, target, c)) for c in self.columns})
            rows.append(row)
        return rows

    @property
    def errors(self) -> int:
        """Failures in all rows."""
        return int(sum(self.get(scenario, target, "errors") for scenario, target in self.cells))

    def text(self) -> str:
        """The table for people, in Markdown."""
        names = ("scenario", "target", *self.columns)
        lines = [[n.replace("_", " ") for n in names], ["---"] * len(names)]
        lines += [[shown(row[n]) for n in names] for row in self.rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        body = ("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)
        return "\n".join([f"{self.title}", "", *body])


@dataclass(frozen=True)
class Aim:
    """A ratio or a figure that the project wants to stay below, or above."""

    what: str
    value: float
    limit: float
    above: bool = False  # the aim is to be at or above the limit

    @property
    def text(self) -> str:
        """One line: the figure, its aim, and whether it is met."""
        if math.isnan(self.value):
            return f"{self.what}: not measured here"
        met = self.value >= self.limit if self.above else self.value <= self.limit
        sign = "at least" if self.above else "at most"
        return f"{self.what}: {shown(self.value)} (aim: {sign} {shown(self.limit)}) {'met' if met else 'MISSED'}"


def ratio(table: Table, scenario: str, figure: str, mine: str, theirs: str) -> float:
    """A figure of one target over that of another; nan where either is missing."""
    below = table.get(scenario, theirs, figure)
    return table.get(scenario, mine, figure) / below if below > 0 else math.nan


def shown(value: object) -> str:
    """A figure with about three digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float):
        size = abs(value)
        if size >= 100 or value == int(value):
            return f"{value:,.0f}"
        return f"{value:.3f}" if size < 1 else f"{value:.2f}" if size < 10 else f"{value:.1f}"
    return str(value)


def about(load_before: float) -> dict[str, object]:
    """When and on what: the load average says how far to trust a table."""
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "hot_path": "compiled" if compiled() else "plain",
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def show(
    tables: Sequence[Table],
    aims: Sequence[Aim],
    load_before: float,
    as_json: bool,
    command: str,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Print everything, for people (Markdown that can stand in the documentation) or for scripts.

    ``versions`` are those of what Laya was compared with.
    """
    facts = about(load_before)
    others = versions or {}
    if as_json:
        print(
            json.dumps(
                {
                    **facts,
                    "command": command,
                    "versions": others,
                    "tables": {t.title: t.rows() for t in tables},
                    "aims": [a.text for a in aims],
                }
            )
        )
        return
    load = f"load average {facts['load_before']} before and {facts['load_after']} after"
    said = "".join(f"; {name} {version}" for name, version in others.items())
    machine = f"{facts['cores']} cores, Python {facts['python']}, hot path {facts['hot_path']}, {load}"
    print(f"`{command}`, {facts['date']}, commit {facts['commit']}, {machine}{said}\n")
    for table in tables:
        print(table.text() + "\n")
    for aim in aims:
        print("* " + aim.text)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
