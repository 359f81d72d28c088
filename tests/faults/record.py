"""Memory, open files and tasks of every process over time, as a CSV and a picture: they must not grow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from tests.faults.site import Site
from tests.support.attack import rss
from tests.support.leaks import value

_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
_WIDTH, _HEIGHT = 900, 240


class Record:
    """Rows of what was seen. ``path`` None keeps them in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._began = time.monotonic()
        self.rows: list[tuple[float, str, int, int, int]] = []
        """Seconds, process, memory in KiB, open files, tasks."""
        if path is not None:
            path.write_text("seconds,process,rss_kib,files,tasks\n")

    def look(self, site: Site) -> None:
        """Take down what every process has now."""
        at = time.monotonic() - self._began
        for member in (*site.routers, *site.nodes):
            text = member.metrics()
            if member.proc is None or not text:
                continue
            pid = member.proc.popen.pid
            row = (
                at,
                member.name,
                rss(pid),
                len(os.listdir(f"/proc/{pid}/fd")),
                int(value(text, f"laya_{member.kind}_tasks")),
            )
            self.rows.append(row)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(",".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row) + "\n")

    def draw(self) -> None:
        """Write the picture beside the CSV."""
        if self._path is None or len(self.rows) < 2:
            return
        names = sorted({row[1] for row in self.rows})
        panels = [
            self._panel(title, column, names, at)
            for at, (title, column) in enumerate((("memory, KiB", 2), ("open files", 3), ("tasks", 4)))
        ]
        height = len(panels) * (_HEIGHT + 30)
        self._path.with_suffix(".svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 120}" height="{height}" '
            f'font-family="sans-serif" font-size="12">{"".join(panels)}</svg>\n'
        )

    def _panel(self, title: str, column: int, names: list[str], at: int) -> str:
        top = max(float(row[column]) for row in self.rows) * 1.05 or 1.0
        span = max(row[0] for row in self.rows) or 1.0
        y0 = at * (_HEIGHT + 30) + 20
        out = [
            f'<text x="4" y="{y0 - 6}">{title}, at most {top / 1.05:.0f}; {span / 60:.0f} minutes</text>',
            f'<rect x="0" y="{y0}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>',
        ]
        for i, name in enumerate(names):
            points = " ".join(
                f"{row[0] / span * _WIDTH:.1f},{y0 + _HEIGHT - float(row[column]) / top * _HEIGHT:.1f}"
                for row in self.rows
                if row[1] == name
            )
            colour = _COLOURS[i % len(_COLOURS)]
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
            out.append(f'<text x="{_WIDTH + 8}" y="{y0 + 14 + 15 * i}" fill="{colour}">{name}</text>')
        return "".join(out)
