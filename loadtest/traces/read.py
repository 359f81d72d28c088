"""Reads a trace of either kind."""

from __future__ import annotations

from pathlib import Path

from loadtest.sim.mooncake import parsed
from loadtest.traces import mooncake, sharegpt
from loadtest.traces.items import Loaded, Rules


def read(path: Path, rules: Rules) -> Loaded:
    """The trace in a file, whichever kind it is. Raises BadTrace or OSError."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head = ""
        while not head.strip():
            line = file.readline(1 << 24)
            if not line:
                break
            head = line
        file.seek(0)
        if head.lstrip().startswith("[") or _talks(head):
            return sharegpt.items(sharegpt.rows(file.read(), path.name), path.name, rules)
        return mooncake.items(file, path.name, rules)


def _talks(line: str) -> bool:
    try:
        row = parsed(line)
    except ValueError:
        return False
    return isinstance(row, dict) and bool({"conversations", "messages"} & set(row))
