"""A progress bar for long, rare work."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bar:
    """A bar that takes (fraction, text) from any thread. Without a terminal it writes plain lines; quiet, nothing."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._plain = not sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last = ""

    def __enter__(self) -> Bar:
        if self._quiet:
            return self
        if self._plain:
            print(f"{self._title} ...", file=sys.stderr, flush=True)
            return self
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._progress = Progress(*columns, TimeElapsedColumn())
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=1.0)
        return self

    def update(self, fraction: float, text: str = "") -> None:
        """Show how far the work is, 0 to 1, and at what."""
        if self._quiet:
            return
        if self._progress is not None and self._task is not None:
            label = f"{self._title}: {text}" if text else self._title
            self._progress.update(self._task, completed=fraction, description=label)
        elif text and text != self._last:
            self._last = text
            print(f"  {fraction:4.0%} {text}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            if kind is None and self._task is not None:
                self._progress.update(self._task, completed=1.0, description=self._title)
            self._progress.stop()
