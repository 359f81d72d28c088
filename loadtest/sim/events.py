"""Virtual time: a queue of things to do, in order of their time and then of their making."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from typing import Any

_WALL_CHECK = 4096  # events between two looks at the wall clock


class Events:
    """The clock that everything in a simulation is given; calling it gives the time in seconds."""

    __slots__ = ("_heap", "_order", "done", "now", "stopped")

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self.done = 0
        """Events that have run."""
        self.stopped = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def __call__(self) -> float:
        return self.now

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act`` at ``when``; a time that has passed means now, after what is due now already."""
        self._order += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._order, act, args))

    def stop(self) -> None:
        """Run nothing more."""
        self.stopped = True

    def run(self, wall_seconds: float = math.inf) -> bool:
        """Run until nothing is left or ``stop`` was called. False when the wall-clock bound came first."""
        heap = self._heap
        ends = time.monotonic() + wall_seconds
        while heap and not self.stopped:
            self.now, _, act, args = heapq.heappop(heap)
            act(*args)
            self.done += 1
            if self.done % _WALL_CHECK == 0 and time.monotonic() > ends:
                return False
        return True
