"""What a running node's machine says of its memory: control groups, pressure, resident sizes.

Every source is optional: what is not there, or not readable, is left out. All files go through a small reader, so that
a test can hand over a tree of its own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from inference_node.memory.guard import GpuReading, Readings
from shared.cgroup import CGROUP, groups_in, upwards

UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"
MAX_PROCESSES = 512  # looked at below this one


class Files(ABC):
    """Reads small files. Both methods answer as if nothing were there when something goes wrong."""

    @abstractmethod
    def text(self, path: str) -> str:
        """The whole file, empty where there is none."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """What is in a folder, empty where there is none."""


class DiskFiles(Files):
    """The machine's own."""

    def text(self, path: str) -> str:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20)
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError:
            return []


class Watch:
    """Reads the machine when it is asked to. Blocking, for milliseconds: call it in a thread."""

    def __init__(
        self,
        files: Files,
        pid: int,
        gpus: Callable[[], tuple[GpuReading, ...]] = tuple,
        page: int = os.sysconf("SC_PAGE_SIZE"),
    ) -> None:
        """``pid`` is the process that counts, with all below it; ``gpus`` reads the GPUs it uses."""
        self._files = files
        self._pid = pid
        self._gpus = gpus
        self._page = page
        self._groups = self._find_groups()

    def read(self) -> Readings:
        """All of it, now."""
        memory, limit = max(self._limits(), default=(None, None), key=lambda pair: pair[0] or 0.0)
        return Readings(memory, limit, self._stall(), self._rss(), self._gpus())

    def _find_groups(self) -> list[tuple[str, bool]]:
        """Folders of this process's control group and those above it that limit memory; whether each is of v2."""
        found: list[tuple[str, bool]] = []
        for controller, group in groups_in(self._files.text(f"/proc/{self._pid}/cgroup")).items():
            if controller == "":
                for root in (CGROUP, CGROUP / "unified"):
                    found += [(folder, True) for folder in self._upwards(root, group, "memory.current")]
            elif controller == "memory":
                root = CGROUP / controller
                found += [(folder, False) for folder in self._upwards(root, group, "memory.usage_in_bytes")]
        return found

    def _upwards(self, root: Path, group: str, proof: str) -> list[str]:
        """A group's folder and those above it. Inside a container only the root may be there, and it is our own."""
        return [str(folder) for folder in upwards(root, group) if self._files.text(f"{folder}/{proof}")]

    def _limits(self) -> list[tuple[float | None, int | None]]:
        """(share in use, limit in bytes) of the machine and of every group with a limit."""
        out: list[tuple[float | None, int | None]] = []
        info = _table(self._files.text("/proc/meminfo"), ":")
        total, available = info.get("MemTotal", 0) << 10, info.get("MemAvailable")
        if total and available is not None:
            out.append((1.0 - min(available << 10, total) / total, total))
        for folder, modern in self._groups:
            limit = _number(self._files.text(folder + ("/memory.max" if modern else "/memory.limit_in_bytes")))
            used = _number(self._files.text(folder + ("/memory.current" if modern else "/memory.usage_in_bytes")))
            if limit is None or used is None or not 0 < limit < UNLIMITED:
                continue
            stat = _table(self._files.text(f"{folder}/memory.stat"))
            # The page cache, mapped weights included, and caches of the kernel are given back when memory is wanted;
            # if that hurts, the stall shows it.
            names = ("inactive_file", "active_file") if modern else ("total_inactive_file", "total_active_file")
            spare = sum(stat.get(name, 0) for name in names) + stat.get("slab_reclaimable", 0)
            out.append((max(0.0, (used - spare) / limit), limit))
        return out

    def _stall(self) -> float | None:
        """Memory pressure of the own group, else of the machine: the share of time in which all tasks waited."""
        for folder in (*(folder for folder, modern in self._groups[:1] if modern), "/proc/pressure"):
            text = self._files.text(f"{folder}/{'memory' if folder == '/proc/pressure' else 'memory.pressure'}")
            for line in text.splitlines():
                if line.startswith("full "):
                    return _field(line, "avg10=")
        return None

    def _rss(self) -> int | None:
        """Resident bytes of the process and of all below it; pages that several share count for each."""
        pages = [self._resident(pid) for pid in self._family()]
        known = [size for size in pages if size is not None]
        return sum(known) * self._page if known else None

    def _resident(self, pid: int) -> int | None:
        parts = self._files.text(f"/proc/{pid}/statm").split()
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None

    def _family(self) -> list[int]:
        family, i = [self._pid], 0
        while i < len(family) and len(family) < MAX_PROCESSES:
            tasks = f"/proc/{family[i]}/task"
            for task in self._files.names(tasks):
                children = self._files.text(f"{tasks}/{task}/children").split()
                family += [int(child) for child in children if child.isdigit()]
            i += 1
        return family[:MAX_PROCESSES]


def _number(text: str) -> int | None:
    """A whole number; None for "max" and for what is none."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= 20 else None


def _table(text: str, end: str = "") -> dict[str, int]:
    """Lines of a name and a whole number."""
    out: dict[str, int] = {}
    for line in text.splitlines():
        parts = line.split(None, 2)
        if len(parts) > 1 and parts[1].isdigit():
            out[parts[0].removesuffix(end)] = int(parts[1])
    return out


def _field(line: str, name: str) -> float | None:
    for part in line.split():
        if part.startswith(name):
            try:
                value = float(part[len(name) :])
            except ValueError:
                return None
            return value if 0.0 <= value <= 100.0 else None
    return None
