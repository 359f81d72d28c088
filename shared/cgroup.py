"""The control groups of a process, and those above them as far as they can be seen from here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
_DEEPEST: Final = 32  # nested groups


def own_groups(path: Path = OWN_CGROUP) -> dict[str, str]:
    """Those of this process: controller to path."""
    with suppress(OSError):
        return groups_in(path.read_text())
    return {}


def groups_in(text: str) -> dict[str, str]:
    """Controller to path, in the order of a process's file; the unified hierarchy's name is empty."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return groups


def upwards(base: Path, group: str) -> list[Path]:
    """A group's folder and those above it."""
    parts = [part for part in group.split("/") if part and part != ".."][:_DEEPEST]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
